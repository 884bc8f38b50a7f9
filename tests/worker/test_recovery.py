"""What others left behind or took away: dead consumers, orphans, vanished groups and streams."""

from typing import Any

import pytest
import redis

from countersink.stream import group
from countersink.stream.connection import command
from countersink.stream.group import Group
from countersink.stream.names import GROUP, stream_key
from tests.support.traffic import Traffic, backlog, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import Records, Running, check, drain, fill, settled, watched

STREAM = stream_key(0)


def read_and_die(client: redis.Redis, count: int, name: str = "died") -> list[str]:
    group = Group(client, [STREAM], name)
    group.ensure()
    return [delivery.stream_id for delivery in group.read(count, 0)]


def consumers(client: redis.Redis) -> list[str]:
    return sorted(entry["name"].decode() for entry in client.xinfo_consumers(STREAM, GROUP))


def test_a_drain_waits_for_the_entries_of_a_dead_worker_more_than_one_look_takes_over(
    redis_url: str, redis_client: redis.Redis, mysql_url: str
) -> None:
    traffic = Traffic(20)
    fill(redis_client, traffic, 30)
    assert len(read_and_die(redis_client, 30)) == 30

    with Records() as records:
        assert drain(redis_url, mysql_url, claim_idle_ms=500, batch_entries=7) == 0

    check(mysql_url, traffic)
    assert backlog(redis_client) == 0
    assert "claimed" in records.actions()
    assert consumers(redis_client) == ["died"]


def test_old_entries_pending_with_nobody_are_applied(
    redis_url: str, redis_client: redis.Redis, mysql_url: str
) -> None:
    traffic = Traffic(22)
    fill(redis_client, traffic, 25)
    read_and_die(redis_client, 20)
    redis_client.xgroup_delconsumer(STREAM, GROUP, "died")  # with 20 pending: now nobody has them

    with Records() as records:
        assert drain(redis_url, mysql_url, claim_idle_ms=50) == 0

    check(mysql_url, traffic)
    assert backlog(redis_client) == 0
    assert sum(fields["entries"] for fields in records.fields("orphans")) == 20


def test_entries_trimmed_while_pending_are_reported_as_lost(
    redis_url: str, redis_client: redis.Redis, mysql_url: str
) -> None:
    traffic = Traffic(23)
    fill(redis_client, Traffic(0), 4)
    trimmed = read_and_die(redis_client, 4)
    redis_client.xdel(STREAM, *trimmed)
    fill(redis_client, traffic, 10)

    with Records() as records:
        assert drain(redis_url, mysql_url, claim_idle_ms=1) == 0

    check(mysql_url, traffic)
    lost = records.fields("lost")
    assert sum(fields["entries"] for fields in lost) == 4
    assert lost[0]["first"] == trimmed[0]


def test_idle_consumers_with_nothing_pending_are_forgotten(
    redis_url: str, redis_client: redis.Redis, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "GONE_S", 3_600.0)
    fill(redis_client, Traffic(0), 2)
    Group(redis_client, [STREAM], "x").ensure()
    for name in ("idle", "busy"):
        redis_client.xgroup_createconsumer(STREAM, GROUP, name)
    read_and_die(redis_client, 1, "busy")

    with Records() as records:
        options: dict[str, Any] = {"claim_idle_ms": 3_600_000, "consumer_idle_ms": 1}
        with Running(redis_url, mysql_url, **options) as worker:
            eventually(lambda: "consumer_removed" in records.actions())
            assert worker.end() == 0

    assert [fields["removed"] for fields in records.fields("consumer_removed")] == ["idle"]
    assert consumers(redis_client) == ["busy"]


def test_what_is_lost_while_the_worker_waits_is_made_again_and_read_from_its_beginning(
    redis_url: str, redis_client: redis.Redis, mysql_url: str
) -> None:
    """The group, then the stream, then all that is in Redis."""
    traffic = Traffic(24)
    with watched(redis_url, mysql_url, batch_wait_ms=500) as (_, worker, oracle):

        def is_counted() -> None:
            eventually(lambda: settled(oracle, traffic))
            eventually(lambda: backlog(redis_client) == 0)

        fill(redis_client, traffic, 5)
        is_counted()
        with redis_client.pipeline(transaction=True) as pipeline:
            pipeline.xgroup_destroy(STREAM, GROUP)
            for _ in range(5):
                pipeline.xadd(STREAM, traffic.entry(now_ms(redis_client)).fields())
            pipeline.execute()
        is_counted()
        for lost in (("DEL", STREAM), ("FLUSHALL",)):
            command(redis_client, *lost)  # of the tests' own private server
            fill(redis_client, traffic, 5)
            is_counted()
        assert worker.end() == 0


def test_an_acknowledgement_spares_a_stream_id_that_belongs_to_another_event(
    redis_url: str, redis_client: redis.Redis, mysql_url: str
) -> None:
    traffic = Traffic(27)
    ours, theirs = (traffic.entry(now_ms(redis_client)) for _ in range(2))
    fields = [part for pair in theirs.fields().items() for part in pair]
    (stream_id,) = send(redis_client, ours)

    def reached(point: str) -> None:
        if point == "committed" and not happened:
            happened.append(point)
            # What a promoted replica may do: the same stream id for another event.
            redis_client.xdel(STREAM, stream_id)
            redis_client.delete(STREAM)
            command(redis_client, "XADD", STREAM, stream_id, *fields)

    happened: list[str] = []
    with watched(redis_url, mysql_url, reached=reached) as (_, worker, oracle):
        eventually(lambda: not oracle.differences(traffic.expected))
        assert worker.end() == 0
    assert happened
