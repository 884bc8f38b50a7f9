"""Compares rows of counters with the ledger for ``verify``.

The server adds up both sides and tells the counters of which they differ: of most none is told.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from countersink.store.connection import Session
from countersink.store.ledger import postings
from countersink.store.ledger.postings import MODULUS, Posting
from countersink.store.sql import label_of, marks


@dataclass(slots=True)
class Sides:
    """Rows and ledger of a counter, added up in one snapshot.

    Attributes:
        rows: of slots and months.
        postings: rows of the ledger.
        held: what the rows hold.
        posted: what was posted.
        days: rows by the label of their bucket, of slots.
        months: the same of months.
        rolled_up_to: days before it are said to be in months.
        rolled_to: by the number of a policy to whose buckets others are rolled up: up to which Unix
            minute they are said to be.
    """

    rows: int = 0
    postings: int = 0
    held: Posting = field(default_factory=Posting)
    posted: Posting = field(default_factory=Posting)
    days: dict[int, int] = field(default_factory=dict)
    months: dict[int, int] = field(default_factory=dict)
    rolled_up_to: date | None = None
    rolled_to: dict[int, int] = field(default_factory=dict)


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
        rows: of their slots and months.
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


def balance(session: Session, window: CounterWindow, numbers: Collection[int]) -> Balance:
    """Hold the sides of a window's counters against each other.

    Args:
        session: in a snapshot.
        window: of which counters.
        numbers: of policies that each of them has had.

    Raises:
        StoreError: as any query.
    """
    where, args = window.where()
    known = ", ".join(map(str, numbers)) or "-1"
    # Each of these is a stretch of a primary key, in whose order it is grouped.
    sides = f"""(SELECT counter, SUM(n) AS n, SUM(posted) AS posted, SUM(amount) AS amount,
        SUM(checksum) AS checksum, MAX(odd) AS odd, MAX(timed) AS timed, MAX(minutes) AS minutes
        FROM (
        SELECT counter, COUNT(*) AS n, 0 AS posted, SUM(amount) AS amount,
        {postings.SLOT_CHECKSUM} AS checksum, MAX(SECOND(bucket) NOT IN ({known})) AS odd,
        MAX(TIME_TO_SEC(bucket) >= {_MINUTE_S:d}) AS timed,
        MAX(TIME_TO_SEC(bucket) MOD {_QUARTER_S:d} >= {_MINUTE_S:d}) AS minutes
        FROM counter_slot FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        UNION ALL SELECT counter, COUNT(*), 0, SUM(amount), {postings.MONTH_CHECKSUM},
        MAX(DAY(bucket) <> 1 OR TIME_TO_SEC(bucket) <> 0), FALSE, FALSE
        FROM counter_month FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        UNION ALL SELECT counter, 0, COUNT(*), -SUM(amount), -SUM(checksum), FALSE, FALSE, FALSE
        FROM counter_ledger FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter
        ) AS parts GROUP BY counter) AS sides"""
    every = args * 3
    ((counters, rows, wrong),) = session.query(
        f"SELECT COUNT(*), COALESCE(SUM(n), 0), COALESCE(SUM({_SUSPECTED}), 0) FROM {sides}",
        every,
    )
    suspects = set[str]()
    if wrong:
        found = session.query(f"SELECT counter FROM {sides} WHERE {_SUSPECTED}", every)
        suspects |= {name for (name,) in found}
    suspects |= _with_odd_months(session, where, args)
    backfilled = _backfilled(session, where, args)
    others = _others(session, where, args) if backfilled else 0
    return Balance(int(counters) + others, int(rows), sorted(suspects), sorted(backfilled))


def _with_odd_months(session: Session, where: str, args: list[object]) -> set[str]:
    """Counters with months that were not said to be rolled up."""
    found = session.query(
        "SELECT counter, last FROM (SELECT counter, MAX(bucket) AS last"
        f" FROM counter_month FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter) AS months"
        " WHERE NOT EXISTS (SELECT 1 FROM counter WHERE name = months.counter"
        " AND rolled_up_to > last)",
        args,
    )
    return {name for name, _ in found}


def _backfilled(session: Session, where: str, args: list[object]) -> set[str]:
    """Counters with a source; and those with a run, unless there is nothing else of them."""
    there = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} AS t WHERE t.counter = backfill_run.counter)"
        for table in _ORDER
    )
    found = session.query(
        f"SELECT counter FROM backfill_source WHERE {where}"
        f" UNION SELECT counter FROM backfill_run WHERE {where} AND ({there})",
        (*args, *args),
    )
    return {name for (name,) in found}


def _others(session: Session, where: str, args: list[object]) -> int:
    """How many counters have a source, but neither rows nor a ledger."""
    there = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} AS t WHERE t.counter = sources.counter)" for table in _ORDER
    )
    ((found,),) = session.query(
        "SELECT COUNT(*) FROM (SELECT DISTINCT counter FROM backfill_source"
        f" WHERE {where}) AS sources WHERE NOT ({there})",
        args,
    )
    return int(found)


def read(session: Session, names: Sequence[str]) -> dict[str, Sides]:
    """Both sides of some counters, in the snapshot that the caller began; of those that have any,
    in the order of the names.
    """
    found: defaultdict[str, Sides] = defaultdict(Sides)
    inside = f"IN ({marks(names)})"
    for month, table in enumerate(("counter_slot", "counter_month")):
        for name, bucket, rows, amount, key_sum in session.query(
            f"SELECT counter, bucket, COUNT(*), SUM(amount), {postings.KEY_SUM}"
            f" FROM {table} FORCE INDEX (PRIMARY)"
            f" WHERE counter {inside} GROUP BY counter, bucket",
            names,
        ):
            sides, label = found[name], label_of(bucket)
            sides.rows += int(rows)
            sides.held += Posting.of(label, int(amount), int(key_sum), month=bool(month))
            (sides.months if month else sides.days)[label] = int(rows)
    for name, rows, amount, checksum in session.query(
        "SELECT counter, COUNT(*), SUM(amount), SUM(checksum) FROM counter_ledger"
        f" WHERE counter {inside} GROUP BY counter",
        names,
    ):
        found[name].postings = int(rows)
        found[name].posted = Posting(int(amount), int(checksum) % MODULUS)
    for name, up_to in session.query(
        f"SELECT name, rolled_up_to FROM counter WHERE name {inside}", names
    ):
        if name in found:
            found[name].rolled_up_to = up_to
    for name, number, rolled_to in session.query(
        "SELECT counter, number, rolled_to FROM counter_policy"
        f" WHERE counter {inside} AND rolled_to IS NOT NULL",
        names,
    ):
        if name in found:
            found[name].rolled_to[int(number)] = label_of(rolled_to) // 60
    return {name: found[name] for name in names if name in found}


_ORDER: Final = {
    "counter_slot": "counter, bucket, counter_key, slot",
    "counter_month": "counter, bucket, counter_key",
    "counter_ledger": "counter, slot",
}
_MINUTE_S: Final = 60
_QUARTER_S: Final = 900
"""Seconds: a bucket's are the number of its policy, so what is above them is its time of day."""
_TRACKED: Final = "EXISTS (SELECT 1 FROM tracked_table AS t WHERE t.counter = sides.counter)"
_HAS_POLICY: Final = "EXISTS (SELECT 1 FROM counter_policy AS p WHERE p.counter = sides.counter"
_SUSPECTED: Final = (
    f"odd OR (timed AND NOT {_HAS_POLICY} AND p.resolution <> 'day'))"
    f" OR (minutes AND NOT {_HAS_POLICY} AND p.resolution = 'minute'))"
    f" OR ((posted = 0 OR amount <> 0 OR checksum MOD {MODULUS:d} <> 0) AND NOT {_TRACKED})"
)
"""A tracked table is what its counter is held against, not the ledger."""
