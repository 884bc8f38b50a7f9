"""Applied or lost: an entry that is gone from its stream was acknowledged, or nobody knows."""

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import redis

from countersink.producers import Producer
from countersink.stream.connection import command, connect
from countersink.stream.names import GROUP, applied_key
from tests.producers.helpers import STREAM, Worker
from tests.support.factories import RedisFactory
from tests.support.proxies import RedisProxy
from tests.support.waiting import eventually


@pytest.fixture
def producer(redis_url: str) -> Iterator[Producer]:
    with Producer(redis_url, flush_interval=3600) as made:
        yield made


def stored(producer: Producer, entries: int = 1) -> None:
    for number in range(entries):
        producer.increment("hits", str(number))
        assert producer.flush()


def is_applied(producer: Producer, client: redis.Redis) -> bool:
    """Answer to `applied`, once a worker has worked."""
    Worker(client).work()
    return producer.flush(timeout=30, applied=True)


@contextmanager
def with_replica(
    start: RedisFactory,
) -> Iterator[tuple[Producer, redis.Redis, Callable[[], None]]]:
    """A producer of whose entries the first is applied, a client of the replica that has heard of
    it, and what puts the replica in the primary's place.
    """
    # By default five seconds pass before a primary sends all that it has.
    primary, replica = start(extra=["--repl-diskless-sync-delay", "0"]), start()
    with (
        connect(replica.url) as client,
        RedisProxy.to(primary.url) as proxy,
        Producer(proxy.url(primary.url), flush_interval=3600) as producer,
    ):
        client.config_set("masterauth", primary.password)
        client.config_set("requirepass", primary.password)
        command(client, "REPLICAOF", "127.0.0.1", primary.port)
        eventually(lambda: client.info("replication")["master_link_status"] == "up")
        stored(producer)
        with connect(primary.url) as old:
            assert is_applied(producer, old)
            written = old.info("replication")["master_repl_offset"]
            eventually(lambda: client.info("replication")["slave_repl_offset"] >= written)

        def take_over() -> None:
            proxy.upstream = ("127.0.0.1", replica.port)
            proxy.cut_all()

        yield producer, client, take_over


def not_known(producer: Producer, caplog: pytest.LogCaptureFixture, why: str) -> None:
    """It says so at once, once, and with the reason."""
    with caplog.at_level(logging.WARNING, "countersink.producers"):
        caplog.clear()
        assert not producer.flush(timeout=30, applied=True)
    said = [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "not_known"]
    assert len(said) == 1, said
    assert re.search(why, said[0])


def test_what_workers_acknowledged_is_applied_in_whatever_order(
    producer: Producer, redis_client: redis.Redis
) -> None:
    stored(producer, 6)
    one, other = Worker(redis_client, "one"), Worker(redis_client, "other")
    first, second = one.take(3), other.take(3)
    other.acknowledge(second)
    assert not producer.flush(timeout=0.1, applied=True), "the first three are still there"
    one.acknowledge(first[1:])
    assert not producer.flush(timeout=0.1, applied=True)
    one.acknowledge(first[:1])
    assert producer.flush(timeout=30, applied=True)


def test_entries_of_a_dead_worker_are_applied_when_another_one_has_claimed_them(
    producer: Producer, redis_client: redis.Redis
) -> None:
    stored(producer, 3)
    Worker(redis_client, "dead").take(3)
    heir = Worker(redis_client, "heir")
    claimed = heir.group.claim(0, 10).deliveries
    assert not producer.flush(timeout=0.1, applied=True)
    heir.acknowledge(claimed)
    assert producer.flush(timeout=30, applied=True)


def test_what_others_send_without_a_producer_is_no_loss(
    producer: Producer, redis_client: redis.Redis
) -> None:
    redis_client.xadd(STREAM, {"rows": "[]"})
    stored(producer)
    redis_client.xadd(STREAM, {"rows": "[]"})
    assert is_applied(producer, redis_client)


LOSSES = {
    "FLUSHALL": ("FLUSHALL",),
    "trimmed": ("XTRIM", STREAM, "MAXLEN", "0"),
    "one of them trimmed": ("XTRIM", STREAM, "MAXLEN", "2"),
    "stream deleted": ("DEL", STREAM),
}


ALL_OF_THEM = pytest.mark.long("the whole matrix")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("worked", "sent_on"),
    [
        pytest.param(False, False, id="fresh, at the end"),
        pytest.param(False, True, id="fresh, before more", marks=ALL_OF_THEM),
        pytest.param(True, False, id="after others were applied, at the end", marks=ALL_OF_THEM),
        pytest.param(True, True, id="after others were applied, before more"),
    ],
)
def test_what_redis_lost_is_not_called_applied(
    producer: Producer,
    redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    loss: str,
    worked: bool,
    sent_on: bool,
) -> None:
    if worked:
        stored(producer, 2)
        assert is_applied(producer, redis_client)
    stored(producer, 3)
    command(redis_client, *LOSSES[loss])
    if sent_on:
        stored(producer, 4)
    Worker(redis_client).work()
    not_known(producer, caplog, "deleted" if loss in ("FLUSHALL", "stream deleted") else "XTRIM")

    stored(producer, 2)  # from here on it is followed anew
    assert not producer.flush(timeout=0.1, applied=True)
    assert is_applied(producer, redis_client)


def test_an_entry_taken_out_by_hand_is_not_called_applied(
    producer: Producer, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    stored(producer, 2)
    first = command(redis_client, "XRANGE", STREAM, "-", "+", "COUNT", 1)[0][0]
    redis_client.xdel(STREAM, first)
    Worker(redis_client).work()
    not_known(producer, caplog, "1 entries left .*XDEL")


def test_what_a_worker_of_an_older_version_acknowledged_is_not_known(
    producer: Producer, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    redis_client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    stored(producer)
    (taken,) = Worker(redis_client).take()
    redis_client.xack(STREAM, GROUP, taken.stream_id)
    redis_client.xdel(STREAM, taken.stream_id)
    not_known(producer, caplog, "older version")


def test_one_thread_waits_while_redis_loses_what_it_waits_for(
    producer: Producer, redis_client: redis.Redis
) -> None:
    Worker(redis_client)
    stored(producer)
    said: list[bool] = []
    waiting = Thread(target=lambda: said.append(producer.flush(timeout=60, applied=True)))
    waiting.start()
    redis_client.xtrim(STREAM, maxlen=0)
    waiting.join(30)
    assert said == [False]


def test_a_restart_that_may_have_lost_something_is_not_called_applied(
    own_redis_server: RedisFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis_server(extra=["--appendonly", "no"])
    with Producer(server.url, flush_interval=3600) as producer, connect(server.url) as client:
        stored(producer)
        server.kill()
        shutil.rmtree(server.directory / "appendonlydir", ignore_errors=True)
        server.start()
        Worker(client).work()
        not_known(producer, caplog, "started anew")

        stored(producer)
        server.kill()
        server.start()
        eventually(lambda: producer.flush() and producer.stats().connected)
        producer.increment("hits")  # over a new connection, to an empty Redis
        eventually(producer.flush)
        Worker(client).work()
        not_known(producer, caplog, "started anew")
        stored(producer)
        assert is_applied(producer, client)


def test_a_replica_that_missed_entries_takes_over(
    own_redis_server: RedisFactory, caplog: pytest.LogCaptureFixture
) -> None:
    with with_replica(own_redis_server) as (producer, new, take_over):
        command(new, "REPLICAOF", "NO", "ONE")
        stored(producer)  # the new primary never heard of this one
        take_over()
        new.xadd(STREAM, {"rows": "[]"})  # as many as were lost, and later
        Worker(new).work()
        not_known(producer, caplog, "another server took over")


def test_a_replica_that_lags_behind_and_is_not_promoted_yet(
    own_redis_server: RedisFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the replication id of its primary."""
    with with_replica(own_redis_server) as (producer, lagging, take_over):
        command(lagging, "REPLICAOF", "127.0.0.1", 1)  # it hears no more
        stored(producer)
        take_over()
        not_known(producer, caplog, "lags behind")


def test_a_stream_that_was_put_back_as_it_was_before(
    producer: Producer, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    stored(producer)
    assert is_applied(producer, redis_client)
    before = command(redis_client, "DUMP", STREAM)
    stored(producer)
    command(redis_client, "RESTORE", STREAM, 0, before, "REPLACE")
    not_known(producer, caplog, "put back")
    stored(producer)
    assert is_applied(producer, redis_client)


def test_without_the_rights_it_is_not_known_and_everything_is_stored(
    own_redis_server: RedisFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis_server()
    with connect(server.url) as client:
        # What ops/redis/users.acl gave to applications before.
        client.execute_command(
            *("ACL", "SETUSER", "app", "on", ">secret", "~{countersink:*}:events"),
            *("~countersink:partitions*", "-@all", "+auth", "+hello", "+ping", "+client|setname"),
            *("+time", "+get", "+exists", "+sadd", "+xadd", "+xlen", "+xrange"),
        )
        url = re.sub("//.*@", "//app:secret@", server.url)
        with Producer(url, flush_interval=3600) as producer:
            stored(producer, 2)
            assert client.xlen(STREAM) == 2
            not_known(producer, caplog, "ops/redis/users.acl")


def test_the_note_of_what_was_acknowledged_takes_two_fields(
    producer: Producer, redis_client: redis.Redis
) -> None:
    for _ in range(3):
        stored(producer, 5)
        Worker(redis_client).work()
    noted = redis_client.hgetall(applied_key(STREAM))
    assert (set(noted), noted[b"count"]) == ({b"group", b"count"}, b"15")
