"""SQL that deletes rows of a counter, subtracts them from the ledger, and deletes the records of
its backfills. See ``deletion.py`` for sizes and order.

It runs in a transaction at REPEATABLE READ: the SELECT … FOR UPDATE locks rows and the gaps between
them, so that the DELETE finds the same rows.

Each function for backfills does the work of one transaction, after which the records are
consistent: the amounts of deleted chunks and corrections move to the ledger of slot 0, from which
the deletion of the counter's rows subtracts; and a source loses its last chunks first, as if they
had not been read yet.
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
"""(bucket, key) of a row."""

EVERYTHING: Final = 2**31 - 1
"""A number of rows that means all rows."""

LINKED_COUNTER: Final = "COALESCE(JSON_UNQUOTE(JSON_EXTRACT(counters, '$[0]')), '')"
"""SQL: the counter that the share link of a row of ``api_key`` shows."""

_ORDER: Final = "bucket, counter_key, width, slot"


@dataclass(frozen=True, slots=True)
class Deleted:
    """Number of deleted rows, and the sum of their amounts."""

    rows: int = 0
    amount: int = 0

    def __add__(self, other: "Deleted") -> "Deleted":
        return Deleted(self.rows + other.rows, self.amount + other.amount)


def rows_left(session: Session, counter: str, most: int = EVERYTHING) -> int:
    """Number of rows of a counter, by a scan that ends after ``most`` rows."""
    ((number,),) = session.query(
        "SELECT COUNT(*) FROM (SELECT 1 FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s LIMIT %s) AS there",
        (counter, most),
    )
    return int(number)


def delete_rows(
    session: Session, where: str, args: tuple[object, ...], size: int, wait: str = ""
) -> tuple[Deleted, Position | None]:
    """Delete the first ``size`` rows by the primary key; the second result is the position of the
    last row.

    Args:
        session: in a transaction.
        where: a range of the primary key, beginning with ``counter = %s``.
        args: its values, beginning with the counter.
        size: maximum number of rows.
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
    counter, deleted = str(args[0]), BucketSums()
    for amount, label, key, _ in rows:
        deleted.add_row(counter, label, key, amount)
    _subtract(session, deleted)
    sketches.delete(session, counter, [row[1:] for row in rows])
    _, label, key, _ = rows[-1]
    return Deleted(len(rows), sum(row[0] for row in rows)), (label_time(label), key)


def delete_buckets(
    session: Session, counter: str, key: bytes, after: datetime | None, size: int
) -> tuple[Deleted, datetime | None]:
    """Delete a key's rows in its next buckets; the second result is the last bucket, None if all
    rows were deleted.

    Deletes all rows of a bucket: to end within a bucket, rows would have to be sorted by slot, for
    which MySQL reads all rows of the key.

    Args:
        session: in a transaction.
        counter: the counter's name.
        key: the key's bytes.
        after: last bucket of the previous page; None for the first page.
        size: approximate number of rows.
    """
    rows = "counter_slot FORCE INDEX (by_key)"
    where = "counter = %s AND counter_key = %s"
    args: tuple[object, ...] = (counter, key)
    if after is not None:
        where, args = f"{where} AND bucket > %s", (*args, after)
    # With a lock, too: a snapshot taken now would lack the first sketch of a worker whose lock is
    # waited for.
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
    # With a table name after DELETE: without it MariaDB accepts no index hint.
    deleted = session.execute(f"DELETE counter_slot FROM {rows} WHERE {where}", args)
    if deleted != number:
        raise Conflict(f"{number:,} rows were found and {deleted:,} deleted: rolled back")
    sums = BucketSums()
    for label, _, amount in found:
        sums.add_row(counter, label, key, int(amount))
    _subtract(session, sums)
    sketches.delete_key(session, where, args)
    return Deleted(number, sum(int(each[2]) for each in found)), last


def _subtract(session: Session, deleted: BucketSums) -> None:
    """Subtract deleted rows from the ledger of slot 0."""
    post(session, 0, [(counter, -posting) for counter, posting in deleted.postings().items()])


_ROWS_PER_CHUNK: Final = 200
"""Rows whose deletion takes about as long as that of one chunk, which has a long journal."""
_OF_CHUNKS: Final = ("backfill_journal", "backfill_chunk", "backfill_sample")


def end_runs(session: Session, counter: str) -> None:
    """End all runs of a counter's backfills: they commit nothing more."""
    session.execute(
        "UPDATE backfill_run SET state = 'deleted', ended = COALESCE(ended, UTC_TIMESTAMP(3)),"
        " error = COALESCE(error, 'its counter was deleted'), rejects = NULL"
        " WHERE counter = %s AND state NOT IN ('undone', 'deleted')",
        (counter,),
    )


def delete_corrections(session: Session, counter: str, size: int) -> bool:
    """Delete the first ``size`` corrections of one of the counter's runs, including records of keys
    that were right; whether there may be more.
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
    """Delete the last chunks of one of the counter's sources, or the source if it has no chunks;
    whether there may be more.
    """
    ((source,),) = session.query(
        "SELECT MIN(id) FROM backfill_source WHERE counter = %s", (counter,)
    )
    if source is None:
        return False
    # Locked before the chunks, as by a run that continues the source.
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
    # Without its head no run recognizes the source, so no run continues it.
    session.execute(
        "UPDATE backfill_source SET read_to = %s, lines_to = %s, head = %s WHERE id = %s",
        (start_at, first_line - 1, bytes(32), source),
    )
    if not found[0][0]:
        _to_slot_0(session, counter, sum(amount for _, _, amount in chunks))
    return True


def _to_slot_0(session: Session, counter: str, amount: int) -> None:
    # From one row of the ledger to another: checksums over all slots stay equal.
    post(session, 0, [(counter, Posting(amount))])
    post(session, FIRST_SLOT, [(counter, Posting(-amount))])
