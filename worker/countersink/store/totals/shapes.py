"""What of a counter can be asked for: policies, known or not, days rolled up to months, with the
errors for ranges that cut through months; and totals by dimensions: which breakdown answers, by
which of its keys, and what they say (``BreakdownView``).

A question of a counter with dimensions becomes one of the counter that holds a breakdown, which is
answered as any other. What is in its key for rows that had no room (``__overflow__``) has that
value in each dimension.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Final

from countersink.runtime.dimensions import SEPARATOR, part, values_of
from countersink.runtime.limits import OVERFLOW
from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.breakdowns import (
    Breakdown,
    Dimensioned,
    is_breakdown,
    is_stored,
    read_dimensioned,
)
from countersink.store.counters.buckets import ONE_DAY, month_ends, month_of
from countersink.store.counters.policies import (
    DEFAULT,
    POLICY_COLUMNS,
    Policy,
    load_own,
    policy_of,
    read_policies,
)
from countersink.store.errors import RolledUp, StoreError, UnknownCounter
from countersink.store.sql import label_of, marks
from countersink.store.totals.selection import KeyMatch, Selection
from countersink.store.totals.views import View

NAMES_PER_QUERY: Final = 10_000
"""Names of counters that are read at a time, at most."""
_NAMED: Final = (
    ("counter_ledger", "counter"),
    ("counter_slot FORCE INDEX (PRIMARY)", "counter"),
    ("counter_month FORCE INDEX (PRIMARY)", "counter"),
    ("counter", "name"),
)
"""Tables that have names of counters, and the column, by which each has an index."""

Months = tuple[date, date]
"""The first days of the first and of the last month, both inclusive."""


@dataclass(frozen=True, slots=True)
class RolledUpDays:
    """Which days of a counter are rolled up to months.

    Attributes:
        up_to: the first day that is not.
        first: the first day of the first month that has rows.
        last: the first day of the last one.
    """

    up_to: date
    first: date
    last: date

    @property
    def last_day(self) -> date:
        """The last day that can be in a month."""
        return min(month_ends(self.last), self.up_to - ONE_DAY)

    def months(self, view: View, start: date | None, end: date | None) -> Months | None:
        """The months that a range holds whole; None for none.

        Raises:
            RolledUp: the range cuts through one.
        """
        if start is None and end is None:
            return self.first, self.last
        if isinstance(start, datetime) or isinstance(end, datetime) or not view.own:
            return self._all_or_none(view, start, end)
        low, high = self.first, self.last
        if start is not None and start > low:
            if start > self.last_day:
                return None
            if start != month_of(start):
                raise self._cut(view)
            low = start
        if end is not None and end < self.last_day:
            if end < low:
                return None
            if end != month_ends(end):
                raise self._cut(view)
            high = month_of(end)
        return low, high

    def require_days(
        self, view: View, start: date | None, end: date | None, *, unrolled: bool
    ) -> date:
        """Where a series of single days, or hours, may begin: ``start``, or, if only what is not
        rolled up is wanted, a day when all are there.

        Raises:
            RolledUp: the range was meant to begin, or ends, among days that are rolled up.
        """
        begins = self.days_from(view)
        first = None if start is None else view.first_day(start)
        gone = first is not None and first < begins and not self._before(view, start, end)
        last = None if end is None else view.final_day(end)
        if gone or (start is None and (not unrolled or (last is not None and last < begins))):
            raise self._refused(view, begins, ": ask from that day on, or for months")
        return begins if start is None else start

    def require_own(self, view: View) -> None:
        """Check that the view's days and months are those of the counter's own zones.

        Raises:
            RolledUp: they are not.
        """
        if not view.own:
            raise self._elsewhere(view)

    def days_from(self, view: View) -> date:
        """The first day in the view's zone of which nothing is in months."""
        if view.own:
            return self.up_to
        zone = view.time_zone
        assert zone is not None
        _, highest = self._instants(view)
        day = buckets.date_at(zone, highest)
        return day if buckets.day_begins(zone, day) >= highest else day + ONE_DAY

    def _before(self, view: View, start: date | None, end: date | None) -> bool:
        """Whether a range lies before or behind all that months hold."""
        try:
            return self.months(view, start, end) is None
        except RolledUp:
            return False

    def _all_or_none(self, view: View, start: date | None, end: date | None) -> Months | None:
        """For days of a zone that is not the counter's, and for times: all of the months, or none.

        Raises:
            RolledUp: the range takes a part of them.
        """
        if start is not None and not self._all_after(view, start):
            return None
        following = end if end is None or isinstance(end, datetime) else buckets.after(end)
        if following is None:
            return self.first, self.last
        return None if self._all_after(view, following) else (self.first, self.last)

    def _all_after(self, view: View, edge: date) -> bool:
        """Whether all that is in months comes after the begin of a day, or a time, or all of it
        before.

        Raises:
            RolledUp: some before, some after.
        """
        if isinstance(edge, datetime):
            changes: tuple[int, ...] = (buckets.unix(edge),)
        else:
            zones = {view.zone_of(policy) for policy in view.policies}
            changes = tuple(each for zone in zones for each in buckets.date_changes(zone, edge))
        lowest, highest = self._instants(view)
        if any(lowest < change < highest for change in changes):
            raise self._elsewhere(view)
        return changes[0] <= lowest

    def _instants(self, view: View) -> tuple[int, int]:
        """Unix seconds between which everything in the months lies."""
        zones = {policy.known_zone() for policy in view.policies}
        return (
            min(buckets.day_begins(zone, self.first) for zone in zones),
            max(buckets.day_begins(zone, self.last_day + ONE_DAY) for zone in zones),
        )

    def _elsewhere(self, view: View) -> RolledUp:
        if view.own:
            return self._cut(view)
        since = self.days_from(view)
        advice = f"ask for {view.time_zone} from {since} on, or without a time zone"
        return self._refused(view, self.up_to, f" of its own time zone: {advice}")

    def _cut(self, view: View) -> RolledUp:
        advice = f": ask for whole months, or from {self.up_to} on"
        return self._refused(view, self.up_to, advice)

    def _refused(self, view: View, before: date, rest: str) -> RolledUp:
        return RolledUp(
            f"the days of {view.counter!r} before {before} are rolled up to months{rest}",
            rolled_up_to=self.up_to,
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a counter in one snapshot: policies, rolled-up days.

    Attributes:
        counter: its name, '' where it cannot be one: no row has it.
        known: somebody has made it, or something was counted, be it 0.
        policies: its policies, the earliest first; at least one.
        rolled: what of it is in months; None for nothing.
    """

    counter: str
    known: bool
    policies: tuple[Policy, ...]
    rolled: RolledUpDays | None

    def view(self, time_zone: str | None) -> View:
        """Its buckets in a time zone; ValueError where there is none of that name."""
        return View(self.counter, self.policies, time_zone)


def shape(session: Session, counter: str | None) -> Shape:
    """What is known of a counter; also of one that is not known."""
    name = _name(counter)
    if session.group is not None and name in session.group:
        return session.group.shape(name)
    rows = session.query(
        "SELECT EXISTS (SELECT 1 FROM counter_ledger WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_slot WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_month WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter WHERE name = %s),"
        " (SELECT rolled_up_to FROM counter WHERE name = %s),"
        " (SELECT MIN(bucket) FROM counter_month WHERE counter = %s),"
        " (SELECT MAX(bucket) FROM counter_month WHERE counter = %s),"
        f" {POLICY_COLUMNS}"
        " FROM (SELECT 1) AS one LEFT JOIN counter_policy ON counter = %s"
        " ORDER BY valid_from, number",
        (name,) * 8,
    )
    known, up_to, first, last = rows[0][:4]
    policies = tuple(policy_of(name, row[4:]) for row in rows if row[4] is not None)
    rolled = None if first is None else _rolled(up_to, first, last)
    return Shape(name, bool(known), policies or (DEFAULT,), rolled)


def shapes(session: Session, names: Sequence[str]) -> dict[str, Shape]:
    """What is known of each of some counters, of which no query asks for one alone."""
    if not names:
        return {}
    inside = f"IN ({marks(names)})"
    up_to = dict(
        session.query(f"SELECT name, rolled_up_to FROM counter WHERE name {inside}", names)
    )
    months = {
        name: (first, last)
        for name, first, last in session.query(
            "SELECT counter, MIN(bucket), MAX(bucket) FROM counter_month FORCE INDEX (PRIMARY)"
            f" WHERE counter {inside} GROUP BY counter",
            names,
        )
    }
    policies = read_policies(session, names)
    known = {*up_to, *months}
    for table in ("counter_ledger", "counter_slot"):
        # Hardly any counter has rows, and none in the ledger: only these are looked up there.
        if left := [name for name in names if name not in known]:
            found = session.query(
                f"SELECT DISTINCT counter FROM {table} FORCE INDEX (PRIMARY)"
                f" WHERE counter IN ({marks(left)})",
                left,
            )
            known |= {name for (name,) in found}
    return {
        name: Shape(
            name,
            name in known,
            policies.get(name, (DEFAULT,)),
            _rolled(up_to.get(name), *months[name]) if name in months else None,
        )
        for name in names
    }


def known_shape(session: Session, counter: str | None) -> Shape:
    """What is known of a counter.

    Raises:
        UnknownCounter: nothing.
    """
    found = shape(session, counter)
    if not found.known:
        raise UnknownCounter(f"nothing was ever counted as {counter!r}")
    return found


def selected(session: Session, selection: Selection) -> Shape:
    """What is known of the counter of a selection.

    Raises:
        UnknownCounter: nothing, here or by whoever made the selection.
    """
    find = shape if selection.known else known_shape
    return find(session, selection.counter)


def rolled_up_to(
    session: Session,
    counter: str | None = None,
    visible: Callable[[str], bool] = lambda name: True,
) -> date | None:
    """The day before which days of a counter are in months, of all that are visible the latest such
    day; None where nothing is in months.
    """
    if counter is not None and session.group is not None and counter in session.group:
        rolled = session.group.shape(counter).rolled
        return None if rolled is None else rolled.up_to
    one, args = ("", ()) if counter is None else (" WHERE counter = %s", (_name(counter),))
    # A loose scan: of each counter its first month and its last are looked up.
    found = session.query(
        "SELECT counter, first, last, rolled_up_to FROM ("
        "SELECT counter, MIN(bucket) AS first, MAX(bucket) AS last"
        f" FROM counter_month FORCE INDEX (PRIMARY){one} GROUP BY counter"
        ") AS months LEFT JOIN counter ON name = counter",
        args,
    )
    return max(
        (_rolled(up_to, first, last).up_to for name, first, last, up_to in found if visible(name)),
        default=None,
    )


def counter_names(session: Session) -> list[str]:
    """The names of all counters that were made or counted, in order, without those of
    breakdowns.
    """
    return sorted(name for some in names_in_parts(session, "") for name in some)


def names_in_parts(session: Session, after: str, *, reverse: bool = False) -> Iterator[list[str]]:
    """The names of counters, :data:`NAMES_PER_QUERY` or so at a time, each time by an index.

    Args:
        session: in a snapshot.
        after: the names behind this one; empty: all.
        reverse: the last one first, and those before ``after``.
    """
    order = "DESC" if reverse else "ASC"
    while True:
        beyond = f"{{}} {'<' if reverse else '>'} %s" if after else "%s = ''"
        each = [
            f"(SELECT {name} AS counter FROM {table} WHERE {beyond.format(name)}"
            f" GROUP BY {name} ORDER BY {name} {order} LIMIT {NAMES_PER_QUERY})"
            for table, name in _NAMED
        ]
        found = session.query(
            f"SELECT counter FROM ({' UNION '.join(each)}) AS named"
            f" ORDER BY counter {order} LIMIT {NAMES_PER_QUERY}",
            [after] * len(each),
        )
        yield [name for (name,) in found if not is_breakdown(name)]
        if len(found) < NAMES_PER_QUERY:
            return
        ((after,),) = found[-1:]


def known_names(session: Session, wanted: Sequence[str]) -> list[str]:
    """Those of ``wanted``, valid names, that were made or counted, in order."""
    if not wanted:
        return []
    each = [
        f"SELECT {name} FROM {table} WHERE {name} IN ({marks(wanted)})" for table, name in _NAMED
    ]
    return sorted(name for (name,) in session.query(" UNION ".join(each), [*wanted] * len(each)))


def shaped_names(session: Session) -> set[str]:
    """The counters whose rows do not simply add up by UTC day: that have policies, or months."""
    found = session.query(
        "SELECT DISTINCT counter FROM counter_policy"
        " UNION SELECT counter FROM counter_month FORCE INDEX (PRIMARY) GROUP BY counter"
    )
    return {name for (name,) in found}


def _rolled(up_to: date | None, first: datetime, last: datetime) -> RolledUpDays:
    """What is in months from the first to the last, with the day that is on record.

    Whatever is on record, no row is left out of a total: a month for which there is no such day, or
    an earlier one, may hold any of its days.
    """
    if up_to is None or up_to <= last.date():
        last_day = month_ends(last.date())
        up_to = last_day if last_day == date.max else last_day + ONE_DAY
    return RolledUpDays(up_to, first.date(), last.date())


def _first_day(session: Session, counter: str) -> date | None:
    """The first day of a counter that has counts, or is in a month that has; None if none has."""
    view = shape(session, counter).view(None)
    ((first, month),) = session.query(
        "SELECT (SELECT MIN(bucket) FROM counter_slot WHERE counter = %s),"
        " (SELECT MIN(bucket) FROM counter_month WHERE counter = %s)",
        (counter, counter),
    )
    if month is not None:
        first_month: date = month.date()
        return first_month
    return None if first is None else view.day(label_of(first))


def _name(counter: str | None) -> str:
    """``counter``; '' for what cannot be a counter's name, which is as unknown.

    The column would take 'c ' for 'c': it is compared with blanks added at the end.
    """
    return counter if counter is not None and is_stored(counter) else ""


@dataclass(frozen=True, slots=True)
class BreakdownView:
    """A breakdown as a question sees it.

    Attributes:
        counter: the counter that was asked about.
        breakdown: what answers.
        selection: the question, of the breakdown's own counter and of its keys.
        by: the dimensions that are asked for, in order.
        whole: each key stands for other values of these, so that nothing is to be added up, and
            keys are in the order of these values.
    """

    counter: str
    breakdown: Breakdown
    selection: Selection
    by: tuple[str, ...]
    whole: bool

    def values(self, key: str) -> tuple[str, ...]:
        """What a key of the breakdown says of the dimensions that are asked for."""
        if key == OVERFLOW:
            return (OVERFLOW,) * len(self.by)
        values = values_of(key)
        names = self.breakdown.dimensions
        return tuple(
            values[place] if (place := names.index(name)) < len(values) else "" for name in self.by
        )

    def projected(self, amounts: Sequence[tuple[str, int]]) -> list[tuple[tuple[str, ...], int]]:
        """(values, total) of (key, total), the largest first, then by the values."""
        found: dict[tuple[str, ...], int] = {}
        for key, amount in amounts:
            values = self.values(key)
            found[values] = found.get(values, 0) + amount
        return sorted(found.items(), key=lambda pair: (-pair[1], _bytes(pair[0])))

    @property
    def since(self) -> datetime | None:
        """The time from which on the breakdown holds the events; None: it holds all."""
        since = self.breakdown.since
        return datetime.fromtimestamp(since * 60, UTC) if since else None

    def lacks(self, session: Session, start: date | None) -> datetime | None:
        """:attr:`since`, if a range that begins so has times before it. One without a beginning
        begins with the first day that has counts.
        """
        since = self.since
        if since is None:
            return None
        start = start or _first_day(session, self.counter)
        if start is None:
            return None
        if isinstance(start, datetime):
            return since if start < since else None
        own = load_own(session, self.counter)
        zones = [self.selection.time_zone or policy.known_zone() for policy in own]
        begins = min(buckets.day_begins(zone, start) for zone in zones)
        return since if begins < since.timestamp() else None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors within name the counter that was asked about."""
        try:
            yield
        except StoreError as error:
            error.args = (str(error).replace(self.breakdown.name, self.counter), *error.args[1:])
            raise


def view_of(session: Session, selection: Selection, by: Sequence[str] = ()) -> BreakdownView:
    """What answers a question by dimensions: the smallest breakdown that has those of ``by`` and
    of the selection's ``where``, and all events of the range; of such that which begins with those
    of the latter. Where none has all events, that which has them from the earliest time on.

    Raises:
        UnknownCounter: there is no such counter.
        UnknownDimension: the counter has not declared one of them, or no such breakdown.
    """
    counter = selection.counter
    assert counter is not None
    where = dict(selection.where)
    known_shape(session, counter)
    own = read_dimensioned(session, counter).get(counter, Dimensioned(counter, ()))
    views = [
        BreakdownView(
            counter,
            found,
            replace(selection, counter=found.name, keys=_match(found.dimensions, where), where=()),
            tuple(by),
            [name for name in found.dimensions if name not in where]
            == [name for name in by if name not in where],
        )
        for found in own.answering({*by, *where}, where)
    ]
    whole = (each for each in views if each.lacks(session, selection.start) is None)
    return next(whole, min(views, key=lambda each: each.breakdown.since))


def _match(names: Sequence[str], where: Mapping[str, str]) -> KeyMatch | None:
    """The keys that have some values."""
    if not where:
        return None
    parts = {name: part(value, len(names)) for name, value in where.items()}
    first = []
    for name in names:
        if name not in parts:
            break
        first.append(parts.pop(name))
    place = {name: number for number, name in enumerate(names)}
    others = tuple((place[name], value) for name, value in sorted(parts.items()))
    every = [OVERFLOW] if set(first) == {OVERFLOW} else []
    head = SEPARATOR.join(first)
    if len(first) == len(names):
        return KeyMatch(keys=[head, *every])
    prefix = head + SEPARATOR if first else ""
    return KeyMatch(keys=every, prefix=prefix, values=others)


def _bytes(values: Sequence[str]) -> list[bytes]:
    return [value.encode("utf-8", "surrogateescape") for value in values]
