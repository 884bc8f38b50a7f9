"""Recounts a tracked table beside its writers: rows per transaction, tries, and the errors if
others recount or the connection breaks; the table is read by ``check.py``.

The triggers are there first. Then, in one snapshot, what the counter holds and what the table holds
are added up, and the differences are added to the counter. Whatever is written meanwhile is in
neither side of the difference, or in both. So the count is exact without any lock on the table,
however long the counting takes and whatever the triggers, or compaction, do at the same time.

Two sessions do it: the first holds the row of ``tracked_table``, so that there is one recount of a
table at a time, and reads; the second writes the differences in short transactions. Where that ends
half-way, whoever runs it again finds what is still missing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from countersink.counting.counters.deletion_sql import EVERYTHING, delete_rows
from countersink.counting.errors import UnknownCounter
from countersink.counting.ledger import Posting, post
from countersink.database.errors import Unavailable
from countersink.database.session import Connect, Session, held, rerun, rerun_transaction
from countersink.database.sql import CELLS_PER_STATEMENT, label_time, parts
from countersink.row_counts.check import Cell, Progress, differences
from countersink.row_counts.definitions import TrackedTable, read, set_counted
from countersink.row_counts.encoding import DAY, LATE_DAY, NO_DAY, is_day
from countersink.row_counts.table import AppTable

IDLE_SECONDS: Final = 600
"""How long the first session may be silent while another one changes triggers or writes."""
CELLS_PER_COMMIT: Final = 10_000
"""Days and keys whose differences are written in one transaction."""
_TURN_ATTEMPTS: Final = 3
ROWS: Final = 1000
"""Rows per transaction."""
_FROM_A_KEY: Final = "counter = %s AND bucket = %s AND counter_key >= %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What a repair did.

    Attributes:
        tracked: the table, as it is tracked now.
        triggers: how many were made anew.
        rows: of the table, at the moment at which they were counted.
        cells: (day, key) whose count was wrong and has been put right.
        difference: what their corrections add up to.
    """

    tracked: TrackedTable
    triggers: int = 0
    rows: int
    cells: int
    difference: int


@contextmanager
def turn(connect: Connect, counter: str) -> Iterator[tuple[Session, TrackedTable]]:
    """Hold a tracked table's row, so that nobody else recounts it or changes its triggers.

    The transaction has no snapshot yet. Commit it, or it is rolled back as the session is closed.

    Raises:
        UnknownCounter: nothing is tracked as ``counter``.
        Conflict: somebody else has its turn.
    """
    with connect() as session:
        session.execute("SET SESSION wait_timeout = %s", (IDLE_SECONDS,))
        yield session, _take(session, counter)


def same_server(turn: Session, other: Session) -> None:
    """Check that a session is on the server on which somebody has the turn.

    Raises:
        Unavailable: it is not, as when another server took over meanwhile: there the turn is free.
    """
    if other.server != turn.server:
        raise Unavailable("another server than before takes writes now: run it again")


def uncounted(session: Session, tracked: TrackedTable) -> TrackedTable:
    """Let nobody take the counter for right while its triggers are changed; how it is tracked now.

    That is committed, and then the turn taken again.

    Args:
        session: holds the turn, and has no snapshot yet.
        tracked: how the table is counted.

    Raises:
        UnknownCounter: somebody has untracked it in between.
        Conflict: somebody else has had its turn in between, and goes on.
    """
    while tracked.counted is not None:
        set_counted(session, tracked.counter, False)
        session.commit()
        tracked = _take(session, tracked.counter)
    return tracked


def recount(
    session: Session, connect: Connect, tracked: TrackedTable, table: AppTable, progress: Progress
) -> Repaired:
    """Put a counter right; all triggers of the table are there. It commits the session.

    Args:
        session: holds the turn, and has no snapshot yet.
        connect: makes the session that writes.
        tracked: how the table is counted.
        table: the table.
        progress: told after each part of the table.

    Raises:
        TableChanged: it was truncated or altered meanwhile; nothing was changed.
        Unavailable: a connection broke, or another server takes writes now; if it was the one that
            wrote, run it again.
    """
    # No days, no midnights, or days that no row has.
    foreign = session.query(
        "SELECT DISTINCT bucket, width FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
        f" AND (width <> {DAY:d} OR TIME_TO_SEC(bucket) <> 0 OR bucket < %s OR bucket > %s)",
        (tracked.counter, NO_DAY, LATE_DAY),
    )
    found, rows = differences(session, tracked, table, progress)
    ordered = sorted((cell, amount) for cell, amount in found.items() if is_day(cell[0]))
    with connect() as writer:
        same_server(session, writer)
        rerun_transaction(writer, partial(_tidy, writer, tracked.counter, foreign))
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


def empty(session: Session, counter: str) -> None:
    """Delete a counter's rows in short transactions, each with its part of the ledger.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        counter: of which nobody but compaction writes rows any more.

    Raises:
        Conflict: others were in the way all the time; run it again.
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


def _take(session: Session, counter: str) -> TrackedTable:
    busy = f"the rows behind {counter} are being counted by somebody else just now"
    with held(busy, "let that end, or run this again later"):
        tracked = rerun(partial(_locked, session, counter), attempts=_TURN_ATTEMPTS)
    if tracked is None:
        raise UnknownCounter(f"no table is tracked as {counter!r}: see countersink track --list")
    return tracked


def _locked(session: Session, counter: str) -> TrackedTable | None:
    session.rollback()
    session.begin()
    return read(session, counter, " FOR UPDATE")


def _tidy(session: Session, counter: str, foreign: Sequence[tuple[Any, ...]]) -> None:
    """Delete what no trigger writes."""
    for bucket in foreign:
        where = "counter = %s AND bucket = %s AND width = %s"
        delete_rows(session, where, (counter, *bucket), EVERYTHING)
    # The row says that the counter was counted; the table itself is what it is held against.
    post(session, 0, [(counter, Posting())])


def _write(session: Session, counter: str, part: Sequence[tuple[Cell, int]]) -> None:
    """Add differences to slot 0."""
    into = "counter_slot (counter, bucket, counter_key, width, slot, amount)"
    clause = session.dialect.upsert_add("counter_slot", "amount")
    rows = [(counter, label_time(label), key, DAY, 0, amount) for (label, key), amount in part]
    session.insert_rows(into, rows, CELLS_PER_STATEMENT, clause)
