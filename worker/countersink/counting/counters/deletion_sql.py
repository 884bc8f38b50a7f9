"""The SQL that deletes rows of a counter, corrects the ledger by them, and deletes what backfills
wrote down; sizes and order are in ``deletion.py``.

To be run in a transaction at REPEATABLE READ. Each statement locks the rows and the gaps between
them, and deletes those same rows.

Each function for backfills is one transaction's work, and leaves what is written down as right as
it was: what goes with its amount goes over to the ledger of slot 0, from which the deletion of the
counter's rows takes what they hold; and a source loses its last chunks first, as if they had never
been read.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from countersink.counting.apply.cells import FIRST_SLOT
from countersink.counting.ledger import BucketSums, Posting, post
from countersink.counting.visitors import rows as sketches
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.database.sql import LABEL, label_time

Position = tuple[datetime, bytes]
"""The bucket and the key of a row."""

EVERYTHING: Final = 2**31 - 1
"""As a number of rows: all there are."""

LINKED_COUNTER: Final = "COALESCE(JSON_UNQUOTE(JSON_EXTRACT(counters, '$[0]')), '')"
"""The counter that a link shows, of a row of ``api_key``."""

_ORDER: Final = "bucket, counter_key, width, slot"


@dataclass(frozen=True, slots=True)
class Deleted:
    """How many rows were deleted, and their sum.

    Attributes:
        rows: how many.
        amount: their sum.
    """

    rows: int = 0
    amount: int = 0

    def __add__(self, other: "Deleted") -> "Deleted":
        return Deleted(self.rows + other.rows, self.amount + other.amount)


def rows_left(session: Session, counter: str, most: int = EVERYTHING) -> int:
    """How many rows a counter has; a scan of them, which ends after ``most``."""
    ((number,),) = session.query(
        "SELECT COUNT(*) FROM (SELECT 1 FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s LIMIT %s) AS there",
        (counter, most),
    )
    return int(number)


def delete_rows(
    session: Session, where: str, args: tuple[object, ...], size: int, wait: str = ""
) -> tuple[Deleted, Position | None]:
    """Delete the first ``size`` rows by the primary key; also where the last one was.

    Args:
        session: in a transaction.
        where: a range of the primary key; ``counter = %s`` comes first.
        args: the values for it; the counter comes first.
        size: how many.
        wait: `` NOWAIT``, or nothing.
    """
    rows: list[tuple[int, int, bytes, int]] = session.query(
        f"SELECT amount, {LABEL}, counter_key, slot FROM counter_slot FORCE INDEX (PRIMARY)"
        f" WHERE {where} ORDER BY {_ORDER} LIMIT %s FOR UPDATE{wait}",
        (*args, size),
    )
    if not rows:
        return Deleted(), None
    session.execute(
        f"DELETE FROM counter_slot WHERE {where} ORDER BY {_ORDER} LIMIT %s", (*args, len(rows))
    )
    counter, gone = str(args[0]), BucketSums()
    for amount, label, key, _ in rows:
        gone.add_row(counter, label, key, amount)
    _post(session, gone)
    sketches.delete(session, counter, [row[1:] for row in rows])
    _, label, key, _ = rows[-1]
    return Deleted(len(rows), sum(row[0] for row in rows)), (label_time(label), key)


def delete_buckets(
    session: Session, counter: str, key: bytes, after: datetime | None, size: int
) -> tuple[Deleted, datetime | None]:
    """Delete a key's rows in its next buckets; also the last bucket, None if all were deleted.

    By whole buckets: a page that ended in the midst of one would have to be sorted by slot, for
    which MySQL reads all rows of the key.

    Args:
        session: in a transaction.
        counter: the counter.
        key: the key.
        after: the last bucket of the page before; None to begin with.
        size: about how many rows.
    """
    rows = "counter_slot FORCE INDEX (by_key)"
    where = "counter = %s AND counter_key = %s"
    args: tuple[object, ...] = (counter, key)
    if after is not None:
        where, args = f"{where} AND bucket > %s", (*args, after)
    # Locking as well: a snapshot of now would lack the first sketch of a worker that is waited for.
    end = session.query(
        f"SELECT bucket FROM {rows} WHERE {where} ORDER BY bucket LIMIT 1 OFFSET %s FOR UPDATE",
        (*args, size - 1),
    )
    last: datetime | None = end[0][0] if end else None
    if last is not None:
        where, args = f"{where} AND bucket <= %s", (*args, last)
    found = session.query(
        f"SELECT {LABEL}, COUNT(*), SUM(amount) FROM {rows} WHERE {where}"
        " GROUP BY bucket, width FOR UPDATE",
        args,
    )
    number = sum(int(each[1]) for each in found)
    # With a table in front, as MariaDB knows no index hints without.
    gone = session.execute(f"DELETE counter_slot FROM {rows} WHERE {where}", args)
    if gone != number:
        raise Conflict(f"{number:,} rows were added up and {gone:,} deleted, so nothing was")
    sums = BucketSums()
    for label, _, amount in found:
        sums.add_row(counter, label, key, int(amount))
    _post(session, sums)
    sketches.delete_key(session, where, args)
    return Deleted(number, sum(int(each[2]) for each in found)), last


def _post(session: Session, gone: BucketSums) -> None:
    """Post that rows are gone, as they were found."""
    post(session, 0, [(counter, -posting) for counter, posting in gone.postings().items()])


_ROWS_PER_CHUNK: Final = 200
"""A chunk takes about as long as so many rows: its journal is long, as what its lines are known
by is."""
_OF_CHUNKS: Final = ("backfill_journal", "backfill_chunk", "backfill_sample")


def end_runs(session: Session, counter: str) -> None:
    """Let no run of a counter commit anything more."""
    session.execute(
        "UPDATE backfill_run SET state = 'deleted', ended = COALESCE(ended, UTC_TIMESTAMP(3)),"
        " error = COALESCE(error, 'its counter was deleted'), rejects = NULL"
        " WHERE counter = %s AND state NOT IN ('undone', 'deleted')",
        (counter,),
    )


def delete_corrections(session: Session, counter: str, size: int) -> bool:
    """Delete the first ``size`` corrections of one of the counter's runs, with what its sources say
    of other keys; whether there may be more.
    """
    found = session.query(
        "SELECT run FROM backfill_run JOIN backfill_correction ON run = id"
        " WHERE counter = %s LIMIT 1",
        (counter,),
    )
    if not found:
        return False
    ((run,),) = found
    rows = session.query(
        "SELECT COALESCE(should_be - had, 0) FROM backfill_correction WHERE run = %s"
        " ORDER BY bucket, width, counter_key LIMIT %s FOR UPDATE",
        (run, size),
    )
    session.execute(
        "DELETE FROM backfill_correction WHERE run = %s"
        " ORDER BY bucket, width, counter_key LIMIT %s",
        (run, len(rows)),
    )
    _to_slot_0(session, counter, sum(amount for (amount,) in rows))
    return True


def delete_chunks(session: Session, counter: str, size: int) -> bool:
    """Delete the last chunks of one of the counter's sources, and, when it has none left, the
    source; whether there may be more.
    """
    ((source,),) = session.query(
        "SELECT MIN(id) FROM backfill_source WHERE counter = %s", (counter,)
    )
    if source is None:
        return False
    # First of all, as everybody who reads on in it does.
    found = session.query(
        "SELECT truth_of FROM backfill_source WHERE id = %s FOR UPDATE", (source,)
    )
    if not found:
        return False
    chunks = session.query(
        "SELECT start_at, first_line, amount FROM backfill_chunk"
        " WHERE source = %s ORDER BY start_at DESC LIMIT %s FOR UPDATE",
        (source, max(1, size // _ROWS_PER_CHUNK)),
    )
    if not chunks:
        session.execute("DELETE FROM backfill_source WHERE id = %s", (source,))
        return True
    start_at, first_line, _ = chunks[-1]
    for table in _OF_CHUNKS:
        session.execute(
            f"DELETE FROM {table} WHERE source = %s AND start_at >= %s", (source, start_at)
        )
    # Nobody knows it by its head any more: it is no source to go on with.
    session.execute(
        "UPDATE backfill_source SET read_to = %s, lines_to = %s, head = %s WHERE id = %s",
        (start_at, first_line - 1, bytes(32), source),
    )
    if not found[0][0]:
        _to_slot_0(session, counter, sum(amount for _, _, amount in chunks))
    return True


def _to_slot_0(session: Session, counter: str, amount: int) -> None:
    # From one row of the ledger to another: the checksums, which are their sums, stay.
    post(session, 0, [(counter, Posting(amount))])
    post(session, FIRST_SLOT, [(counter, Posting(-amount))])
