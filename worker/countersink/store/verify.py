"""``verify``: compares counters with the ledger, with their breakdowns, with their sketches and
with backfills; and compares tracked tables with their counters. See ``ledger/__init__.py`` for the
kinds of problems, and ``cli/commands/operate/verify.py`` for the output and the exit status.

Counters: the rows of a counter must equal its postings to the ledger, in the sum of amounts and in
a checksum. The checksum also changes if keys, buckets or amounts are exchanged (see
:mod:`countersink.counting.ledger`). Every transaction that adds, moves or deletes rows posts the
change to the ledger, so both sides are equal in any snapshot. Each group of counters is compared in
a snapshot of its own. What backfills have recorded is compared in the same way:
:mod:`countersink.counting.ledger.balance`.

Breakdowns: a breakdown is a counter that counts another counter's events by their dimensions, such
as the country. These events are also in the other counter, in its key ``''``. On each day the sum
of this key must equal the sum of each breakdown. Two kinds of days are left out: days before the
breakdown began, and days that either counter has rolled up into months. Days are compared and not
buckets, because one of the two may be rolled up earlier than the other.

Sketches: a sketch has the different members (such as visitors) of a cell. Each sketch must be
undamaged and belong to a row, and no row may lack its sketch.

Tracked tables: for each day and key the number of rows must equal the counter's, in a snapshot for
each table. The counter of a tracked table is compared with the table instead of the ledger.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from countersink.counting.apply.guards import read_control
from countersink.counting.counters import all_counters, breakdowns
from countersink.counting.counters.all_counters import require
from countersink.counting.counters.buckets import date_at
from countersink.counting.counters.catalog import DEFAULT, Scheme, read_schemes
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
from countersink.runtime.texts import plural

READ_SECONDS: Final = 3600.0
"""Seconds that the server may take to sum the rows of one group of counters."""
_ROWS: Final = 10_000
"""Rows of all counters that are compared in one snapshot; the last of them may have more rows.
While a snapshot is open, the server keeps the old versions of changed rows, so a snapshot must be
short."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of ``verify``: how many things were compared, and the differences.

    Attributes:
        counters: number of counters that were compared; breakdowns and counters of tracked tables
            count, too. If all are compared, a counter without rows and postings does not count.
        rows: number of rows of these counters in ``counter_slot``.
        differences: the differences of counters, in the order in which they were found.
        finished: False if ``stop`` ended the comparison early, so that the rest was not compared.
        tables: number of tracked tables that were compared.
        row_differences: the problems of tracked tables, sorted by counter.
    """

    counters: int = 0
    rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    finished: bool = True
    tables: int = 0
    row_differences: list[RowDifference] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether no difference of a counter and no problem of a tracked table was found. After a
        comparison that ended early (``finished`` is False), it says this of the compared part."""
        return not (self.differences or self.row_differences)


def open_session(where: Settings | str) -> Session:
    """Open a session for :func:`verify`: at REPEATABLE READ, and with :data:`READ_SECONDS` for each
    query. ``where`` is the database, as settings or a URL.

    Raises:
        StoreError: as raised by :func:`countersink.database.sessions.open_tables`.
    """
    return open_tables(where, isolation="REPEATABLE READ", read_timeout=READ_SECONDS)


def verify(
    session: Session,
    counter: str | None = None,
    *,
    table: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[str], object] = lambda subject: None,
) -> Verified:
    """Compare every counter with the ledger and every tracked table with its counter, or only those
    that the arguments name; also breakdowns, sketches and records of backfills, as the module says.

    Args:
        session: a session at REPEATABLE READ, outside a transaction.
        counter: name of the only counter to compare, together with its breakdowns and, if it has
            one, its tracked table. None for all counters.
        table: the only tracked table to compare: its name as given to ``track``, for the table and
            all its counters; or the name of one of its counters, for the table and this counter.
            None for all tables. Give ``counter`` or ``table``, not both.
        stop: called before each group of counters, before the breakdowns and sketches of each
            counter, and before each tracked table. If it returns true, the comparison ends early.
            Counters that ``counter`` or ``table`` names are compared without calling it.
        progress: called after ``stop``, with a short English text: how much was compared so far, or
            what is compared next.

    Raises:
        UnknownCounter: no counter is called ``counter``, or no tracked table and no counter of one
            is called ``table``.
        ValueError: ``table`` is the counter of one table, and the name of another table; or
            ``counter`` and ``table`` are given.
        Refused: the control row is missing.
        StoreError: a query failed.
    """
    if counter is not None and table is not None:
        raise ValueError("give counter or table, not both")
    read_control(session, lock="")  # raises where the control row is missing
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
        done = _verify_all(session, stop, progress)
    else:
        names = [counter] if counter is not None else [each.counter for each in tracked]
        done = _verify_some(session, names)
    if not done.finished:
        return done
    tables, row_differences = 0, list[RowDifference]()
    for each in tracked:
        if stop():
            break
        progress(f"{tables:,} of {plural(len(tracked), 'tracked table')}, rows of {each.name}")
        row_differences += check(session, each)
        tables += 1
    return replace(
        done,
        finished=tables == len(tracked),
        tables=tables,
        row_differences=row_differences,
    )


def _verify_all(
    session: Session, stop: Callable[[], bool], progress: Callable[[str], object]
) -> Verified:
    """Compare every counter with the ledger and with records of backfills, in groups of counters
    with neighbouring names; then their breakdowns and sketches. No tracked table is read.

    Args:
        session: the session of :func:`verify`.
        stop: called before each group, and before the breakdowns and sketches of each counter. If
            it returns true, the result so far is returned, with ``finished`` False.
        progress: called after ``stop``, with a short text about the progress.
    """
    counters, rows, differences = 0, 0, list[Difference]()
    after: str | None = None
    while True:
        if stop():
            return Verified(counters, rows, differences, finished=False)
        progress(f"{plural(counters, 'counter')} so far")
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
        progress(f"breakdowns and different members of {name}")
        with session.transaction(snapshot=True):
            if name in dimensioned:
                differences += _of_breakdowns(session, name)
            differences += _of_sketches(session, name)
    return Verified(counters, rows, differences)


def _verify_some(session: Session, names: Sequence[str]) -> Verified:
    """Compare the counters ``names`` and their breakdowns with the ledger and with records of
    backfills. Also compare each breakdown with its counter, and sketches with rows. All this is
    done in one snapshot. No tracked table is read.
    """
    with session.transaction(snapshot=True):
        broken_down = [each for name in names for each in all_counters.names_of(session, name)]
        every = [*names, *broken_down]
        found = _sides(session, f"counter IN ({marks(every)})", every)
        differences = found.differences
        for name in names:
            differences += _of_breakdowns(session, name)
        for name in every:
            differences += _of_sketches(session, name)
    return replace(found, counters=len(every))


def _of_sketches(session: Session, name: str) -> Iterator[Difference]:
    """Yield one difference for all faults of a counter's sketches, if there are any. The caller has
    a snapshot.
    """
    found = list(faults(session, name))
    if found:
        label, first = found[0]
        more = f"; and {len(found) - 1:,} more" if len(found) > 1 else ""
        day = label_time(label).date()
        yield Difference(name, "sketch", len(found), 0, f"{first}{more}", day=day)


def _sides(session: Session, where: str, args: Sequence[object]) -> Verified:
    """Compare some counters with the ledger, and with what backfills have recorded. Counters of
    tracked tables are not compared with the ledger. Return the differences, the number of those
    counters that have rows or postings, and the number of their rows. The caller has a snapshot.

    Args:
        session: the caller's session.
        where: SQL condition for the counters.
        args: values to bind in the condition.
    """
    found = read(session, where, args)
    differences, tracked = list[Difference](), tracked_names(session)
    for name, (tables, ledger) in found.items():
        # The counter of a tracked table is compared with the table, not with the ledger.
        if name not in tracked:
            differences += _against_ledger(name, tables, ledger)
    differences += balance.mismatches(session, where, args)
    return Verified(len(found), sum(tables.rows for tables, _ in found.values()), differences)


def _against_ledger(name: str, tables: Side, ledger: Side) -> Iterator[Difference]:
    if tables.rows and not ledger.rows:
        detail = f"{plural(tables.rows, 'row')}, though the ledger has nothing of this counter"
        yield Difference(name, "no_ledger", tables.amount, 0, detail)
    elif (tables.amount, tables.checksum) != (ledger.amount, ledger.checksum):
        surplus = tables.amount - ledger.amount
        problem: Problem = "sum" if surplus else "checksum"
        direction = "more" if surplus > 0 else "less"
        detail = f"the tables hold {abs(surplus):,} {direction} than the ledger"
        if not surplus:
            detail = "the sums agree, but keys, buckets or amounts of rows were exchanged"
        yield Difference(name, problem, tables.amount, ledger.amount, detail)


_BROKEN_DOWN: Final = "counter_key = ''"
"""SQL condition for those rows of a counter whose events have dimensions. The counter's breakdowns
count these events, too."""


def _of_breakdowns(session: Session, counter: str) -> Iterator[Difference]:
    """Yield one difference for each breakdown of a counter that differs from the counter's key
    ``''`` on any day. Days before the breakdown began, and days that either has rolled up into
    months, are left out. The caller has a snapshot.

    If this machine does not know the time zone, or if a bucket is invalid, nothing more is yielded:
    other checks report that.
    """
    dimensioned = breakdowns.read_dimensioned(session, counter).get(counter)
    if dimensioned is None or not dimensioned.breakdowns:
        return
    with suppress(Refused, LookupError, ValueError, OverflowError):
        schemes = read_schemes(session, [counter, *(each.name for each in dimensioned.breakdowns)])
        scheme = schemes.get(counter, DEFAULT)
        expected = _days(session, counter, scheme, _BROKEN_DOWN)
        for each in dimensioned.breakdowns:
            both = scheme, schemes.get(each.name, DEFAULT)
            rolled = (one.rolled_to("month") or 0 for one in both)
            since = date_at(scheme.known_zone(), max(each.since * 60, *rolled))
            days = _days(session, each.name, scheme)
            days_of_both = {*expected, *days}
            wrong = sorted(d for d in days_of_both if expected[d] != days[d] and d >= since)
            if wrong:
                detail = (
                    f"its breakdown {each.text} ({each.name}) differs from its key '' on"
                    f" {plural(len(wrong), 'day')}, first on {wrong[0]}:"
                    f" {days[wrong[0]]:,} instead of {expected[wrong[0]]:,}"
                )
                held, should_be = (sum(found[day] for day in wrong) for found in (days, expected))
                yield Difference(counter, "breakdown", held, should_be, detail, day=wrong[0])


def _days(session: Session, name: str, scheme: Scheme, where: str = "TRUE") -> Counter[date]:
    """Return a map from day to the sum of a counter's amounts in buckets that begin on that day, in
    the counter's time zone. Days without such buckets are left out.

    Args:
        session: the caller's session.
        name: name of the counter.
        scheme: the counter's scheme.
        where: SQL condition for the rows to sum.
    """
    index = "by_key" if where == _BROKEN_DOWN else "PRIMARY"
    days: Counter[date] = Counter()
    for label, amount in session.query(
        f"SELECT {LABEL}, SUM(amount) FROM counter_slot FORCE INDEX ({index})"
        f" WHERE counter = %s AND {where} GROUP BY bucket, width",
        (name,),
    ):
        days[scheme.local_day(label)] += int(amount)
    return days
