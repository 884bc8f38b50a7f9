"""What ``verify`` compares (counters with the ledger, breakdowns, sketches, backfills, tracked
tables) and the sentences of differences; kinds of problems: ``ledger/__init__.py``; output and exit
status: ``cli/commands/operate/verify.py``.

For every counter: its rows = what was posted to the ledger, in amounts and in checksums, by which
it is noticed that a key, a bucket or two amounts were exchanged (see
:mod:`countersink.counting.ledger`). Everything that moves, adds or deletes rows posts it in the
same transaction, so both sides are equal in any snapshot, however much is going on; each group of
counters is looked at in one of its own. The same holds of what backfills wrote down, see
:mod:`countersink.counting.ledger.balance`.

Of each day the sum of a breakdown = that of the events with dimensions in its counter, which are
under the key ``''``. Left out are days that are in months of either, and those before the first
that a breakdown holds. Buckets of a day may have been rolled up to wider ones in the one
and not in the other, so days are compared, and not buckets.

And for every tracked table, in a snapshot of its own: the rows that its counter says = the rows it
has, which is what stands for a ledger there.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from countersink.counting.apply.control import read_control
from countersink.counting.counters import breakdowns
from countersink.counting.counters.buckets import date_at
from countersink.counting.counters.catalog import DEFAULT, Scheme, read_schemes
from countersink.counting.counters.settings import require
from countersink.counting.errors import UnknownCounter
from countersink.counting.ledger import Difference, Problem, balance
from countersink.counting.ledger.balance import Side, between, last_of_next, read
from countersink.counting.visitors.rows import faults, sketched
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.database.sql import LABEL, label_time, marks
from countersink.database.url import Settings
from countersink.row_counts.check import RowDifference, check
from countersink.row_counts.definitions import find, read_all, tracked_names

READ_SECONDS: Final = 3600.0
"""How long the sums of one group may take."""
_ROWS: Final = 10_000
"""Rows of a snapshot's counters, of all but one, which may be large by itself: the server keeps
what others change while a snapshot is open."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``verify`` looked at, and the differences that it found.

    Attributes:
        counters: how many.
        rows: of theirs.
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


def open_session(where: Settings | str) -> Session:
    """A session for :func:`verify`.

    Raises:
        StoreError: as :func:`countersink.database.session.connect`, or SchemaMismatch.
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
        Refused: the row of ``control`` is gone.
        StoreError: as any query.
    """
    read_control(session, lock="")  # which says so where its row is lost
    tracked = read_all(session)
    if table is not None:
        ((database,),) = session.query("SELECT DATABASE()")
        tracked = find(tracked, table, database)
        if not tracked:
            raise UnknownCounter(
                f"no table or counter {table!r} is tracked; --counter verifies any other counter"
            )
    elif counter is not None:
        require(session, counter, ("backfill_source",))
        tracked = [each for each in tracked if each.counter == counter]
    if table is None and counter is None:
        done = _verify_all(session, stop, looking)
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
    counters, rows, differences = 0, 0, list[Difference]()
    after: str | None = None
    while True:
        if stop():
            return Verified(counters, rows, differences, finished=False)
        looking(f"{counters:,} counters so far")
        last = last_of_next(session, after, _ROWS)
        with session.transaction(snapshot=True):
            found = _sides(session, *between(after, last))
        counters += found.counters
        rows += found.rows
        differences += found.differences
        if last is None:
            break
        after = last
    dimensioned = breakdowns.read_dimensioned(session)
    for name in sorted({*dimensioned, *sketched(session)}):
        if stop():
            return Verified(counters, rows, differences, finished=False)
        looking(f"the breakdowns and different members of {name}")
        with session.transaction(snapshot=True):
            if name in dimensioned:
                differences += _of_breakdowns(session, name)
            differences += _of_sketches(session, name)
    return Verified(counters, rows, differences)


def _verify_some(session: Session, names: Sequence[str]) -> Verified:
    """Look at some counters, in one snapshot."""
    with session.transaction(snapshot=True):
        broken_down = [each for name in names for each in breakdowns.names_of(session, name)]
        every = [*names, *broken_down]
        found = _sides(session, f"counter IN ({marks(every)})", every)
        differences = found.differences
        for name in names:
            differences += _of_breakdowns(session, name)
        for name in every:
            differences += _of_sketches(session, name)
    return replace(found, counters=len(every))


def _of_sketches(session: Session, name: str) -> Iterator[Difference]:
    """What is wrong with the different members of a counter; in the caller's snapshot."""
    found = list(faults(session, name))
    if found:
        label, first = found[0]
        more = f"; and {len(found) - 1:,} more" if len(found) > 1 else ""
        day = label_time(label).date()
        yield Difference(name, "sketch", len(found), 0, f"{first}{more}", day=day)


def _sides(session: Session, where: str, args: Sequence[object]) -> Verified:
    """What is wrong with the rows of some counters, and with what their backfills wrote down; in
    the snapshot that the caller began.
    """
    found = read(session, where, args)
    differences, tracked = list[Difference](), tracked_names(session)
    for name, (tables, ledger) in found.items():
        # A tracked table is what its counter is held against, not the ledger.
        if name not in tracked:
            differences += _against_ledger(name, tables, ledger)
    differences += balance.mismatches(session, where, args)
    return Verified(len(found), sum(tables.rows for tables, _ in found.values()), differences)


def _against_ledger(name: str, tables: Side, ledger: Side) -> Iterator[Difference]:
    held, posted = tables.sum, ledger.sum
    if tables.rows and not ledger.rows:
        detail = f"{tables.rows:,} rows, though nothing was ever applied to this counter"
        yield Difference(name, "no_ledger", held.amount, 0, detail)
    elif held != posted:
        surplus = held.amount - posted.amount
        problem: Problem = "sum" if surplus else "checksum"
        detail = f"the tables hold {surplus:+,} against the ledger"
        if not surplus:
            detail = "the sums agree, but rows were exchanged"
        yield Difference(name, problem, held.amount, posted.amount, detail)


_WHOLE: Final = "counter_key = ''"
"""Of a counter the events that its breakdowns hold too."""


def _of_breakdowns(session: Session, counter: str) -> Iterator[Difference]:
    """The breakdowns of a counter that differ from it, in the snapshot that the caller began, as
    far as the time zone is known here and the buckets are such as there may be; else that is found
    in another way.
    """
    own = breakdowns.read_dimensioned(session, counter).get(counter)
    if own is None or not own.breakdowns:
        return
    with suppress(Refused, LookupError, ValueError, OverflowError):
        schemes = read_schemes(session, [counter, *(each.name for each in own.breakdowns)])
        scheme = schemes.get(counter, DEFAULT)
        whole = _days(session, counter, scheme, _WHOLE)
        for each in own.breakdowns:
            both = scheme, schemes.get(each.name, DEFAULT)
            rolled = (one.rolled_to("month") or 0 for one in both)
            since = date_at(scheme.known_zone(), max(each.since * 60, *rolled))
            days = _days(session, each.name, scheme)
            wrong = sorted(
                day for day in {*whole, *days} if whole[day] != days[day] and day >= since
            )
            if wrong:
                detail = (
                    f"its breakdown {each.text} ({each.name}) differs from its key '' on"
                    f" {len(wrong):,} days, the first of which is {wrong[0]}:"
                    f" {days[wrong[0]]:,} against {whole[wrong[0]]:,}"
                )
                held, there = (sum(found[day] for day in wrong) for found in (days, whole))
                yield Difference(counter, "breakdown", held, there, detail, day=wrong[0])


def _days(session: Session, name: str, scheme: Scheme, where: str = "TRUE") -> Counter[date]:
    """The sums of the days of a counter, in its own time zone, of some of its rows."""
    index = "by_key" if where == _WHOLE else "PRIMARY"
    days: Counter[date] = Counter()
    for label, amount in session.query(
        f"SELECT {LABEL}, SUM(amount) FROM counter_slot FORCE INDEX ({index})"
        f" WHERE counter = %s AND {where} GROUP BY bucket, width",
        (name,),
    ):
        days[scheme.local_day(label)] += int(amount)
    return days
