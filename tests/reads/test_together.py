"""Several reads of one moment, for which the queue is read once, and no more of it than it may."""

from dataclasses import replace
from typing import Any

import pytest
import redis

import countersink.reads
from countersink.counting.apply.guards import bump, exclusive
from countersink.counting.counters.catalog import mark_days
from countersink.counting.totals.query import Query
from countersink.counting.totals.selection import Selection
from countersink.database.session import Session
from countersink.reads import ANYTHING, Bounds, EntrySums, Moment, Queue, Reads, read_queue
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from countersink.stream.errors import QueueReadStopped, QueueTooLong
from countersink.stream.names import PARTITIONS_KEY
from tests.reads.support import DAYS, Ground, minute_of
from tests.support.asking import Asking
from tests.support.traffic import now_ms, send

pytestmark = pytest.mark.servers("mariadb", "mysql")


@pytest.fixture
def times_read(monkeypatch: pytest.MonkeyPatch) -> list[Queue]:
    """Grows with every read of the queue."""
    read, found = read_queue, list[Queue]()

    def counted(client: redis.Redis, sums: EntrySums, bounds: Bounds) -> Queue:
        found.append(read(client, sums, bounds))
        return found[-1]

    monkeypatch.setattr("countersink.reads.read_queue", counted)
    return found


def test_all_reads_are_of_one_moment(ground: Ground, times_read: list[Queue]) -> None:
    ground.queue(("views", "/", 0, 1), ("clicks", "", 0, 20))
    ground.apply(acknowledge=True)
    ground.queue(("views", "/", 0, 300), ("clicks", "", 0, 4000))

    def work(moment: Moment) -> list[Any]:
        def total(counter: str) -> Any:
            return moment.ask(Query(Selection(counter), by="total")).rows

        found = total("views")
        ground.apply(acknowledge=True)
        ground.queue(("clicks", "", 0, 50_000))
        return [*found, *total("clicks"), *total("views")]

    with_pending = replace(ANYTHING, include_pending=True)
    assert Reads(ground.store, ground.client).read(work, with_pending) == [(301,), (4020,), (301,)]
    assert len(times_read) == 1


def test_no_more_of_the_queue_is_read_than_may_be(ground: Ground) -> None:
    ground.client.set(PARTITIONS_KEY, 2)
    for partition in (0, 1, 1):
        ground.queue(("views", "/", 0, 1), ("views", "/a", 1, 2), partition=partition)

    def total(**bounds: Any) -> int:
        reads = Asking(ground.store, ground.client, Bounds(**bounds))
        return int(reads.total("views", include_pending=True).value)

    assert total(entries=3, rows=6) == 9
    with pytest.raises(QueueTooLong, match="more than 2 entries"):
        total(entries=2)
    with pytest.raises(QueueTooLong, match="more than 5 rows"):
        total(rows=5)


def test_reading_the_queue_ends_between_pages(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(countersink.reads, "_PAGE", 2)
    for _ in range(6):
        ground.queue(("views", "/", 0, 1))
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(len(asked) == 1)
        return asked[-1]

    with pytest.raises(QueueReadStopped):
        Asking(ground.store, ground.client, Bounds(stop=stop)).total("views", include_pending=True)
    assert asked == [False, True]


def mark(session: Session, sent_before: int) -> None:
    """Mark the first day."""

    def work(_: object) -> None:
        mark_days(session, "views", 7, sent_before, [DAYS[0]])
        bump(session)

    exclusive(session, work)


def wait(
    client: redis.Redis, at: int, *rows: tuple[str, int, int], made: int | None = None
) -> None:
    """Send an entry of (key, day, amount)."""
    content = [("views", key, minute_of(day), amount) for key, day, amount in rows]
    send(client, Sealed(new_entry_id(made or at), at, encode_rows(content)))


def test_what_was_accepted_before_is_not_pending(ground: Ground) -> None:
    reads = Asking(ground.store, ground.client)
    now = now_ms(ground.client)
    t0 = now - 60_000
    wait(ground.client, t0 - 1, ("/", 0, 1), ("/", 1, 10))
    wait(ground.client, now, ("/", 0, 100), made=t0 - 5000)  # out of a spool
    wait(ground.client, t0, ("/", 0, 1000), ("/a", 0, 2000))
    assert reads.total("views", include_pending=True).value == 3111
    mark(ground.session, t0)
    found = reads.total("views", include_pending=True)
    assert (found.value, found.pending) == (3010, 3)
    assert reads.total("views", key="/", include_pending=True).value == 1010
    assert reads.counters(include_pending=True).value == {"views": 3010}
    # The worker agrees.
    ground.apply(acknowledge=False)
    assert reads.total("views").value == 3010
    assert reads.total("views", include_pending=True).value == 3010


def test_a_day_that_is_reconciled_while_the_queue_is_read(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Asking(ground.store, ground.client)
    now = now_ms(ground.client)
    wait(ground.client, now - 1, ("/", 0, 1))
    read = read_queue
    times = 0

    def read_and_mark(client: redis.Redis, sums: EntrySums, bounds: Bounds) -> Queue:
        nonlocal times
        times += 1
        found = read(client, sums, bounds)
        if times == 1:
            mark(ground.session, now)
        return found

    monkeypatch.setattr("countersink.reads.read_queue", read_and_mark)
    found = reads.counters(include_pending=True)
    assert (found.value, times) == ({}, 2)
