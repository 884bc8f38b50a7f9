"""Holding what is in the tables against what the ledger says was ever applied, and the counters of
tracked tables against these tables.

For every counter: slots + months = ledger + the application's slots. What the application's own
transactions put into those slots comes into the ledger when compaction moves it. Everything that
moves, adds or deletes rows changes both sides in one transaction, so they are equal in any
snapshot, however much is going on; each group of counters is looked at in one of its own. The same
holds of what backfills wrote down, see :mod:`countersink.store.backfilled`. And for every tracked
table, in a snapshot of its own: the rows that its counter says = the rows it has.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final, Literal

from countersink.store import buckets
from countersink.store.backfilled import mismatches
from countersink.store.balance import OUTSIDE, CounterWindow, balance, window
from countersink.store.connection import Session
from countersink.store.errors import UnknownCounter
from countersink.store.keys import is_name
from countersink.store.policies import Policies, load
from countersink.store.settings import Settings
from countersink.store.tables import open_tables
from countersink.store.tracked.checking import RowDifference, check
from countersink.store.tracked.definitions import TrackedTable, read_all
from countersink.store.tracked.names import find

READ_SECONDS: Final = 3600.0
"""How long the sums of one group may take."""
_FIRST_ROWS: Final = 20
"""Rows of the first snapshot's counters, and of each as long as reading is slow: the server keeps
what others change while a snapshot is open."""
_LARGEST_ROWS: Final = 50_000
"""Rows of a snapshot's counters, of all but one, which may be large by itself."""
_AT_ONCE: Final = 1000
"""Counters that are looked at together."""
_QUICK_S: Final = 0.25

Problem = Literal["sum", "no_ledger", "no_policy", "no_rollup", "backfill"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that cannot be if only countersink wrote to the tables.

    Attributes:
        counter: its name.
        problem: ``sum``: tables and ledger differ; ``no_ledger``: there are rows, though nothing
            was ever applied; ``no_policy``: there are buckets of a policy it never had;
            ``no_rollup``: there are months of days that were never said to be rolled up;
            ``backfill``: what its backfills wrote down does not fit the ledger, or itself.
        in_tables: sum of the slots but the application's, and of the months; ``backfill``: what its
            backfills wrote down.
        in_ledger: sum of the ledger; ``backfill``: of slots 512 and up.
        detail: a sentence for people.
    """

    counter: str
    problem: Problem
    in_tables: int
    in_ledger: int
    detail: str

    @property
    def difference(self) -> int:
        """Tables minus ledger."""
        return self.in_tables - self.in_ledger


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at.

    Attributes:
        counters: how many.
        rows: of their slots and months.
        differences: what is wrong, by counter.
        finished: False if ``stop`` said so before all of them were looked at.
        tables: how many tracked tables.
        row_differences: what is wrong with these, by counter.
    """

    counters: int = 0
    rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    finished: bool = True
    tables: int = 0
    row_differences: list[RowDifference] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether nothing is wrong with what was looked at."""
        return not (self.differences or self.row_differences)


@dataclass(slots=True)
class _Sums:
    rows: int = 0
    ledger_rows: int = 0
    outside_rows: int = 0
    in_tables: int = 0
    in_ledger: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    last_month: date | None = None
    rolled_up_to: date | None = None


def open_session(where: Settings | str) -> Session:
    """A session for :func:`verify`.

    Raises:
        StoreError: as :func:`countersink.store.connection.connect`, or SchemaMismatch.
    """
    return open_tables(where, isolation="REPEATABLE READ", read_timeout=READ_SECONDS)


def verify(
    session: Session,
    counter: str | None = None,
    *,
    table: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    looking: Callable[[str], object] = lambda what: None,
) -> Verified:
    """Look at every counter and every tracked table, or at one.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        counter: the name of the only one; if it is that of a tracked table, with the table.
        table: the only tracked table, as it was given when it was tracked, or its counter; in all
            the ways in which it is tracked.
        stop: asked between two groups of counters, and between two tables.
        looking: told, in some words, what is looked at next.

    Raises:
        UnknownCounter: nothing in the tables has this name, or no such table is tracked.
        ValueError: ``table`` is the counter of one table, and the name of another one.
        StoreError: as any query.
    """
    tracked = read_all(session)
    if table is not None:
        tracked = _tracked_as(session, tracked, table)
    elif counter is not None:
        _require(session, counter)
        tracked = [each for each in tracked if each.counter == counter]
    if table is None and counter is None:
        done = _verify_all(session, stop, looking)
    elif stop():
        return Verified(finished=False)
    else:
        names = [counter] if counter is not None else [each.counter for each in tracked]
        done = _verify_some(session, names)
    if not done.finished:
        return done
    tables, row_differences = 0, list[RowDifference]()
    for each in tracked:
        if stop():
            break
        looking(f"{tables:,} of {len(tracked):,} tracked tables, the rows of {each.name}")
        row_differences += check(session, each)
        tables += 1
    return replace(
        done,
        finished=tables == len(tracked),
        tables=tables,
        row_differences=row_differences,
    )


def _verify_all(
    session: Session, stop: Callable[[], bool], looking: Callable[[str], object]
) -> Verified:
    """Look at every counter, at one window of them after the other."""
    counters, rows, differences, size = 0, 0, list[Difference](), _FIRST_ROWS
    policies: Policies | None = None
    part: CounterWindow | None = None
    while part is None or part.last is not None:
        if stop():
            return Verified(counters, rows, differences, finished=False)
        looking(f"{counters:,} counters so far")
        begun = time.monotonic()
        part = window(session, None if part is None else part.last, size)
        with session.transaction(snapshot=True):
            policies = _policies(session, policies)
            found = balance(session, part, policies.shared_numbers())
            differences += _wrong(session, policies, found.suspects, found.backfilled)[1]
        counters += found.counters
        rows += found.rows
        if time.monotonic() - begun < _QUICK_S:
            size = min(_LARGEST_ROWS, size * 8)
    return Verified(counters, rows, differences)


def _verify_some(session: Session, names: Sequence[str]) -> Verified:
    """Look at some counters, in one snapshot."""
    with session.transaction(snapshot=True):
        rows, differences = _wrong(session, load(session), names, names)
    return Verified(len(names), rows, differences)


def _wrong(
    session: Session, policies: Policies, names: Sequence[str], backfilled: Sequence[str]
) -> tuple[int, list[Difference]]:
    """The rows of some counters, and what is wrong with them, and with what others' backfills wrote
    down; in the snapshot that the caller began.
    """
    rows, differences = 0, list[Difference]()
    for start in range(0, len(names), _AT_ONCE):
        for name, sums in _sums(session, names[start : start + _AT_ONCE]).items():
            rows += sums.rows
            had = {policy.number for policy in policies.of(name)}
            differences += _differences(session, name, sums, had)
    for start in range(0, len(backfilled), _AT_ONCE):
        differences += [
            Difference(one.counter, "backfill", one.written_down, one.in_ledger, one.detail)
            for one in mismatches(session, backfilled[start : start + _AT_ONCE])
        ]
    return rows, differences


def _policies(session: Session, known: Policies | None) -> Policies:
    """The policies of the snapshot: those known, if they still are."""
    ((version,),) = session.query("SELECT policy_version FROM control WHERE id = 1")
    return known if known is not None and known.version == int(version) else load(session)


def _tracked_as(
    session: Session, tracked: Sequence[TrackedTable], table: str
) -> list[TrackedTable]:
    ((database,),) = session.query("SELECT DATABASE()")
    found = find(tracked, table, database)
    if not found:
        raise UnknownCounter(
            f"no table or counter {table!r} is tracked; --counter verifies any other counter"
        )
    return found


def _require(session: Session, counter: str) -> None:
    tables = ("counter_ledger", "counter_slot", "counter_month", "backfill_source")
    if is_name(counter):
        ((there,),) = session.query(
            "SELECT "
            + " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE counter = %s)" for table in tables)
            + " OR EXISTS (SELECT 1 FROM counter WHERE name = %s)",
            (counter,) * 5,
        )
        if there:
            return
    raise UnknownCounter(f"there is no counter {counter!r}: it was neither made nor ever counted")


def _sums(session: Session, names: Sequence[str]) -> dict[str, _Sums]:
    """Both sides of each counter, in the snapshot that the caller began."""
    found: defaultdict[str, _Sums] = defaultdict(_Sums)
    marks = ", ".join(["%s"] * len(names))
    for name, number, rows, outside_rows, amount in session.query(
        f"SELECT counter, SECOND(bucket) AS number, COUNT(*), SUM({OUTSIDE}),"
        f" SUM(IF({OUTSIDE}, amount, 0)) FROM counter_slot FORCE INDEX (PRIMARY)"
        f" WHERE counter IN ({marks}) GROUP BY counter, number",
        names,
    ):
        sums = found[name]
        sums.rows += int(rows)
        sums.outside_rows += int(outside_rows)
        sums.in_tables += int(amount)
        sums.numbers[int(number)] = int(rows)
    for name, rows, amount, last, up_to in session.query(
        "SELECT counter, COUNT(*), SUM(amount), MAX(bucket),"
        " (SELECT rolled_up_to FROM counter WHERE name = counter_month.counter)"
        " FROM counter_month FORCE INDEX (PRIMARY)"
        f" WHERE counter IN ({marks}) GROUP BY counter",
        names,
    ):
        sums = found[name]
        sums.rows += int(rows)
        sums.outside_rows += int(rows)
        sums.in_tables += int(amount)
        sums.last_month, sums.rolled_up_to = last.date(), up_to
    for name, rows, amount in session.query(
        "SELECT counter, COUNT(*), SUM(amount) FROM counter_ledger"
        f" WHERE counter IN ({marks}) GROUP BY counter",
        names,
    ):
        found[name].ledger_rows = int(rows)
        found[name].in_ledger = int(amount)
    return {name: found[name] for name in names if name in found}


def _differences(
    session: Session, name: str, sums: _Sums, had: AbstractSet[int]
) -> Iterator[Difference]:
    """What is wrong with a counter that has ``had`` policies of these numbers."""
    if sums.outside_rows and not sums.ledger_rows:
        yield Difference(
            name,
            "no_ledger",
            sums.in_tables,
            0,
            f"{sums.outside_rows:,} rows, though nothing was ever applied to this counter",
        )
    elif sums.in_tables != sums.in_ledger:
        yield Difference(
            name,
            "sum",
            sums.in_tables,
            sums.in_ledger,
            f"the tables hold {sums.in_tables - sums.in_ledger:+,} against the ledger",
        )
    last, up_to = sums.last_month, sums.rolled_up_to
    if last is not None and (up_to is None or up_to <= last):
        yield Difference(
            name,
            "no_rollup",
            sums.in_tables,
            sums.in_ledger,
            f"a row of the month {last:%Y-%m}, of which no day was said to be rolled up",
        )
    for number in sorted(sums.numbers.keys() - had):
        ((bucket,),) = session.query(
            "SELECT MIN(bucket) FROM counter_slot WHERE counter = %s AND SECOND(bucket) = %s",
            (name, number),
        )
        label = buckets.label_text(buckets.label_of(bucket))
        yield Difference(
            name,
            "no_policy",
            sums.in_tables,
            sums.in_ledger,
            f"{sums.numbers[number]:,} rows in buckets such as {label} of a policy {number},"
            " which it never had",
        )
