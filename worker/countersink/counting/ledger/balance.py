"""Compares rows of counters with the ledger for ``verify``.

The server adds up both sides, of which it tells one row per counter.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from countersink.counting.ledger.postings import CHECKSUM, MODULUS, Posting
from countersink.database.session import Session

_ORDER: Final = {
    "counter_slot": "counter, bucket, counter_key, width, slot",
    "counter_ledger": "counter, slot",
}
_CHECKSUMS: Final = {"counter_slot": CHECKSUM, "counter_ledger": "SUM(checksum)"}


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of a counter in one of the tables, added up in one snapshot.

    Attributes:
        rows: how many.
        sum: of them.
    """

    rows: int = 0
    sum: Posting = field(default_factory=Posting)


def between(after: str | None, last: str | None) -> tuple[str, list[object]]:
    """The condition for counters whose names lie after one (None: none is before them) and up to
    another (None: none is behind them), and its values.
    """
    where, values = "TRUE", list[object]()
    for comparison, name in ((">", after), ("<=", last)):
        if name is not None:
            where += f" AND counter {comparison} %s"
            values.append(name)
    return where, values


def last_of_next(session: Session, after: str | None, rows: int) -> str | None:
    """The last of the next counters, which are as many as have so many rows in one of the tables;
    None: all that are left.

    Args:
        session: in a transaction or not.
        after: the name before them; None: begin.
        rows: of all counters but the last, which may have any number.
    """
    where, args = between(after, None)
    ends = [
        name
        for table, order in _ORDER.items()
        for (name,) in session.query(
            f"SELECT counter FROM {table} FORCE INDEX (PRIMARY) WHERE {where}"
            f" ORDER BY {order} LIMIT 1 OFFSET {rows - 1:d}",
            args,
        )
    ]
    return min(ends, default=None)


def read(session: Session, where: str, args: Sequence[object]) -> dict[str, tuple[Side, Side]]:
    """What tables and ledger hold of each counter that has any, in the snapshot that the caller
    began.

    Args:
        session: in a snapshot.
        where: which counters: a stretch of the primary keys, in whose order they are grouped.
        args: the values in it.
    """
    found: defaultdict[str, dict[str, Side]] = defaultdict(dict)
    for table, checksum in _CHECKSUMS.items():
        for name, rows, amount, total in session.query(
            f"SELECT counter, COUNT(*), SUM(amount), {checksum}"
            f" FROM {table} FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter",
            args,
        ):
            found[name][table] = Side(int(rows), Posting(int(amount), int(total) % MODULUS))
    held, posted = _CHECKSUMS
    none = Side()
    return {
        name: (sides.get(held, none), sides.get(posted, none))
        for name, sides in sorted(found.items())
    }
