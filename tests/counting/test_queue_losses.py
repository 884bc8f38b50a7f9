"""Entries that Redis loses before they were applied: each loss is recorded once, with at least how
many, and nothing else is taken for one."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import redis

from countersink.cli.private_server import LOOPBACK
from countersink.counting.apply import queue_losses
from countersink.counting.apply.queue_losses import QueueLoss, recent, total, watch
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.database.sql import NOW_MS
from countersink.stream.connection import command
from countersink.stream.connection import connect as stream_connect
from countersink.stream.group import Group
from countersink.stream.names import stream_key
from countersink.stream.progress import QueueSample, samples
from tests.support.entries import together
from tests.support.factories import RedisFactory
from tests.support.traffic import Traffic, add, now_ms
from tests.support.waiting import eventually
from tests.worker.running import Place, fill

pytestmark = pytest.mark.servers("mariadb", "mysql")
STREAM = stream_key(0)


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look looks, and what is missing at two of them is lost."""
    monkeypatch.setattr(queue_losses, "LOOK_EVERY_MS", 0)
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)


@dataclass(frozen=True)
class Queue(Place):
    """The queue, and the session whose looks find out what it has lost."""

    session: Session

    def look(self) -> list[QueueLoss]:
        """The losses that nobody has seen before."""
        return watch(self.session, partial(samples, self.client))


@pytest.fixture
def queue(session: Session, redis_url: str, redis_client: redis.Redis, mysql_url: str) -> Queue:
    return Queue(redis_url, redis_client, mysql_url, session)


def entries(losses: list[QueueLoss]) -> list[int]:
    return [loss.entries for loss in losses]


def test_entries_that_wait_and_are_flushed_are_lost(queue: Queue) -> None:
    first = int(queue.fill(Traffic(1), 14)[0].partition("-")[0])
    assert queue.look() == []
    queue.client.flushdb()
    [loss] = queue.look()
    assert (loss.stream, loss.entries, loss.waited, loss.since) == (STREAM, 2, 14, first)
    assert queue.look() == []
    assert recent(queue.session) == [loss]
    assert total(queue.session) == 2


@pytest.mark.parametrize("waiting", [1, 2, 3, 60])
def test_the_ends_of_what_waited_are_known_to_be_lost_and_later_losses_add_up(
    queue: Queue, waiting: int
) -> None:
    for times in (1, 2):
        queue.fill(Traffic(times), waiting)
        queue.look()
        queue.client.delete(STREAM)
        queue.fill(Traffic(3), 2)  # sent since: they wait
        known = min(waiting, 2)
        assert entries(queue.look()) == [known]
        queue.client.delete(STREAM)
        assert entries(queue.look()) == [2]
        assert total(queue.session) == times * (known + 2)
    (loss,) = recent(queue.session)  # a row per stream and day
    assert (loss.entries, loss.waited) == (2 * (known + 2), 2 * (waiting + 2))


def test_what_was_applied_is_not_lost(queue: Queue) -> None:
    for seed in range(3):
        queue.fill(Traffic(seed), 20)
        add(queue.client, {"rows": "nothing of ours"})  # to the dead letters, and it has no id
        queue.look()
        queue.drain()
        assert queue.look() == []
    queue.client.flushdb()  # an empty queue
    assert queue.look() == []
    queue.fill(Traffic(4), 1)
    Group(queue.client, [STREAM], "w").ensure()
    assert queue.look() == []
    assert recent(queue.session) == []


def test_entries_that_a_dead_worker_had_or_that_came_without_an_id(queue: Queue) -> None:
    group = Group(queue.client, [STREAM], "died")
    group.ensure()
    queue.fill(Traffic(1), 3)
    add(queue.client, {"rows": "x"})
    assert len(group.read(10, 0)) == 4
    queue.look()
    queue.client.flushdb()
    assert entries(queue.look()) == [2]


def test_what_somebody_still_has_in_hand_has_time_to_be_applied(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 3_600_000)
    sent = Traffic(1).entry(now_ms(queue.client))
    add(queue.client, sent.fields())
    queue.look()
    queue.client.flushdb()
    assert queue.look() == queue.look() == []
    add(queue.client, sent.fields())  # its producer had no reply, and sends it again
    queue.drain()
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)
    assert queue.look() == []


def test_it_is_noticed_again_only_if_it_is_missing_long_enough(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 3_600_000)
    queue.fill(Traffic(1), 5)
    queue.look()
    before: Any = queue.client.dump(STREAM)
    queue.client.delete(STREAM)
    assert queue.look() == []
    queue.client.restore(STREAM, 0, before)  # another server was asked for a moment
    assert queue.look() == []
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)
    assert queue.look() == []
    assert recent(queue.session) == []


def test_of_processes_that_look_at_once_one_records_it(
    queue: Queue, mysql_url: str, redis_url: str
) -> None:
    queue.fill(Traffic(1), 7)
    queue.look()
    queue.client.flushdb()
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


def test_a_stream_id_that_another_entry_has_now(queue: Queue) -> None:
    [stream_id] = queue.fill(Traffic(1), 1)
    queue.look()
    queue.client.delete(STREAM)
    other = Traffic(2).entry(now_ms(queue.client))
    add(queue.client, other.fields(), stream_id=stream_id)
    assert entries(queue.look()) == [1]


def test_a_stream_that_is_trimmed(queue: Queue) -> None:
    queue.fill(Traffic(1), 30)
    queue.look()
    queue.client.xtrim(STREAM, maxlen=4, approximate=False)
    assert entries(queue.look()) == [1]  # at least


def test_emptied_while_nobody_looked(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.fill(Traffic(1), 2)
    queue.drain()
    queue.look()
    queue.fill(Traffic(2), 14)  # which nobody has seen
    queue.client.flushdb()
    monkeypatch.setattr(queue_losses, "UNSEEN_MS", 0)
    [loss] = queue.look()
    assert (loss.entries, loss.waited, loss.probable) == (0, 0, False)
    assert str(loss).endswith("and was not applied, if anything")
    Group(queue.client, [STREAM], "w").ensure()
    queue.fill(Traffic(3), 2)
    assert queue.look() == queue.look() == []
    assert recent(queue.session) == [loss]


def test_a_time_without_a_look_alone_is_no_loss(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_losses, "UNSEEN_MS", 0)
    queue.look()  # there is no stream yet
    for seed in range(2):
        queue.fill(Traffic(seed), 2)
        assert queue.look() == []
        queue.drain()
        assert queue.look() == []
    assert recent(queue.session) == []


def test_guards_that_were_pruned_meanwhile_say_nothing(queue: Queue) -> None:
    queue.fill(Traffic(1), 2)
    queue.look()
    queue.client.delete(STREAM)
    queue.session.execute(f"UPDATE control SET pruned_before = {NOW_MS} + 1 WHERE id = 1")
    assert queue.look() == []
