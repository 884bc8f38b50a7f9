"""A thread for each partition, as on a Redis Cluster, here on one server: what they read counts
once, and a partition that cannot be read holds up no other."""

import threading

import pytest
import redis

from countersink.stream.connection import command
from countersink.stream.group import READ_BYTES
from countersink.stream.names import GROUP, PARTITIONS_KEY, stream_key
from countersink.stream.progress import Heartbeat
from countersink.worker import readers
from countersink.worker.intake import Intake, ReadBatch
from countersink.worker.report import Vitals
from tests.support.traffic import Traffic, backlog, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import Place, Records, feeding, settled

PARTITIONS = 4
BROKEN = 2
"""The partition that cannot be read in some tests."""


@pytest.fixture(autouse=True)
def _by_readers(monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis) -> None:
    """Workers read as they do on a cluster."""
    monkeypatch.setattr("countersink.worker.is_cluster", lambda url: True)
    redis_client.set(PARTITIONS_KEY, PARTITIONS)


def fill(client: redis.Redis, traffic: Traffic, count: int = 40, without: int = -1) -> None:
    """Send entries to all partitions but one."""
    used = [number for number in range(PARTITIONS) if number != without]
    for number in range(count):
        entry = traffic.entry(now_ms(client))
        send(client, entry, partition=used[number % len(used)])


def pending(client: redis.Redis) -> int:
    streams = [stream_key(number) for number in range(PARTITIONS)]
    return sum(int(command(client, "XPENDING", stream, GROUP)[0]) for stream in streams)


def test_all_threads_together_read_as_much_at_once_as_one_would(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Noting(Intake):
        def next(self, *, fresh: bool = True) -> ReadBatch:
            seen.append(self._group.max_bytes)
            return super().next(fresh=fresh)

    monkeypatch.setattr(readers, "Intake", Noting)
    place.drain()
    assert set(seen) == {READ_BYTES // PARTITIONS}


def test_a_partition_that_cannot_be_read_holds_up_no_other(place: Place) -> None:
    traffic, vitals = Traffic(203), Vitals()
    place.client.set(stream_key(BROKEN), "no stream")
    with place.watched(vitals=vitals) as (records, worker, oracle):
        for _ in range(2):
            fill(place.client, traffic, without=BROKEN)
            eventually(lambda: settled(oracle, traffic))
        eventually(lambda: "waiting" in records.actions())
        assert records.fields("waiting")[0]["partitions"] == str(BROKEN)
        eventually(lambda: vitals.figures.away == str(BROKEN))
        eventually(lambda: vitals.figures.state == "idle")  # so it is ready
        assert "WRONGTYPE" in vitals.figures.last_error
        place.client.delete(stream_key(BROKEN))
        fill(place.client, traffic)
        eventually(lambda: settled(oracle, traffic))
        eventually(lambda: "resumed" in records.actions())
        eventually(lambda: vitals.figures.away == "")
        assert worker.end() == 0
    assert len(records.fields("waiting")) == 1
    assert backlog(place.client, PARTITIONS) == 0


def test_a_worker_that_can_read_no_partition_is_not_ready(place: Place) -> None:
    vitals = Vitals()
    for number in range(PARTITIONS):
        place.client.set(stream_key(number), "no stream")
    with place.watched(vitals=vitals) as (records, worker, _):
        eventually(lambda: vitals.figures.state == "waiting" and vitals.figures.away == "0,1,2,3")
        assert worker.end() == 0
    assert len(records.fields("waiting")) <= PARTITIONS


def test_a_drain_waits_for_a_partition_that_cannot_be_read(place: Place) -> None:
    traffic = Traffic(204)
    place.client.set(stream_key(BROKEN), "no stream")
    fill(place.client, traffic, without=BROKEN)
    with place.watched(drain=True) as (records, worker, oracle):
        eventually(lambda: settled(oracle, traffic))
        eventually(lambda: "waiting" in records.actions())
        assert "drained" not in records.actions()
        place.client.delete(stream_key(BROKEN))
        fill(place.client, traffic)
        assert worker.join() == 0
        oracle.check(traffic.expected)
    assert backlog(place.client, PARTITIONS) == 0


def test_a_drain_looks_again_at_what_was_empty_while_others_were_busy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic, empty = Traffic(211), set[str]()

    class Noting(Intake):
        def next(self, *, fresh: bool = True) -> ReadBatch:
            batch = super().next(fresh=fresh)
            if batch.drained:
                empty.update(self._group.streams)
            return batch

    monkeypatch.setattr(readers, "Intake", Noting)
    for _ in range(20):
        send(place.client, traffic.entry(now_ms(place.client)), partition=BROKEN)
    late: list[str] = []

    def reached(point: str) -> None:
        if point == "read" and not late:
            eventually(lambda: len(empty) == PARTITIONS - 1)
            late.append(send(place.client, traffic.entry(now_ms(place.client)), partition=0)[0])

    place.drain(batch_entries=5, reached=reached)
    assert late
    place.check(traffic)
    assert backlog(place.client, PARTITIONS) == 0


def test_a_heartbeat_that_has_to_wait_holds_up_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic, thaw, frozen = Traffic(212), threading.Event(), threading.Event()

    def publish(self: Heartbeat, *, now: bool = False) -> None:
        frozen.set()
        thaw.wait()

    monkeypatch.setattr(Heartbeat, "publish", publish)
    try:
        with place.watched() as (_, worker, oracle):
            eventually(frozen.is_set)
            fill(place.client, traffic)
            eventually(lambda: settled(oracle, traffic))
            thaw.set()
            assert worker.end() == 0
    finally:
        thaw.set()


def test_a_stop_under_load_leaves_nothing_pending(place: Place) -> None:
    traffic = Traffic(207)
    with (
        place.watched(batch_entries=5) as (records, worker, oracle),
        feeding(lambda: fill(place.client, traffic, 8)),
    ):
        eventually(lambda: oracle.guards() > 30)
        assert worker.end() == 0
    assert records.fields("stopped")[0]["pending"] == 0
    assert pending(place.client) == 0
    for number in range(PARTITIONS):
        assert place.client.xinfo_consumers(stream_key(number), GROUP) == []
    place.drain()
    place.check(traffic)


def test_what_was_read_and_not_applied_at_a_stop_stays_pending_and_comes_again(
    place: Place,
) -> None:
    traffic = Traffic(208)
    with place.watched() as (records, worker, oracle):
        eventually(lambda: "ready" in records.actions())
        oracle.rows("RENAME TABLE counter_slot TO away")
        fill(place.client, traffic)
        eventually(lambda: "waiting" in records.actions())
        assert worker.end() == 1
        oracle.rows("RENAME TABLE away TO counter_slot")
    assert records.fields("stopped")[0]["pending"] == pending(place.client) > 0
    place.drain(claim_idle_ms=1)
    place.check(traffic)


def test_what_was_applied_and_not_acknowledged_at_a_stop_counts_once(place: Place) -> None:
    traffic = Traffic(209)
    fill(place.client, traffic)

    hidden: list[str] = []

    def reached(point: str) -> None:
        if point == "committed" and not hidden:  # the threads cannot acknowledge any more
            for number in range(PARTITIONS):
                hidden.append(stream_key(number))
                place.client.rename(hidden[-1], f"hidden:{number}")
                place.client.set(hidden[-1], "no stream")

    with Records() as records, place.running(reached=reached) as worker:
        eventually(lambda: "batch" in records.actions())
        eventually(lambda: "waiting" in records.actions())
        assert worker.end() == 1
    for number, stream in enumerate(hidden):
        place.client.rename(f"hidden:{number}", stream)
    place.drain(claim_idle_ms=1)
    place.check(traffic)
    assert backlog(place.client, PARTITIONS) == 0


def test_a_bug_in_a_thread_ends_the_worker(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Intake):
        def next(self, *, fresh: bool = True) -> ReadBatch:
            raise RecursionError("a bug")

    monkeypatch.setattr(readers, "Intake", Broken)
    with Records() as records:
        assert place.running().start().join() == 1
    assert "crashed" in records.actions()
