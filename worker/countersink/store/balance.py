"""Which counters have to be looked at one by one, when what is in the tables is held against the
ledger. The server adds up, and tells the counters whose sides differ: of most none is told.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from countersink.store.app_slots import APP_ROWS
from countersink.store.connection import Session

OUTSIDE: Final = f"NOT {APP_ROWS}"
"""Finds rows that the ledger knows of."""

_ORDER: Final = {
    "counter_slot": "counter, bucket, counter_key, slot",
    "counter_month": "counter, bucket, counter_key",
    "counter_ledger": "counter, slot",
}
_MONTHS: Final = (
    "COALESCE((SELECT SUM(amount) FROM counter_month AS m FORCE INDEX (PRIMARY)"
    " WHERE m.counter = {}.counter), 0)"
)


@dataclass(frozen=True, slots=True)
class CounterWindow:
    """All counters of which the name comes after one and is at most another.

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
    """The counters of a window.

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
    ((month_rows,),) = session.query(
        f"SELECT COUNT(*) FROM counter_month FORCE INDEX (PRIMARY) WHERE {where}", args
    )
    known = ", ".join(map(str, numbers)) or "-1"
    months = f" + {_MONTHS.format('counter_slot')}" if month_rows else ""
    # Each group is a stretch of the index, and the ledger is looked up by its own: nothing is
    # sorted, and no row waits for another.
    sides = (
        f"(SELECT counter, COUNT(*) AS n, SUM(IF({OUTSIDE}, amount, 0)){months} AS held,"
        f" MAX(SECOND(bucket) NOT IN ({known})) AS odd,"
        " (SELECT SUM(amount) FROM counter_ledger AS l WHERE l.counter = counter_slot.counter)"
        f" AS applied FROM counter_slot FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter)"
        " AS sides"
    )
    suspected = "odd OR applied IS NULL OR applied <> held"
    ((counters, rows, applied, wrong),) = session.query(
        f"SELECT COUNT(*), COALESCE(SUM(n), 0), COUNT(applied), COALESCE(SUM({suspected}), 0)"
        f" FROM {sides}",
        args,
    )
    suspects = set[str]()
    if wrong:
        found = session.query(f"SELECT counter FROM {sides} WHERE {suspected}", args)
        suspects |= {name for (name,) in found}
    ((in_ledger,),) = session.query(
        f"SELECT COUNT(DISTINCT counter) FROM counter_ledger FORCE INDEX (PRIMARY) WHERE {where}",
        args,
    )
    if in_ledger > applied:
        suspects |= _without_slots(session, where, args)
    if month_rows:
        suspects |= _with_odd_months(session, where, args)
    backfilled = _backfilled(session, where, args)
    others = _others(session, where, args) if month_rows or backfilled else 0
    return Balance(
        int(counters) + int(in_ledger) - int(applied) + others,
        int(rows) + int(month_rows),
        sorted(suspects),
        sorted(backfilled),
    )


def _without_slots(session: Session, where: str, args: list[object]) -> set[str]:
    """Counters of the ledger that have no slot rows, and not the same in months."""
    found = session.query(
        "SELECT counter, SUM(amount) AS applied FROM counter_ledger FORCE INDEX (PRIMARY)"
        f" WHERE {where} AND NOT EXISTS"
        " (SELECT 1 FROM counter_slot AS s WHERE s.counter = counter_ledger.counter)"
        f" GROUP BY counter HAVING applied <> {_MONTHS.format('counter_ledger')}",
        args,
    )
    return {name for name, _ in found}


def _with_odd_months(session: Session, where: str, args: list[object]) -> set[str]:
    """Counters with months that were not said to be rolled up, or that are in no ledger."""
    found = session.query(
        "SELECT counter, last FROM (SELECT counter, MAX(bucket) AS last"
        f" FROM counter_month FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter) AS months"
        " WHERE NOT EXISTS (SELECT 1 FROM counter WHERE name = months.counter"
        " AND rolled_up_to > last)"
        " OR NOT EXISTS (SELECT 1 FROM counter_ledger AS l WHERE l.counter = months.counter)",
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
    """How many counters have months or a source, but neither slot rows nor a ledger."""
    ((found,),) = session.query(
        "SELECT COUNT(*) FROM (SELECT DISTINCT counter"
        f" FROM counter_month FORCE INDEX (PRIMARY) WHERE {where}"
        f" UNION SELECT counter FROM backfill_source WHERE {where}) AS others"
        " WHERE NOT EXISTS (SELECT 1 FROM counter_slot AS s WHERE s.counter = others.counter)"
        " AND NOT EXISTS (SELECT 1 FROM counter_ledger AS l WHERE l.counter = others.counter)",
        (*args, *args),
    )
    return int(found)
