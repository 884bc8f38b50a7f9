"""Compares rows of counters with the ledger for ``verify``.

The server adds up both sides and tells the counters of which they differ: of most none is told.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from countersink.store.connection import Session
from countersink.store.ledger import postings
from countersink.store.ledger.postings import MODULUS, Posting
from countersink.store.sql import LABEL, marks


@dataclass(slots=True)
class Sides:
    """Rows and ledger of a counter, added up in one snapshot.

    Attributes:
        rows: how many.
        postings: rows of the ledger.
        held: what the rows hold.
        posted: what was posted.
    """

    rows: int = 0
    postings: int = 0
    held: Posting = field(default_factory=Posting)
    posted: Posting = field(default_factory=Posting)


@dataclass(frozen=True, slots=True)
class CounterWindow:
    """The counters whose names lie after one and up to another.

    Attributes:
        after: the one; None: none is before them.
        last: the other; None: none is behind them.
    """

    after: str | None
    last: str | None

    def where(self) -> tuple[str, list[object]]:
        """The condition and its values."""
        where, values = "TRUE", list[object]()
        for comparison, name in ((">", self.after), ("<=", self.last)):
            if name is not None:
                where += f" AND counter {comparison} %s"
                values.append(name)
        return where, values


@dataclass(frozen=True, slots=True)
class Balance:
    """What a window's counters came to: which are suspect, which have backfills.

    Attributes:
        counters: how many.
        rows: of theirs.
        suspects: those with which something may be wrong, in order.
        backfilled: those that backfills were begun for, in order.
    """

    counters: int
    rows: int
    suspects: list[str]
    backfilled: list[str]


def window(session: Session, after: str | None, rows: int) -> CounterWindow:
    """The next counters, as many as have so many rows in one of the tables.

    Args:
        session: in a transaction or not.
        after: the last name of the window before; None: begin.
        rows: of all counters but the last, which may have any number.
    """
    where, args = CounterWindow(after, None).where()
    ends = [
        name
        for table, order in _ORDER.items()
        for (name,) in session.query(
            f"SELECT counter FROM {table} FORCE INDEX (PRIMARY) WHERE {where}"
            f" ORDER BY {order} LIMIT 1 OFFSET {rows - 1:d}",
            args,
        )
    ]
    return CounterWindow(after, min(ends, default=None))


def balance(session: Session, window: CounterWindow) -> Balance:
    """Hold the sides of a window's counters against each other.

    Args:
        session: in a snapshot.
        window: of which counters.

    Raises:
        StoreError: as any query.
    """
    where, args = window.where()
    # Each of these is a stretch of a primary key, in whose order it is grouped.
    sides = f"""(SELECT counter, SUM(n) AS n, SUM(posted) AS posted, SUM(amount) AS amount,
        SUM(checksum) AS checksum FROM (
        SELECT counter, COUNT(*) AS n, 0 AS posted, SUM(amount) AS amount,
        {postings.CHECKSUM} AS checksum
        FROM counter_slot FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        UNION ALL SELECT counter, 0, COUNT(*), -SUM(amount), -SUM(checksum)
        FROM counter_ledger FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        UNION ALL SELECT DISTINCT counter, 0, 0, 0, 0 FROM backfill_source WHERE {where}
        ) AS parts GROUP BY counter) AS sides"""
    every = args * 3
    ((counters, rows, wrong),) = session.query(
        f"SELECT COUNT(*), COALESCE(SUM(n), 0), COALESCE(SUM({_SUSPECTED}), 0) FROM {sides}",
        every,
    )
    found = session.query(f"SELECT counter FROM {sides} WHERE {_SUSPECTED}", every) if wrong else []
    # Those with a source; and those with a run, unless there is nothing else of them.
    there = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} AS t WHERE t.counter = backfill_run.counter)"
        for table in _ORDER
    )
    backfilled = session.query(
        f"SELECT counter FROM backfill_source WHERE {where}"
        f" UNION SELECT counter FROM backfill_run WHERE {where} AND ({there})",
        args * 2,
    )
    suspects = sorted(name for (name,) in found)
    return Balance(int(counters), int(rows), suspects, sorted(name for (name,) in backfilled))


def read(session: Session, names: Sequence[str]) -> dict[str, Sides]:
    """Both sides of some counters, in the snapshot that the caller began; of those that have any,
    in the order of the names.
    """
    found: defaultdict[str, Sides] = defaultdict(Sides)
    inside = f"IN ({marks(names)})"
    for name, label, rows, amount, key_sum in session.query(
        f"SELECT counter, {LABEL}, COUNT(*), SUM(amount), {postings.KEY_SUM}"
        " FROM counter_slot FORCE INDEX (PRIMARY)"
        f" WHERE counter {inside} GROUP BY counter, bucket, width",
        names,
    ):
        sides = found[name]
        sides.rows += int(rows)
        sides.held += Posting.of(label, int(amount), int(key_sum))
    for name, rows, amount, checksum in session.query(
        "SELECT counter, COUNT(*), SUM(amount), SUM(checksum) FROM counter_ledger"
        f" WHERE counter {inside} GROUP BY counter",
        names,
    ):
        found[name].postings = int(rows)
        found[name].posted = Posting(int(amount), int(checksum) % MODULUS)
    return {name: found[name] for name in names if name in found}


_ORDER: Final = {
    "counter_slot": "counter, bucket, counter_key, width, slot",
    "counter_ledger": "counter, slot",
}
_TRACKED: Final = "EXISTS (SELECT 1 FROM tracked_table AS t WHERE t.counter = sides.counter)"
_SUSPECTED: Final = (
    f"(posted = 0 AND n > 0 OR amount <> 0 OR checksum MOD {MODULUS:d} <> 0) AND NOT {_TRACKED}"
)
"""A tracked table is what its counter is held against, not the ledger."""
