"""The recount of a tracked table, which can be written to meanwhile. See ``check.py`` for the way
in which rows are counted.

The triggers exist before the recount begins. Then the counter and the table are counted in one
snapshot, and the differences are added to the counter. A change that commits before the snapshot is
in both, and a change that commits later is in neither. So the count is exact without a lock on the
table, however long the counting takes, and whatever triggers and compaction do meanwhile.

A recount uses two sessions. The first one locks the row of ``tracked_table``, so that a table has
only one recount at a time, and reads. The second one writes the differences in short transactions.
If a recount is interrupted, the next one finds the remaining differences.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from countersink.counting.counters.deletion_sql import EVERYTHING, delete_rows
from countersink.counting.errors import UnknownCounter
from countersink.counting.ledger import post_transfer
from countersink.database.errors import Unavailable
from countersink.database.session import Connect, Session, explained, rerun, rerun_transaction
from countersink.database.sql import CELLS_PER_STATEMENT, label_time, parts
from countersink.row_counts.check import Cell, Progress, differences
from countersink.row_counts.definitions import TrackedTable, read, set_counted
from countersink.row_counts.keys import DAY, LATE_DAY, NO_DAY, is_day
from countersink.row_counts.table import AppTable

IDLE_SECONDS: Final = 600
"""Seconds for which the first session may be idle while another session changes triggers or
writes."""
CELLS_PER_COMMIT: Final = 10_000
"""Number of cells whose differences are written in one transaction."""
_LOCK_ATTEMPTS: Final = 3
ROWS: Final = 1000
"""Number of rows that are deleted in one transaction."""
_FROM_A_KEY: Final = "counter = %s AND bucket = %s AND counter_key >= %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The result of a repair.

    Attributes:
        tracked: the tracked table.
        triggers: number of triggers that were created, because they were missing or wrong.
        rows: number of rows of the table when they were counted.
        cells: number of cells (day and key) that were corrected.
        difference: sum of these corrections; below 0 if the counter had too many rows.
    """

    tracked: TrackedTable
    triggers: int = 0
    rows: int
    cells: int
    difference: int


@contextmanager
def locked(connect: Connect, counter: str) -> Iterator[tuple[Session, TrackedTable]]:
    """Open a session that locks the row of a tracked table, so that no other process recounts the
    table or changes its triggers. A context manager: it yields the session and the tracked table.

    The session is in a transaction that has no snapshot yet. The transaction is rolled back unless
    the block commits it.

    Args:
        connect: opens a session at REPEATABLE READ.
        counter: the counter of the tracked table.

    Raises:
        UnknownCounter: ``counter`` has no tracked table.
        Conflict: another process held the lock at each attempt.
    """
    with connect() as session:
        session.execute("SET SESSION wait_timeout = %s", (IDLE_SECONDS,))
        yield session, _lock(session, counter)


def require_same_server(holder: Session, other: Session) -> None:
    """Check that ``other`` is on the same server as ``holder``, a session from :func:`locked`,
    because a row lock of one server does not hold on another.

    Raises:
        Unavailable: they are on different servers, because writes go to another server since a
            failover.
    """
    if other.server != holder.server:
        raise Unavailable("another server takes writes now: run this again")


def mark_uncounted(session: Session, tracked: TrackedTable) -> TrackedTable:
    """Record in the row of ``tracked_table`` that the counter may be wrong from now on, before
    triggers are changed, so that ``row_count()`` refuses to answer from it. A complete recount ends
    this. Return the tracked table with ``counted`` None.

    The change of the row is committed, which releases the lock; then the lock is taken again. If
    the row says so already (its ``counted`` is NULL), nothing is done.

    Args:
        session: a session from :func:`locked` that has no snapshot yet.
        tracked: the tracked table.

    Raises:
        UnknownCounter: the table was untracked before the lock was taken again.
        Conflict: another process has taken the lock in between, and holds it.
    """
    while tracked.counted is not None:
        set_counted(session, tracked.counter, False)
        session.commit()
        tracked = _lock(session, tracked.counter)
    return tracked


def recount(
    session: Session, connect: Connect, tracked: TrackedTable, table: AppTable, progress: Progress
) -> Repaired:
    """Count the rows of a tracked table whose triggers all exist, correct its counter, record that
    the counter is right (``counted``), and commit ``session``. Return what was corrected;
    ``triggers`` of the result is 0.

    Args:
        session: a session from :func:`locked` that has no snapshot yet.
        connect: opens the second session, which writes.
        tracked: the tracked table.
        table: the application's table, as read from the server.
        progress: called with the number of rows counted so far and an estimate of all rows: at the
            beginning, after each range of rows, and at the end.

    Raises:
        TableChanged: the table was truncated or altered meanwhile. Nothing was changed.
        Unavailable: a connection broke, or another server takes writes now. Run this again.
        Conflict: each attempt to write conflicted with another transaction. Run this again.
    """
    # Buckets that are not days, or are days that no row has.
    foreign = session.query(
        "SELECT DISTINCT bucket, width FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
        f" AND (width <> {DAY:d} OR TIME_TO_SEC(bucket) <> 0 OR bucket < %s OR bucket > %s)",
        (tracked.counter, NO_DAY, LATE_DAY),
    )
    found, rows = differences(session, tracked, table, progress)
    ordered = sorted((cell, amount) for cell, amount in found.items() if is_day(cell[0]))
    with connect() as writer:
        require_same_server(session, writer)
        rerun_transaction(writer, partial(_delete_foreign, writer, tracked.counter, foreign))
        for part in parts(ordered, CELLS_PER_COMMIT):
            rerun_transaction(writer, partial(_write, writer, tracked.counter, part))
    set_counted(session, tracked.counter, True)
    session.commit()
    return Repaired(
        tracked=tracked,
        rows=rows,
        cells=len(found),
        difference=sum(found.values()),
    )


def delete_all_rows(session: Session, counter: str) -> None:
    """Delete all rows that a counter has in ``counter_slot``, in transactions of up to
    :data:`ROWS` rows, after ``untrack`` has dropped the triggers. Each transaction also subtracts
    the deleted amounts from the ledger. The application's table stays as it is.

    Args:
        session: a session at REPEATABLE READ, outside a transaction.
        counter: the counter. No trigger may write its rows any more; compaction may.

    Raises:
        Conflict: each attempt conflicted with another transaction. Run this again.
    """
    buckets = session.query(
        "SELECT DISTINCT bucket FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s",
        (counter,),
    )
    for (bucket,) in buckets:
        key: bytes | None = b""
        while key is not None:
            place = (counter, bucket, key)
            page = partial(delete_rows, session, _FROM_A_KEY, place, ROWS)
            _, last = rerun_transaction(session, page)
            key = None if last is None else last[1]


def _lock(session: Session, counter: str) -> TrackedTable:
    busy = f"another process is counting the rows of the table of {counter}"
    with explained(busy, "wait for its end, or run this again later"):
        tracked = rerun(partial(_try_lock, session, counter), attempts=_LOCK_ATTEMPTS)
    if tracked is None:
        raise UnknownCounter(f"no table is tracked as {counter!r}: see countersink track --list")
    return tracked


def _try_lock(session: Session, counter: str) -> TrackedTable | None:
    session.rollback()
    session.begin()
    return read(session, counter, " FOR UPDATE")


def _delete_foreign(session: Session, counter: str, foreign: Sequence[tuple[Any, ...]]) -> None:
    """Delete a counter's rows of the buckets ``foreign`` (beginning and width). No trigger writes
    these buckets: they are not whole days, or not from 1969-12-31 to 9999-12-26. Insert the
    counter's row in the ledger, if there is none: it marks the counter as counted.
    """
    for bucket in foreign:
        where = "counter = %s AND bucket = %s AND width = %s"
        delete_rows(session, where, (counter, *bucket), EVERYTHING)
    # A ledger row marks the counter as counted; verify compares it with the table instead.
    post_transfer(session, counter, 0)


def _write(session: Session, counter: str, part: Sequence[tuple[Cell, int]]) -> None:
    """Add the differences in ``part`` (pairs of a cell and a number) to the counter, in slot 0.
    They are not posted to the ledger: ``verify`` compares this counter with its table instead.
    """
    into = "counter_slot (counter, bucket, counter_key, width, slot, amount)"
    clause = session.dialect.upsert_add("counter_slot", "amount")
    rows = [(counter, label_time(label), key, DAY, 0, amount) for (label, key), amount in part]
    session.insert_rows(into, rows, CELLS_PER_STATEMENT, clause)
