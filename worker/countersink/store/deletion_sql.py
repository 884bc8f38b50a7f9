"""The statements of :mod:`countersink.store.deletion`: some rows of a counter, off tables and
ledger.

Each of them locks the rows and the gaps between them, and deletes those same rows. To be run in a
transaction at REPEATABLE READ.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from countersink.store.app_slots import APP_ROWS
from countersink.store.connection import Session
from countersink.store.errors import Conflict

Table = Literal["counter_slot", "counter_month"]
TABLES: Final[tuple[Table, ...]] = ("counter_slot", "counter_month")

Position = tuple[datetime, bytes]
"""The bucket and the key of a row."""

_IN_LEDGER: Final[dict[Table, str]] = {
    "counter_slot": f"IF({APP_ROWS}, 0, amount)",
    "counter_month": "amount",
}
_ORDER: Final[dict[Table, str]] = {
    "counter_slot": "bucket, counter_key, slot",
    "counter_month": "bucket, counter_key",
}


@dataclass(frozen=True, slots=True)
class Deleted:
    """What was deleted.

    Attributes:
        rows: of counter_slot and counter_month.
        amount: their sum.
    """

    rows: int = 0
    amount: int = 0

    def __add__(self, other: "Deleted") -> "Deleted":
        return Deleted(self.rows + other.rows, self.amount + other.amount)


def rows_left(session: Session, counter: str, most: int | None = None) -> int:
    """How many rows a counter has; a scan of them, which ends after ``most`` of a table."""
    end = "" if most is None else f" LIMIT {most:d}"
    return sum(
        int(number)
        for table in TABLES
        for (number,) in session.query(
            f"SELECT COUNT(*) FROM (SELECT 1 FROM {table} FORCE INDEX (PRIMARY)"
            f" WHERE counter = %s{end}) AS there",
            (counter,),
        )
    )


def delete_rows(
    session: Session, table: Table, where: str, args: tuple[object, ...], size: int, wait: str = ""
) -> tuple[Deleted, Position | None]:
    """Delete the first ``size`` rows by the primary key; also where the last one was.

    Args:
        session: in a transaction.
        table: the table.
        where: a range of the primary key; ``counter = %s`` comes first.
        args: the values for it; the counter comes first.
        size: how many.
        wait: `` NOWAIT``, or nothing.
    """
    rows = session.query(
        f"SELECT {_IN_LEDGER[table]}, amount, bucket, counter_key"
        f" FROM {table} FORCE INDEX (PRIMARY) WHERE {where}"
        f" ORDER BY {_ORDER[table]} LIMIT %s FOR UPDATE{wait}",
        (*args, size),
    )
    if not rows:
        return Deleted(), None
    session.execute(
        f"DELETE FROM {table} WHERE {where} ORDER BY {_ORDER[table]} LIMIT %s", (*args, len(rows))
    )
    _take_off_ledger(session, args[0], sum(int(row[0]) for row in rows))
    *_, bucket, key = rows[-1]
    return Deleted(len(rows), sum(int(row[1]) for row in rows)), (bucket, bytes(key))


def delete_buckets(
    session: Session,
    table: Table,
    counter: str,
    key: bytes,
    after: datetime | None,
    size: int,
) -> tuple[Deleted, datetime | None]:
    """Delete a key's rows in its next buckets; also the last bucket, None if all were deleted.

    By whole buckets: a page that ended in the midst of one would have to be sorted by slot, for
    which MySQL reads all rows of the key.

    Args:
        session: in a transaction.
        table: the table.
        counter: the counter.
        key: the key.
        after: the last bucket of the page before; None to begin with.
        size: about how many rows.
    """
    rows = f"{table} FORCE INDEX (by_key)"
    where = "counter = %s AND counter_key = %s"
    args: tuple[object, ...] = (counter, key)
    if after is not None:
        where, args = f"{where} AND bucket > %s", (*args, after)
    end = session.query(
        f"SELECT bucket FROM {rows} WHERE {where} ORDER BY bucket LIMIT 1 OFFSET %s",
        (*args, size - 1),
    )
    last: datetime | None = end[0][0] if end else None
    if last is not None:
        where, args = f"{where} AND bucket <= %s", (*args, last)
    ((number, from_ledger, amount),) = session.query(
        f"SELECT COUNT(*), COALESCE(SUM({_IN_LEDGER[table]}), 0), COALESCE(SUM(amount), 0)"
        f" FROM {rows} WHERE {where} FOR UPDATE",
        args,
    )
    # With a table in front, as MariaDB knows no index hints without.
    gone = session.execute(f"DELETE {table} FROM {rows} WHERE {where}", args)
    if gone != number:
        raise Conflict(f"{number:,} rows were added up and {gone:,} deleted, so nothing was")
    _take_off_ledger(session, counter, int(from_ledger))
    return Deleted(int(number), int(amount)), last


def _take_off_ledger(session: Session, counter: object, amount: int) -> None:
    if amount:
        session.execute(
            "INSERT INTO counter_ledger (counter, slot, amount) VALUES (%s, 0, %s)"
            + session.dialect.upsert_add("counter_ledger", "amount"),
            (counter, -amount),
        )
