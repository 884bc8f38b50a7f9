"""Entries that Redis loses before they were applied: each loss is recorded once, with at least how
many, and nothing else is taken for one."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import redis

from countersink.cli.servers.base import LOOPBACK
from countersink.store import queue_losses
from countersink.store.connection import Session, connect
from countersink.store.queue_losses import QueueLoss, recent, total, watch
from countersink.store.sql import NOW_MS
from countersink.stream.connection import command
from countersink.stream.connection import connect as stream_connect
from countersink.stream.group import Group
from countersink.stream.names import stream_key
from countersink.stream.progress import QueueSample, samples
from tests.store.helpers import together
from tests.support.factories import RedisFactory
from tests.support.traffic import Traffic, add, now_ms
from tests.support.waiting import eventually
from tests.worker.running import drain, fill

pytestmark = pytest.mark.servers("mariadb", "mysql")
STREAM = stream_key(0)
Look = Callable[[], list[QueueLoss]]


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look looks, and what is missing at two of them is lost."""
    monkeypatch.setattr(queue_losses, "LOOK_EVERY_MS", 0)
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)


@pytest.fixture
def look(session: Session, redis_client: redis.Redis) -> Look:
    return partial(watch, session, partial(samples, redis_client))


def entries(losses: list[QueueLoss]) -> list[int]:
    return [loss.entries for loss in losses]


def test_entries_that_wait_and_are_flushed_are_lost(
    look: Look, session: Session, redis_client: redis.Redis
) -> None:
    first = int(fill(redis_client, Traffic(1), 14)[0].partition("-")[0])
    assert look() == []
    redis_client.flushdb()
    [loss] = look()
    assert (loss.stream, loss.entries, loss.waited, loss.since) == (STREAM, 2, 14, first)
    assert look() == []
    assert recent(session) == [loss]
    assert total(session) == 2


@pytest.mark.parametrize("waiting", [1, 2, 3, 60])
def test_the_ends_of_what_waited_are_known_to_be_lost_and_later_losses_add_up(
    look: Look, session: Session, redis_client: redis.Redis, waiting: int
) -> None:
    for times in (1, 2):
        fill(redis_client, Traffic(times), waiting)
        look()
        redis_client.delete(STREAM)
        fill(redis_client, Traffic(3), 2)  # sent since: they wait
        known = min(waiting, 2)
        assert entries(look()) == [known]
        redis_client.delete(STREAM)
        assert entries(look()) == [2]
        assert total(session) == times * (known + 2)
    (loss,) = recent(session)  # a row per stream and day
    assert (loss.entries, loss.waited) == (2 * (known + 2), 2 * (waiting + 2))


def test_what_was_applied_is_not_lost(
    look: Look, session: Session, redis_url: str, mysql_url: str, redis_client: redis.Redis
) -> None:
    for seed in range(3):
        traffic = Traffic(seed)
        fill(redis_client, traffic, 20)
        add(redis_client, {"rows": "nothing of ours"})  # to the dead letters, and it has no id
        look()
        assert drain(redis_url, mysql_url) == 0
        assert look() == []
    redis_client.flushdb()  # an empty queue
    assert look() == []
    fill(redis_client, Traffic(4), 1)
    Group(redis_client, [STREAM], "w").ensure()
    assert look() == []
    assert recent(session) == []


def test_entries_that_a_dead_worker_had_or_that_came_without_an_id(
    look: Look, redis_client: redis.Redis
) -> None:
    group = Group(redis_client, [STREAM], "died")
    group.ensure()
    fill(redis_client, Traffic(1), 3)
    add(redis_client, {"rows": "x"})
    assert len(group.read(10, 0)) == 4
    look()
    redis_client.flushdb()
    assert entries(look()) == [2]


def test_what_somebody_still_has_in_hand_has_time_to_be_applied(
    look: Look,
    redis_url: str,
    mysql_url: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 3_600_000)
    sent = Traffic(1).entry(now_ms(redis_client))
    add(redis_client, sent.fields())
    look()
    redis_client.flushdb()
    assert look() == look() == []
    add(redis_client, sent.fields())  # its producer had no reply, and sends it again
    assert drain(redis_url, mysql_url) == 0
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)
    assert look() == []


def test_it_is_noticed_again_only_if_it_is_missing_long_enough(
    look: Look, session: Session, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 3_600_000)
    fill(redis_client, Traffic(1), 5)
    look()
    before: Any = redis_client.dump(STREAM)
    redis_client.delete(STREAM)
    assert look() == []
    redis_client.restore(STREAM, 0, before)  # another server was asked for a moment
    assert look() == []
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)
    assert look() == []
    assert recent(session) == []


def test_of_processes_that_look_at_once_one_records_it(
    look: Look, mysql_url: str, redis_url: str, redis_client: redis.Redis
) -> None:
    fill(redis_client, Traffic(1), 7)
    look()
    redis_client.flushdb()
    both = threading.Barrier(2)

    def look_too() -> list[QueueLoss]:
        def taken(before: Mapping[str, Sequence[Sequence[str]]]) -> Mapping[str, QueueSample]:
            sample = samples(client, before)
            both.wait(60)
            return sample

        with connect(mysql_url) as own, stream_connect(redis_url) as client:
            return watch(own, taken)

    assert sorted(map(entries, together(look_too, look_too))) == [[], [2]]
    with connect(mysql_url) as own:
        assert total(own) == 2


def test_a_look_that_somebody_has_just_taken_is_enough(
    session: Session, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_losses, "LOOK_EVERY_MS", 3_600_000)
    watch(session, partial(samples, redis_client))
    watch(session, lambda before: pytest.fail("Redis was asked"))


@pytest.mark.parametrize("behind", [0, 7, 30])
def test_a_promoted_replica(session: Session, own_redis_server: RedisFactory, behind: int) -> None:
    master, replica = own_redis_server(), own_redis_server()
    with stream_connect(master.url) as client, stream_connect(replica.url) as other:
        other.config_set("masterauth", master.password)
        command(other, "REPLICAOF", LOOPBACK, master.port)
        fill(client, Traffic(1), 5)
        eventually(lambda: other.xlen(STREAM) == 5)
        if behind:
            command(other, "REPLICAOF", "NO", "ONE")  # what comes now does not reach it
            fill(client, Traffic(2), behind)
        watch(session, partial(samples, client))
        command(other, "REPLICAOF", "NO", "ONE")
        fill(other, Traffic(3), 3)
        found = watch(session, partial(samples, other))
        assert entries(found) == ([1] if behind else [])  # the replica has the oldest one
        assert watch(session, partial(samples, other)) == []


def test_a_replica_that_lags_behind_a_worker(
    session: Session,
    own_redis_server: RedisFactory,
    mysql_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lacks entries that were applied, which are no loss, and one that was not."""
    master, replica = own_redis_server(), own_redis_server()
    with stream_connect(master.url) as client, stream_connect(replica.url) as other:
        fill(client, Traffic(1), 5)
        kept: Any = client.xrange(STREAM)
        last = kept.pop()
        watch(session, partial(samples, client))
        client.xdel(STREAM, last[0])
        monkeypatch.setattr(queue_losses, "CERTAIN_MS", 3_600_000)
        assert drain(master.url, mysql_url) == 0
        monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)
        assert entries(watch(session, partial(samples, other))) == [1]


def test_while_a_queue_moves_to_another_redis_each_has_its_own(
    session: Session, own_redis_server: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_losses, "LOOK_EVERY_MS", 3_600_000)
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 3_600_000)
    with (
        stream_connect(own_redis_server().url) as former,
        stream_connect(own_redis_server().url) as new,
    ):
        fill(former, Traffic(1), 5)
        fill(new, Traffic(2), 5)
        watch(session, partial(samples, former))
        session.execute("UPDATE queue_look SET looked_at = 0")
        watch(session, partial(samples, new))  # from now on entries of the former are missing
        watch(session, partial(samples, former))  # and are there again
        monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)
        session.execute("UPDATE queue_look SET looked_at = 0")
        assert watch(session, partial(samples, former)) == []


def test_a_server_that_loses_nothing_when_it_is_killed(
    session: Session, own_redis_server: RedisFactory
) -> None:
    server = own_redis_server(appendfsync="always")
    with stream_connect(server.url) as client:
        fill(client, Traffic(1), 12)
        watch(session, partial(samples, client))
    server.kill()
    server.start()
    with stream_connect(server.url) as client:
        assert watch(session, partial(samples, client)) == []


def test_a_stream_id_that_another_entry_has_now(look: Look, redis_client: redis.Redis) -> None:
    [stream_id] = fill(redis_client, Traffic(1), 1)
    look()
    redis_client.delete(STREAM)
    other = Traffic(2).entry(now_ms(redis_client))
    add(redis_client, other.fields(), stream_id=stream_id)
    assert entries(look()) == [1]


def test_a_stream_that_is_trimmed(look: Look, redis_client: redis.Redis) -> None:
    fill(redis_client, Traffic(1), 30)
    look()
    redis_client.xtrim(STREAM, maxlen=4, approximate=False)
    assert entries(look()) == [1]  # at least


def test_emptied_while_nobody_looked(
    look: Look,
    session: Session,
    redis_url: str,
    mysql_url: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(redis_client, Traffic(1), 2)
    assert drain(redis_url, mysql_url) == 0
    look()
    fill(redis_client, Traffic(2), 14)  # which nobody has seen
    redis_client.flushdb()
    monkeypatch.setattr(queue_losses, "UNSEEN_MS", 0)
    [loss] = look()
    assert loss.entries == 0
    assert str(loss).startswith("an unknown number of the ")
    Group(redis_client, [STREAM], "w").ensure()
    fill(redis_client, Traffic(3), 2)
    assert look() == look() == []
    assert recent(session) == [loss]


def test_a_time_without_a_look_alone_is_no_loss(
    look: Look,
    session: Session,
    redis_url: str,
    mysql_url: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_losses, "UNSEEN_MS", 0)
    look()  # there is no stream yet
    for seed in range(2):
        fill(redis_client, Traffic(seed), 2)
        assert look() == []
        assert drain(redis_url, mysql_url) == 0
        assert look() == []
    assert recent(session) == []


def test_guards_that_were_pruned_meanwhile_say_nothing(
    look: Look, session: Session, redis_client: redis.Redis
) -> None:
    fill(redis_client, Traffic(1), 2)
    look()
    redis_client.delete(STREAM)
    session.execute(f"UPDATE control SET pruned_before = {NOW_MS} + 1 WHERE id = 1")
    assert look() == []


def test_losses_of_long_ago_are_not_recent(
    look: Look, session: Session, redis_client: redis.Redis
) -> None:
    fill(redis_client, Traffic(1), 2)
    look()
    redis_client.flushdb()
    look()
    ((losses,),) = session.query("SELECT losses FROM queue_look")
    found = [[*each, at - 86_400_000] for *each, at in json.loads(losses)]
    session.execute("UPDATE queue_look SET losses = %s", (json.dumps(found),))
    assert recent(session, 1) == []
    assert entries(recent(session)) == [2]
