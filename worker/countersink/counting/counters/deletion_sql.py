"""SQL that deletes rows of a counter and subtracts them from the ledger, and that deletes the
records of the counter's backfills. See ``deletion.py`` for the order of these steps, and their
sizes.

All functions that delete run in a transaction at REPEATABLE READ. There, SELECT … FOR UPDATE locks
the rows and the gaps between them, so the DELETE that follows finds the same rows.

Backfills post their amounts to the ledger's rows of slots 512 to 1023. ``verify`` compares these
rows with the records of backfills (chunks and corrections). So a function that deletes records also
moves their amounts from these slots to slot 0 of the ledger. (The amounts of the counter's rows are
subtracted in slot 0 when they are deleted.) The last chunks of a source are
deleted first: the source then looks as if these chunks had not been read yet.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from countersink.counting.ledger import BucketSums, post_transfer, subtract
from countersink.counting.visitors import rows as sketches
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.database.sql import LABEL, label_time

Position = tuple[datetime, bytes]
"""(bucket, key) of a row of ``counter_slot``."""

EVERYTHING: Final = 2**31 - 1
"""A limit of rows that no table reaches."""

_ORDER: Final = "bucket, counter_key, width, slot"


@dataclass(frozen=True, slots=True)
class Deleted:
    """The number of rows that were deleted in ``counter_slot``, and the sum of their amounts."""

    rows: int = 0
    amount: int = 0

    def __add__(self, other: "Deleted") -> "Deleted":
        return Deleted(self.rows + other.rows, self.amount + other.amount)


def rows_left(session: Session, counter: str, most: int = EVERYTHING) -> int:
    """Return the number of rows that a counter has in ``counter_slot``, but at most ``most``:
    further rows are not read.
    """
    ((number,),) = session.query(
        "SELECT COUNT(*) FROM (SELECT 1 FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s LIMIT %s) AS there",
        (counter, most),
    )
    return int(number)


def delete_rows(
    session: Session, where: str, args: tuple[object, ...], size: int, wait: str = ""
) -> tuple[Deleted, Position | None]:
    """Delete the first ``size`` rows of a range of ``counter_slot``, in the order of the primary
    key, with their sketches. Subtract their amounts from the ledger.

    Args:
        session: in a transaction.
        where: SQL condition for the range; it begins with ``counter = %s``.
        args: values for the condition, of which the first is the counter.
        size: maximum number of rows.
        wait: `` NOWAIT`` to fail immediately if another transaction holds a row; empty to wait.

    Returns:
        The number of deleted rows with their sum, and the position of the last deleted row. The
        position is None if the range had no rows.

    Raises:
        Conflict: another transaction holds a row; roll back.
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
    sketches.delete(session, counter, [row[1:] for row in rows])
    subtract(session, deleted)
    _, label, key, _ = rows[-1]
    return Deleted(len(rows), sum(row[0] for row in rows)), (label_time(label), key)


def delete_buckets(
    session: Session, counter: str, key: bytes, after: datetime | None, size: int
) -> tuple[Deleted, datetime | None]:
    """Delete a key's rows in the next few buckets of a counter, about ``size`` rows, with their
    sketches. Subtract their amounts from the ledger.

    A bucket is deleted as a whole. To end within a bucket, rows would have to be sorted by slot,
    and MySQL would read all rows of the key for that.

    Args:
        session: in a transaction.
        counter: the counter's name.
        key: the key's bytes.
        after: value of the column ``bucket`` that the previous call returned; None in the first
            call.
        size: number of rows to delete. The bucket that has the last of these rows is deleted as a
            whole.

    Returns:
        The number of deleted rows with their sum, and the column ``bucket`` of the last deleted
        bucket. The bucket is None if fewer than ``size`` rows were left; all of them are then
        deleted.

    Raises:
        Conflict: another transaction holds a row, or changed the rows meanwhile; roll back.
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
    sketches.delete_key(session, where, args)
    subtract(session, sums)
    return Deleted(number, sum(int(each[2]) for each in found)), last


_ROWS_PER_CHUNK: Final = 200
"""Number of rows that take about as long to delete as one chunk, whose journal is long."""
_OF_CHUNKS: Final = ("backfill_journal", "backfill_chunk", "backfill_sample")


def end_runs(session: Session, counter: str) -> None:
    """Set the state of all runs of the counter's backfills to ``deleted``, also of finished ones,
    so that they commit nothing more, and drop the rejected lines that they have stored. Runs that
    were undone stay as they are.
    """
    session.execute(
        "UPDATE backfill_run SET state = 'deleted', ended = COALESCE(ended, UTC_TIMESTAMP(3)),"
        " error = COALESCE(error, 'its counter was deleted'), rejects = NULL"
        " WHERE counter = %s AND state NOT IN ('undone', 'deleted')",
        (counter,),
    )


def delete_corrections(session: Session, counter: str, size: int) -> bool:
    """Delete up to ``size`` corrections of a counter, all of the same reconcile run, and move their
    amounts to slot 0 of the ledger. (Records of the run about keys that needed no correction
    are deleted in the same way.)

    Returns:
        False once no run of the counter has corrections; True if this is to be called again.
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
    post_transfer(session, counter, -sum(amount for (amount,) in rows))
    return True


def delete_chunks(session: Session, counter: str, size: int) -> bool:
    """Delete the last few chunks of one source of the counter, with their journals and samples, and
    move their amounts to slot 0 of the ledger. (Amounts of a reconcile's chunks are not
    moved, because they were never added to the counter.) If the source has no chunks, delete the
    source itself.

    After the first call no backfill recognizes the source, so none continues it.

    Args:
        session: in a transaction.
        counter: the counter's name.
        size: a number of rows. As many chunks are deleted as take about as long as these rows.

    Returns:
        False once the counter has no sources, or if another deletion has just deleted the source;
        True if this is to be called again.
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
        post_transfer(session, counter, -sum(amount for _, _, amount in chunks))
    return True
