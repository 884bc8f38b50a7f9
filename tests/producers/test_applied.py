"""Applied or lost: an entry that is gone from its stream was acknowledged, or nobody knows."""

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import redis

from countersink.producers import Producer
from countersink.stream.connection import command, connect
from countersink.stream.names import GROUP
from tests.producers.helpers import STREAM, Worker
from tests.support.factories import RedisFactory
from tests.support.proxies import RedisProxy
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Line:
    """A producer, the Redis that it sends to, and what is logged."""

    producer: Producer
    client: redis.Redis
    caplog: pytest.LogCaptureFixture

    def stored(self, entries: int = 1) -> None:
        for number in range(entries):
            self.producer.increment("hits", str(number))
            assert self.producer.flush()

    def work(self) -> None:
        Worker(self.client).work()

    def applied(self, timeout: float = 30) -> bool:
        return self.producer.flush(timeout=timeout, applied=True)

    def is_applied(self) -> bool:
        """Answer to `applied`, once a worker has worked."""
        self.work()
        return self.applied()

    def not_known(self, why: str) -> None:
        """It says so at once, once, and with the reason."""
        with self.caplog.at_level(logging.WARNING, "countersink.producers"):
            self.caplog.clear()
            assert not self.applied()
        records = self.caplog.records
        said = [r.getMessage() for r in records if getattr(r, "action", "") == "not_known"]
        assert len(said) == 1, said
        assert re.search(why, said[0])


@pytest.fixture
def line(
    redis_url: str, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> Iterator[Line]:
    with Producer(redis_url, flush_interval=3600) as producer:
        yield Line(producer, redis_client, caplog)


@contextmanager
def with_replica(
    start: RedisFactory, caplog: pytest.LogCaptureFixture
) -> Iterator[tuple[Line, Callable[[], None]]]:
    """A producer of whose entries the first is applied, beside the replica that has heard of it,
    and what puts the replica in the primary's place.
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
        with connect(primary.url) as old:
            line = Line(producer, old, caplog)
            line.stored()
            assert line.is_applied()
            written = old.info("replication")["master_repl_offset"]
            eventually(lambda: client.info("replication")["slave_repl_offset"] >= written)

        def take_over() -> None:
            proxy.upstream = ("127.0.0.1", replica.port)
            proxy.cut_all()

        yield replace(line, client=client), take_over


def test_what_workers_acknowledged_is_applied_in_whatever_order(line: Line) -> None:
    line.stored(6)
    one, other = Worker(line.client, "one"), Worker(line.client, "other")
    first, second = one.take(3), other.take(3)
    other.acknowledge(second)
    assert not line.applied(0.1), "the first three are still there"
    one.acknowledge(first[1:])
    assert not line.applied(0.1)
    one.acknowledge(first[:1])
    assert line.applied()


def test_what_others_send_without_a_producer_is_no_loss(line: Line) -> None:
    line.client.xadd(STREAM, {"rows": "[]"})
    line.stored()
    line.client.xadd(STREAM, {"rows": "[]"})
    assert line.is_applied()


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
    line: Line, loss: str, worked: bool, sent_on: bool
) -> None:
    if worked:
        line.stored(2)
        assert line.is_applied()
    line.stored(3)
    command(line.client, *LOSSES[loss])
    if sent_on:
        line.stored(4)
    line.work()
    line.not_known("deleted" if loss in ("FLUSHALL", "stream deleted") else "XTRIM")

    line.stored(2)  # from here on it is followed anew
    assert not line.applied(0.1)
    assert line.is_applied()


def test_what_a_worker_of_an_older_version_acknowledged_is_not_known(line: Line) -> None:
    line.client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    line.stored()
    (taken,) = Worker(line.client).take()
    line.client.xack(STREAM, GROUP, taken.stream_id)
    line.client.xdel(STREAM, taken.stream_id)
    line.not_known("older version")


def test_a_restart_that_may_have_lost_something_is_not_called_applied(
    own_redis_server: RedisFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis_server(extra=["--appendonly", "no"])
    with Producer(server.url, flush_interval=3600) as producer, connect(server.url) as client:
        line = Line(producer, client, caplog)
        line.stored()
        server.kill()
        shutil.rmtree(server.directory / "appendonlydir", ignore_errors=True)
        server.start()
        line.work()
        line.not_known("Redis was restarted")

        line.stored()
        server.kill()
        server.start()
        eventually(lambda: producer.flush() and producer.stats().connected)
        producer.increment("hits")  # over a new connection, to an empty Redis
        eventually(producer.flush)
        line.work()
        line.not_known("Redis was restarted")
        line.stored()
        assert line.is_applied()


def test_a_replica_that_missed_entries_takes_over(
    own_redis_server: RedisFactory, caplog: pytest.LogCaptureFixture
) -> None:
    with with_replica(own_redis_server, caplog) as (line, take_over):
        command(line.client, "REPLICAOF", "NO", "ONE")
        line.stored()  # the new primary never heard of this one
        take_over()
        line.client.xadd(STREAM, {"rows": "[]"})  # as many as were lost, and later
        line.work()
        line.not_known("another server took over")


def test_a_replica_that_lags_behind_and_is_not_promoted_yet(
    own_redis_server: RedisFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the replication id of its primary."""
    with with_replica(own_redis_server, caplog) as (line, take_over):
        command(line.client, "REPLICAOF", "127.0.0.1", 1)  # it hears no more
        line.stored()
        take_over()
        line.not_known("lags behind")


def test_a_stream_that_was_put_back_as_it_was_before(line: Line) -> None:
    line.stored()
    assert line.is_applied()
    before = command(line.client, "DUMP", STREAM)
    line.stored()
    command(line.client, "RESTORE", STREAM, 0, before, "REPLACE")
    line.not_known("restored copy")
    line.stored()
    assert line.is_applied()


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
            line = Line(producer, client, caplog)
            line.stored(2)
            assert client.xlen(STREAM) == 2
            line.not_known("`countersink ops` writes redis/users.acl")
