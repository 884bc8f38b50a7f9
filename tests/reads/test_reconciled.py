"""Pending entries of reconciled days: what the worker will not count is not counted here."""

import pytest
import redis

from countersink.reads.pending import Bounds, Folding, Queue, read_queue
from countersink.store import Store
from countersink.store.apply.control import bump, exclusive
from countersink.store.connection import Session
from countersink.store.counters.catalog import mark_days
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.reads.support import DAYS, apply_all, minute_of
from tests.support.asking import Asking
from tests.support.traffic import now_ms, send

pytestmark = pytest.mark.servers("mariadb", "mysql")


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


def test_what_was_accepted_before_is_not_pending(
    store: Store, session: Session, redis_client: redis.Redis, mysql_url: str
) -> None:
    reads = Asking(store, redis_client)
    now = now_ms(redis_client)
    t0 = now - 60_000
    wait(redis_client, t0 - 1, ("/", 0, 1), ("/", 1, 10))
    wait(redis_client, now, ("/", 0, 100), made=t0 - 5000)  # out of a spool
    wait(redis_client, t0, ("/", 0, 1000), ("/a", 0, 2000))
    assert reads.total("views", include_pending=True).value == 3111
    mark(session, t0)
    found = reads.total("views", include_pending=True)
    assert (found.value, found.pending) == (3010, 3)
    assert reads.total("views", key="/", include_pending=True).value == 1010
    assert reads.counters(include_pending=True).value == {"views": 3010}
    # The worker agrees.
    apply_all(redis_client, mysql_url, acknowledge=False)
    assert reads.total("views").value == 3010
    assert reads.total("views", include_pending=True).value == 3010


def test_a_day_that_is_reconciled_while_the_queue_is_read(
    store: Store, session: Session, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Asking(store, redis_client)
    now = now_ms(redis_client)
    wait(redis_client, now - 1, ("/", 0, 1))
    read = read_queue
    times = 0

    def read_and_mark(client: redis.Redis, folding: Folding, bounds: Bounds) -> Queue:
        nonlocal times
        times += 1
        found = read(client, folding, bounds)
        if times == 1:
            mark(session, now)
        return found

    monkeypatch.setattr("countersink.reads.pending.read_queue", read_and_mark)
    found = reads.counters(include_pending=True)
    assert (found.value, times) == ({}, 2)
