"""Several reads of one moment, for which the queue is read once, and no more of it than it may."""

from dataclasses import replace
from typing import Any

import pytest
import redis

from countersink.reads import ANYTHING, Moment, Reads, pending
from countersink.reads.errors import QueueReadStopped, QueueTooLong
from countersink.reads.pending import Bounds, Folding, Queue, read_queue
from countersink.store import Store
from countersink.store.connection import connect
from countersink.store.totals.query import Query
from countersink.store.totals.selection import Selection
from countersink.stream.names import PARTITIONS_KEY
from tests.reads.support import DAYS, apply_all
from tests.reads.support import queue as send
from tests.store.width_rows import put_scheme
from tests.support.asking import Asking

pytestmark = pytest.mark.servers("mariadb", "mysql")


@pytest.fixture
def times_read(monkeypatch: pytest.MonkeyPatch) -> list[Queue]:
    """Grows with every read of the queue."""
    read, found = read_queue, list[Queue]()

    def counted(client: redis.Redis, folding: Folding, bounds: Bounds) -> Queue:
        found.append(read(client, folding, bounds))
        return found[-1]

    monkeypatch.setattr("countersink.reads.pending.read_queue", counted)
    return found


ASKED: list[Query] = [
    *(Query(Selection(), by=by) for by in ("day", "hour", "month", "total", "key")),
    Query(Selection(keys=("/", "/new")), by="day"),
    Query(Selection(keys=("/", "/new")), by="key"),
    Query(Selection(keys=("/",)), by="total"),
    Query(Selection(start=DAYS[1], end=DAYS[2]), by="day"),
    Query(Selection(start=DAYS[2]), by="key", top=2),
    Query(Selection(end=DAYS[1]), by="total"),
    Query(Selection(), by="counter"),
    Query(Selection(start=DAYS[1]), by="counter", top=2),
]


def test_a_question_is_answered_as_once_all_is_applied(
    store: Store, redis_client: redis.Redis, mysql_url: str, times_read: list[Queue]
) -> None:
    with connect(mysql_url) as session:
        put_scheme(session, "views", "Europe/Berlin", "hour")
    old = [("views", "/", 0, 1), ("views", "/a", 2, 20), ("plays", "", 1, 300)]
    send(redis_client, *old)
    apply_all(redis_client, mysql_url, acknowledge=False)
    new = [
        ("views", "/new", 1, 4),
        ("views", "/", 2, 50),
        ("plays", "/", 3, 6),
        ("only", "/", 1, 7),
    ]
    send(redis_client, *new)
    reads = Asking(store, redis_client)
    questions = [
        replace(query, selection=replace(query.selection, counter=counter))
        for query in ASKED
        for counter in (None, "views")
        if (query.by != "hour" or counter) and (query.by != "counter" or not counter)
    ]
    pending = []
    for number, query in enumerate(questions, 1):
        pending.append(reads.ask(replace(query, include_pending=True)))
        assert len(times_read) == number
        assert pending[-1].pending == 1
    apply_all(redis_client, mysql_url, acknowledge=True)
    for query, found in zip(questions, pending, strict=True):
        assert found.rows == reads.ask(query).rows, query


def test_all_reads_are_of_one_moment(
    store: Store, redis_client: redis.Redis, mysql_url: str, times_read: list[Queue]
) -> None:
    send(redis_client, ("views", "/", 0, 1), ("clicks", "", 0, 20))
    apply_all(redis_client, mysql_url, acknowledge=True)
    send(redis_client, ("views", "/", 0, 300), ("clicks", "", 0, 4000))

    def work(moment: Moment) -> list[Any]:
        def total(counter: str) -> Any:
            return moment.ask(Query(Selection(counter), by="total")).rows

        found = total("views")
        apply_all(redis_client, mysql_url, acknowledge=True)
        send(redis_client, ("clicks", "", 0, 50_000))
        return [*found, *total("clicks"), *total("views")]

    with_pending = replace(ANYTHING, include_pending=True)
    assert Reads(store, redis_client).read(work, with_pending) == [(301,), (4020,), (301,)]
    assert len(times_read) == 1


def test_no_more_of_the_queue_is_read_than_may_be(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(PARTITIONS_KEY, 2)
    for partition in (0, 1, 1):
        send(redis_client, ("views", "/", 0, 1), ("views", "/a", 1, 2), partition=partition)

    def total(**bounds: Any) -> int:
        reads = Asking(store, redis_client, Bounds(**bounds))
        return int(reads.total("views", include_pending=True).value)

    assert total(entries=3, rows=6) == 9
    with pytest.raises(QueueTooLong, match="more than 2 entries"):
        total(entries=2)
    with pytest.raises(QueueTooLong, match="more than 5 rows"):
        total(rows=5)


def test_reading_the_queue_ends_between_pages(
    store: Store, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "_PAGE", 2)
    for _ in range(6):
        send(redis_client, ("views", "/", 0, 1))
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(len(asked) == 1)
        return asked[-1]

    with pytest.raises(QueueReadStopped):
        Asking(store, redis_client, Bounds(stop=stop)).total("views", include_pending=True)
    assert asked == [False, True]
