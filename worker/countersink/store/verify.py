"""What ``verify`` compares (counters with the ledger, breakdowns, sketches, backfills, tracked
tables) and the sentences of differences; kinds of problems: ``ledger/__init__.py``; output and exit
status: ``cli/commands/repair/verify.py``.

For every counter: slots + months = what was posted to the ledger, in amounts and in checksums, by
which it is noticed that a key, a day or two amounts were exchanged (see
:mod:`countersink.store.ledger`). Everything that moves, adds or deletes rows posts it in the same
transaction, so both sides are equal in any snapshot, however much is going on; each group of
counters is looked at in one of its own. The same holds of what backfills wrote down, see
:mod:`countersink.store.ledger.backfills`.

Of each day the sum of a breakdown = that of the events with dimensions in its counter, which are
under the key ``''``. Left out are days that are in months of either, and those before the first
whole day that a breakdown holds. Buckets of a day may have been rolled up to wider ones in the one
and not in the other, so days are compared, and not buckets.

And for every tracked table, in a snapshot of its own: the rows that its counter says = the rows it
has, which is what stands for a ledger there.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from countersink.store.apply.control import read_control
from countersink.store.connection import Session
from countersink.store.counters import breakdowns, buckets
from countersink.store.counters.breakdowns import Breakdown
from countersink.store.counters.policies import Policies, Policy, load
from countersink.store.counters.settings import require
from countersink.store.errors import Refused, UnknownCounter
from countersink.store.ledger import Difference as Difference
from countersink.store.ledger import backfills
from countersink.store.ledger.balance import CounterWindow, Sides, balance, read, window
from countersink.store.sessions import open_tables
from countersink.store.settings import Settings
from countersink.store.sql import label_of, label_text, label_time, marks, parts
from countersink.store.tracked.check import RowDifference, check
from countersink.store.tracked.definitions import TrackedTable, find, read_all
from countersink.store.visitors.rows import faults, sketched

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
_MINUTE_S: Final = 60
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``verify`` looked at, and the differences that it found.

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
        Refused: the row of ``control`` is gone.
        StoreError: as any query.
    """
    tracked = read_all(session)
    if table is not None:
        tracked = _tracked_as(session, tracked, table)
    elif counter is not None:
        require(session, counter, ("backfill_source",))
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
    with session.transaction(snapshot=True):
        policies = _policies(session, policies)
    for name in policies.dimensioned:
        if stop():
            return Verified(counters, rows, differences, finished=False)
        looking(f"the breakdowns of {name}")
        with session.transaction(snapshot=True):
            differences += _of_breakdowns(session, _policies(session, policies), [name])
    for name in sketched(session):
        if stop():
            return Verified(counters, rows, differences, finished=False)
        looking(f"the different members of {name}")
        with session.transaction(snapshot=True):
            differences += _of_sketches(session, name)
    return Verified(counters, rows, differences)


def _verify_some(session: Session, names: Sequence[str]) -> Verified:
    """Look at some counters, in one snapshot."""
    with session.transaction(snapshot=True):
        policies = load(session)
        broken_down = [each for name in names for each in breakdowns.names_of(session, name)]
        every = [*names, *broken_down]
        rows, differences = _wrong(session, policies, every, names)
        differences += _of_breakdowns(session, policies, names)
        for name in every:
            differences += _of_sketches(session, name)
    return Verified(len(every), rows, differences)


def _of_breakdowns(
    session: Session, policies: Policies, names: Sequence[str]
) -> Iterator[Difference]:
    """Breakdowns that differ from their counters, as far as the time zones are known here and the
    buckets are such as there may be; else that is found in another way.
    """
    for name in names:
        with suppress(Refused, LookupError, ValueError, OverflowError):
            yield from _breakdown_differences(session, policies, name)


def _of_sketches(session: Session, name: str) -> Iterator[Difference]:
    """What is wrong with the different members of a counter; in the caller's snapshot."""
    found = list(faults(session, name))
    if found:
        label, first = found[0]
        more = f"; and {len(found) - 1:,} more" if len(found) > 1 else ""
        day = label_time(label).date()
        yield Difference(name, "sketch", len(found), 0, f"{first}{more}", day=day)


def _wrong(
    session: Session, policies: Policies, names: Sequence[str], backfilled: Sequence[str]
) -> tuple[int, list[Difference]]:
    """The rows of some counters, and what is wrong with them, and with what others' backfills wrote
    down; in the snapshot that the caller began.
    """
    rows, differences = 0, list[Difference]()
    for part in parts(names, _AT_ONCE):
        for name, sides in read(session, part).items():
            rows += sides.rows
            differences += _differences(name, sides, policies)
    for part in parts(backfilled, _AT_ONCE):
        differences += backfills.mismatches(session, part)
    return rows, differences


def _policies(session: Session, known: Policies | None) -> Policies:
    """The policies of the snapshot: those known, if they still are."""
    version = read_control(session, lock="").policy_version
    return known if known is not None and known.version == version else load(session)


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


def _differences(name: str, sides: Sides, policies: Policies) -> Iterator[Difference]:
    """What is wrong with a counter."""
    amounts = sides.held.amount, sides.posted.amount
    if name not in policies.tracked:
        yield from _against_ledger(name, sides)
    last = max(sides.months, default=None)
    if last is not None:
        month, up_to = label_time(last).date(), sides.rolled_up_to
        if up_to is None or up_to <= month:
            detail = f"a row of the month {month:%Y-%m}, of which no day was said to be rolled up"
            yield Difference(name, "no_rollup", *amounts, detail, day=month)
    had = {policy.number: policy for policy in policies.of(name)}
    yield from _never_rolled(name, sides, had)
    for number in sorted({label % _MINUTE_S for label in sides.days} - had.keys()):
        labels = [label for label in sides.days if label % _MINUTE_S == number]
        detail = (
            f"{sum(sides.days[label] for label in labels):,} rows in buckets such as"
            f" {label_text(min(labels))} of a policy {number}, which it never had"
        )
        yield Difference(name, "no_policy", *amounts, detail)
    odd = [
        label
        for label in sides.days
        if (policy := had.get(label % _MINUTE_S)) is not None
        and (label - policy.number) % (buckets.WIDTH[policy.resolution] * _MINUTE_S)
    ]
    odd += [month for month in sides.months if month % _DAY_S or not _begins_month(month)]
    if odd:
        first = label_time(min(odd))
        detail = f"rows of {len(odd):,} times at which no bucket begins, such as {first}"
        yield Difference(name, "no_bucket", *amounts, detail, day=first.date())


def _never_rolled(name: str, sides: Sides, had: dict[int, Policy]) -> Iterator[Difference]:
    """Wider buckets of times that were not said to be rolled up to them."""
    for number, policy in had.items():
        if policy.rolls is None:
            continue
        # What was said is read with the rows: what the policies know of it may be older.
        until = sides.rolled_to.get(number, 0) * 60
        with suppress(Refused):  # a time zone that is unknown here
            beyond = [
                label
                for label in sides.days
                if label % _MINUTE_S == number and policy.starts_at(label) >= until
            ]
            if beyond:
                first = label_time(min(beyond))
                detail = (
                    f"{sum(sides.days[label] for label in beyond):,} rows in buckets such as"
                    f" {first}, to which no {policy.resolution} of then was said to be rolled up"
                )
                amounts = sides.held.amount, sides.posted.amount
                yield Difference(name, "no_rollup", *amounts, detail, day=first.date())


def _against_ledger(name: str, sides: Sides) -> Iterator[Difference]:
    held, posted = sides.held, sides.posted
    if sides.rows and not sides.postings:
        detail = f"{sides.rows:,} rows, though nothing was ever applied to this counter"
        yield Difference(name, "no_ledger", held.amount, 0, detail)
    elif held != posted:
        if held.amount != posted.amount:
            detail = f"the tables hold {held.amount - posted.amount:+,} against the ledger"
        else:
            detail = "the sums agree, but rows were exchanged"
        yield Difference(
            name,
            "sum" if held.amount != posted.amount else "checksum",
            held.amount,
            posted.amount,
            detail,
        )


def _begins_month(label: int) -> bool:
    return label_time(label).day == 1


_WHOLE: Final = "counter_key = ''"
"""Of a counter the events that its breakdowns hold too."""


def _breakdown_differences(
    session: Session, policies: Policies, counter: str
) -> Iterator[Difference]:
    """The breakdowns of a counter that differ from it, in the snapshot that the caller began.

    Raises:
        Refused: this machine does not know the counter's time zone.
        LookupError, ValueError, OverflowError: there are buckets that cannot be.
        StoreError: as any query.
    """
    own = policies.dimensioned.get(counter)
    if own is None or not own.breakdowns:
        return
    rolled = _rolled_up_to(session, [counter, *(each.name for each in own.breakdowns)])
    whole = _days(session, counter, policies, _WHOLE)
    for each in own.breakdowns:
        first = _first_day(policies, counter, each)
        since = max(filter(None, (rolled[counter], rolled[each.name], first)), default=date.min)
        days = _days(session, each.name, policies)
        wrong = sorted(day for day in {*whole, *days} if day >= since and whole[day] != days[day])
        if wrong:
            detail = (
                f"its breakdown {each.text} ({each.name}) differs from its key '' on {len(wrong):,}"
                f" days, the first of which is {wrong[0]}: {days[wrong[0]]:,} against"
                f" {whole[wrong[0]]:,}"
            )
            held, there = (sum(found[day] for day in wrong) for found in (days, whole))
            yield Difference(counter, "breakdown", held, there, detail, day=wrong[0])


def _rolled_up_to(session: Session, names: Sequence[str]) -> dict[str, date | None]:
    found = session.query(
        f"SELECT name, rolled_up_to FROM counter WHERE name IN ({marks(names)})", names
    )
    return dict.fromkeys(names) | dict(found)


def _days(session: Session, name: str, policies: Policies, where: str = "TRUE") -> Counter[date]:
    """The sums of the days of a counter, in its own time zones, of some of its rows."""
    index = "by_key" if where == _WHOLE else "PRIMARY"
    days: Counter[date] = Counter()
    for bucket, amount in session.query(
        f"SELECT bucket, SUM(amount) FROM counter_slot FORCE INDEX ({index})"
        f" WHERE counter = %s AND {where} GROUP BY bucket",
        (name,),
    ):
        days[policies.day(name, label_of(bucket))] += int(amount)
    return days


def _first_day(policies: Policies, counter: str, breakdown: Breakdown) -> date | None:
    """The first day of which a breakdown holds everything; None for all days."""
    if not breakdown.since:
        return None
    zone = policies.at(counter, breakdown.since).known_zone()
    day = buckets.date_at(zone, breakdown.since * 60)
    begun = buckets.day_begins(zone, day) >= breakdown.since * 60
    return day if begun else buckets.after(day)
