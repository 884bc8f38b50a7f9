"""Entries that Redis loses while no worker runs: workers find out, and all that tells of an
installation tells of it."""

import json
from contextlib import ExitStack
from functools import partial

import pytest

from countersink.metrics.endpoint import installation_samples
from countersink.store import queue_losses
from countersink.store.connection import connect
from countersink.stream.names import stream_key
from countersink.stream.progress import samples
from countersink.worker import report
from tests.cli.command import call
from tests.support.traffic import Traffic
from tests.support.waiting import eventually
from tests.worker.running import Place, Records, count

pytestmark = pytest.mark.servers("mariadb", "mysql")
STREAM = stream_key(0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look often, and are certain soon."""
    monkeypatch.setattr(report, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(queue_losses, "LOOK_EVERY_MS", 10)
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 100)


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
    [shown] = document["lost"]["recent"]
    assert (shown["stream"], shown["entries"], shown["waited"]) == (STREAM, 2, 14)
    assert shown["since"] < shown["noticed_at"] <= document["at"]
    said = call("info", COLUMNS="200", **urls).out
    assert "at least 2 of 14 entries that waited in Redis" in said
    found = {sample.name: sample.value for sample in installation_samples(document)}
    assert found["countersink_entries_lost_total"] == 2
    doctor = call("doctor", "--format", "json", **urls)
    assert doctor.status == 1
    [line] = [each for each in json.loads(doctor.out)["lines"] if each["check"] == "queue losses"]
    assert line["status"] == "fail"
    assert line["found"].startswith(
        f"Redis has lost at least 2 of the 14 entries that waited in {STREAM}"
    )
    assert line["advice"].startswith("countersink backfill --mode reconcile")


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
    urls = {"COUNTERSINK_REDIS_URL": place.redis_url, "COUNTERSINK_MYSQL_URL": place.mysql_url}
    document = call("info", "--format", "json", **urls).json
    assert document["lost"] == {"entries": 0, "recent": []}
    assert "lost" not in call("info", **urls).out


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
