"""What others left behind or took away: dead consumers, orphans, vanished groups and streams; a
clock of Redis that was set back; entries that Redis lost while no worker ran."""

import json
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import redis

from countersink.counting.apply import queue_losses
from countersink.database.connection import connect
from countersink.metrics import installation_samples
from countersink.stream import group
from countersink.stream.connection import command
from countersink.stream.group import Group
from countersink.stream.names import GROUP, stream_key
from countersink.stream.progress import samples
from countersink.worker import report
from tests.cli.command import call
from tests.support.traffic import Traffic, backlog, now_ms
from tests.support.waiting import eventually
from tests.worker.running import Place, Records, count, settled

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
    monkeypatch.setattr(group, "DEAD_S", 3_600.0)
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


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look often, and are certain soon."""
    monkeypatch.setattr(report, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(queue_losses, "LOOK_EVERY_MS", 10)
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 100)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.usefixtures("soon")
def test_what_gathered_while_no_worker_ran_and_was_flushed(place: Place) -> None:
    counted = Traffic(1)
    place.fill(counted)
    place.drain()
    place.fill(Traffic(2), 14)
    with connect(place.mysql_url) as session:
        queue_losses.watch(session, partial(samples, place.client))  # as the job `alarms` does
    place.client.flushall()
    place.fill(counted)
    with Records() as records, ExitStack() as workers:
        for _ in range(2):
            workers.enter_context(place.running(batch_wait_ms=10))
        [lost] = eventually(lambda: records.fields("lost_in_redis"))
    assert len(records.fields("lost_in_redis")) == 1
    assert (lost["stream"], lost["entries"], lost["waited"]) == (STREAM, 2, 14)
    place.check(counted)

    urls = {"COUNTERSINK_REDIS_URL": place.redis_url, "COUNTERSINK_MYSQL_URL": place.mysql_url}
    document = call("info", "--format", "json", **urls).json
    assert document["lost"]["entries"] == 2
    said = call("info", COLUMNS="200", **urls).out
    assert "at least 2 of 14 entries that waited in Redis" in said
    found = {sample.name: sample.value for sample in installation_samples(document)}
    assert found["countersink_entries_lost_total"] == 2
    doctor = call("doctor", "--format", "json", **urls)
    assert doctor.status == 1
    [line] = [each for each in json.loads(doctor.out)["lines"] if each["check"] == "queue losses"]
    assert line["status"] == "fail"


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.usefixtures("soon")
def test_workers_that_apply_all_lose_nothing(place: Place) -> None:
    traffic = Traffic(1)
    with (
        place.watched(batch_wait_ms=10, batch_entries=5) as (records, _, oracle),
        place.running(batch_wait_ms=10, batch_entries=7),
    ):
        for _ in range(20):
            place.fill(traffic)
        eventually(lambda: not oracle.differences(traffic.expected))
        version = oracle.rows("SELECT version FROM queue_look")[0][0]
        place.client.flushall()  # an empty queue
        count(place.client, oracle, traffic)
        eventually(lambda: oracle.rows(f"SELECT version > {version + 20} FROM queue_look")[0][0])
        assert "lost_in_redis" not in records.actions()
        assert oracle.rows("SELECT losses FROM queue_look") == [("[]",)]


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.usefixtures("soon")
def test_a_refusal_is_said_and_entries_are_applied_all_the_same(place: Place) -> None:
    traffic = Traffic(1)
    place.fill(traffic)
    with connect(place.mysql_url) as session:
        session.execute("ALTER TABLE queue_look DROP COLUMN streams")
    with place.watched(batch_wait_ms=10) as (records, _, oracle):
        [failed] = eventually(
            lambda: [
                each for each in records.fields("chore_failed") if each["chore"] == "watch_losses"
            ]
        )
        eventually(lambda: not oracle.differences(traffic.expected))
    assert "streams" in failed["error"]
