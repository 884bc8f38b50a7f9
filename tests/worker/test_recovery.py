"""What others left behind or took away: dead consumers, orphans, vanished groups and streams; a
clock of Redis that was set back."""

from typing import Any

import pytest
import redis

from countersink.stream import group
from countersink.stream.connection import command
from countersink.stream.group import Group
from countersink.stream.names import GROUP, stream_key
from tests.support.traffic import Traffic, backlog, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import Place, Records, settled

STREAM = stream_key(0)


def read_and_die(client: redis.Redis, count: int, name: str = "died") -> list[str]:
    group = Group(client, [STREAM], name)
    group.ensure()
    return [delivery.stream_id for delivery in group.read(count, 0)]


def consumers(client: redis.Redis) -> list[str]:
    return sorted(entry["name"].decode() for entry in client.xinfo_consumers(STREAM, GROUP))


def test_a_drain_waits_for_the_entries_of_a_dead_worker_more_than_one_look_takes_over(
    place: Place,
) -> None:
    traffic = Traffic(20)
    place.fill(traffic, 30)
    assert len(read_and_die(place.client, 30)) == 30

    records = place.drain(claim_idle_ms=500, batch_entries=7)

    place.check(traffic)
    assert backlog(place.client) == 0
    assert "claimed" in records.actions()
    assert consumers(place.client) == ["died"]


def test_old_entries_pending_with_nobody_are_applied(place: Place) -> None:
    traffic = Traffic(22)
    place.fill(traffic, 25)
    read_and_die(place.client, 20)
    place.client.xgroup_delconsumer(STREAM, GROUP, "died")  # with 20 pending: now nobody has them

    records = place.drain(claim_idle_ms=50)

    place.check(traffic)
    assert backlog(place.client) == 0
    assert sum(fields["entries"] for fields in records.fields("orphans")) == 20


def test_entries_trimmed_while_pending_are_reported_as_lost(place: Place) -> None:
    traffic = Traffic(23)
    place.fill(Traffic(0), 4)
    trimmed = read_and_die(place.client, 4)
    place.client.xdel(STREAM, *trimmed)
    place.fill(traffic, 10)

    records = place.drain(claim_idle_ms=1)

    place.check(traffic)
    lost = records.fields("lost")
    assert sum(fields["entries"] for fields in lost) == 4
    assert lost[0]["first"] == trimmed[0]


def test_idle_consumers_with_nothing_pending_are_forgotten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "GONE_S", 3_600.0)
    place.fill(Traffic(0), 2)
    Group(place.client, [STREAM], "x").ensure()
    for name in ("idle", "busy"):
        place.client.xgroup_createconsumer(STREAM, GROUP, name)
    read_and_die(place.client, 1, "busy")

    with Records() as records:
        options: dict[str, Any] = {"claim_idle_ms": 3_600_000, "consumer_idle_ms": 1}
        with place.running(**options) as worker:
            eventually(lambda: "consumer_removed" in records.actions())
            assert worker.end() == 0

    assert [fields["removed"] for fields in records.fields("consumer_removed")] == ["idle"]
    assert consumers(place.client) == ["busy"]


def test_what_is_lost_while_the_worker_waits_is_made_again_and_read_from_its_beginning(
    place: Place,
) -> None:
    """The group, then the stream, then all that is in Redis."""
    traffic = Traffic(24)
    with place.watched(batch_wait_ms=500) as (_, worker, oracle):

        def is_counted() -> None:
            eventually(lambda: settled(oracle, traffic))
            eventually(lambda: backlog(place.client) == 0)

        place.fill(traffic, 5)
        is_counted()
        with place.client.pipeline(transaction=True) as pipeline:
            pipeline.xgroup_destroy(STREAM, GROUP)
            for _ in range(5):
                pipeline.xadd(STREAM, traffic.entry(now_ms(place.client)).fields())
            pipeline.execute()
        is_counted()
        for lost in (("DEL", STREAM), ("FLUSHALL",)):
            command(place.client, *lost)  # of the tests' own private server
            place.fill(traffic, 5)
            is_counted()
        assert worker.end() == 0


def test_an_acknowledgement_spares_a_stream_id_that_belongs_to_another_event(place: Place) -> None:
    traffic = Traffic(27)
    ours, theirs = (traffic.entry(now_ms(place.client)) for _ in range(2))
    fields = [part for pair in theirs.fields().items() for part in pair]
    (stream_id,) = send(place.client, ours)

    def reached(point: str) -> None:
        if point == "committed" and not happened:
            happened.append(point)
            # What a promoted replica may do: the same stream id for another event.
            place.client.xdel(STREAM, stream_id)
            place.client.delete(STREAM)
            command(place.client, "XADD", STREAM, stream_id, *fields)

    happened: list[str] = []
    with place.watched(reached=reached) as (_, worker, oracle):
        eventually(lambda: not oracle.differences(traffic.expected))
        assert worker.end() == 0
    assert happened


def test_entries_of_a_dead_worker_are_claimed_whatever_redis_says_of_their_age(
    place: Place,
) -> None:
    """None at all, say, after its clock was set back."""
    traffic = Traffic(5)
    place.fill(traffic, 120)
    assert len(read_and_die(place.client, 120)) == 120
    with place.running(claim_idle_ms=3_600_000, claim_every_s=0.1):
        eventually(lambda: not place.client.xlen(STREAM))
    place.check(traffic)
