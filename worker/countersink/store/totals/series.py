"""Totals by day, hour, minute and month, with zeros for empty ones, and the errors for hours and
minutes that a counter does not have; the error for series too long is in ``counters/buckets.py``.

As :mod:`countersink.store.totals.sums`, whose errors they raise; beside those ValueError for a
series of more than :data:`countersink.store.counters.buckets.MAX_DAYS` (it says which part of it
would be short enough and has most of what was counted). ``added`` are amounts by label that are not
in the tables yet, such as those that are still in a queue; only those of the range and the keys
that are asked for.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from operator import itemgetter
from types import MappingProxyType
from typing import Final, Literal

from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.buckets import LAST_DAY, ONE_DAY, WIDTH, month_of
from countersink.store.counters.policies import Policy, counting
from countersink.store.errors import InexactZone, RolledUp, SeriesTooLong
from countersink.store.totals.selection import Selection
from countersink.store.totals.shapes import Shape, selected
from countersink.store.totals.sums import Scope, by_label, by_month
from countersink.store.totals.views import View, advice, condition, moment_text

Added = Mapping[int, int]
NOTHING: Final[Added] = MappingProxyType({})
Hours = list[tuple[datetime, int]]
"""(begin of the hour or minute, total)."""
Unit = Literal["hour", "minute"]
_SECONDS: Final[Mapping[Unit, int]] = {"hour": 3600, "minute": 60}


def daily(session: Session, selection: Selection, added: Added = NOTHING) -> list[tuple[date, int]]:
    """(day, total) for each day of the range in order, 0 where nothing was counted.

    Without ``start``, if ``unrolled``, it begins behind the days that are rolled up to months.

    Raises:
        RolledUp: the range begins, or lies, among those days; without ``start`` and ``unrolled``
            also where there are any.
    """
    found = _days(session, selected(session, selection), selection, added)
    with found.fitting():
        days = buckets.days(*found.bounds) if found.bounds else []
    found.view.require_days(days[1:])
    totals = dict.fromkeys(days, 0)
    for label, amount in found.amounts.items():
        totals[found.view.day(label)] += amount
    return list(totals.items())


def hourly(session: Session, selection: Selection, added: Added = NOTHING) -> Hours:
    """(begin of the hour, total) for each hour of the range in order, 0 where nothing was counted.

    The begin is an aware datetime with the zone's UTC offset. Where clocks repeat an hour it is
    there twice; one that they leave out is not. Without ``start`` and ``end`` from the first hour
    with data to the last; if ``unrolled``, behind what is rolled up to months.

    Raises:
        InexactZone: also where the counter is counted by day.
        RolledUp: as :func:`daily`; also where they are rolled up to days, and the series is to
            begin there.
    """
    return _by_time(session, selection, added, "hour")


def minutely(session: Session, selection: Selection, added: Added = NOTHING) -> Hours:
    """(begin of the minute, total) for each minute of the range in order, as :func:`hourly`.

    Raises:
        InexactZone: also where the counter is not counted by minute.
        RolledUp: as :func:`hourly`.
    """
    return _by_time(session, selection, added, "minute")


def told_from(session: Session, selection: Selection, unit: Unit) -> datetime | None:
    """The time from which on there are single hours, or minutes; None: nothing of the range is
    rolled up.
    """
    return _told_from(_holding(session, selection, unit).view(None), unit)


def monthly(
    session: Session, selection: Selection, added: Added = NOTHING
) -> list[tuple[date, int]]:
    """(first day of the month, total) for each month of the range in order, 0 without counts.

    Of the first and the last month it is what the range holds of them.
    """
    own = selected(session, selection)
    view = own.view(selection.time_zone)
    scope = Scope.of(own, view, selection.start, selection.end)
    if scope.months is not None and own.rolled is not None:
        own.rolled.require_own(view)
    rolled = by_month(session, scope, selection.keys)
    amounts = by_label(session, scope, selection.keys)
    found = _Found(view, amounts, selection.start, selection.end).plus(added)
    start, end = found.days_asked
    bounds = [*rolled, *found.bounds] if found.bounds else list(rolled)
    if start is not None and end is not None:
        bounds = [start, end]
    if not bounds:
        return []
    with found.fitting(rolled):
        months = buckets.months(start or min(bounds), end or max(bounds))
    view.require_days(months[1:])
    totals = dict.fromkeys(months, 0)
    for month, amount in rolled.items():
        totals[month] += amount
    for label, amount in found.amounts.items():
        totals[month_of(view.day(label))] += amount
    return list(totals.items())


@dataclass(frozen=True, slots=True)
class _Found:
    """The sums of a range's buckets by label, and the range as it was asked for."""

    view: View
    amounts: dict[int, int]
    start: date | None
    end: date | None

    def plus(self, added: Added) -> "_Found":
        """With these amounts too."""
        amounts = dict(self.amounts)
        for label, amount in added.items():
            amounts[label] = amounts.get(label, 0) + amount
        return replace(self, amounts=amounts)

    @contextmanager
    def fitting(self, months: Iterable[date] = ()) -> Iterator[None]:
        """A series that is too long says which part of it would do; of months, whole ones."""
        try:
            yield
        except SeriesTooLong as error:
            days = {self.view.day(label) for label in self.amounts}
            raise error.fitting({*days, *months}) from None

    @property
    def days_asked(self) -> tuple[date | None, date | None]:
        """The first and the last day of the range as it was asked for."""
        return (
            None if self.start is None else self.view.first_day(self.start),
            None if self.end is None else self.view.final_day(self.end),
        )

    @property
    def bounds(self) -> tuple[date, date] | tuple[()]:
        """The first and the last day: those asked for, else those that have a bucket."""
        start, end = self.days_asked
        if start is not None and end is not None:
            return start, end
        if not self.amounts:
            return ()
        first = start or min(self.view.day(label) for label in self.amounts)
        return first, end or max(self.view.last_day(label) for label in self.amounts)


def _days(session: Session, own: Shape, selection: Selection, added: Added) -> _Found:
    """What there is of single days."""
    start, end, keys = selection.start, selection.end, selection.keys
    view = own.view(selection.time_zone)
    begins = start
    if own.rolled is not None:
        begins = own.rolled.require_days(view, start, end, unrolled=selection.unrolled)
    scope = Scope.of(replace(own, rolled=None), view, begins, end)
    inside = added
    if scope.ranges is not None:
        # What is behind the begin of the series, where that was not asked for, is left out.
        ranges = scope.ranges
        inside = {
            label: amount for label, amount in added.items() if any(label in one for one in ranges)
        }
    return _Found(view, by_label(session, scope, keys), start, end).plus(inside)


def _by_time(session: Session, selection: Selection, added: Added, unit: Unit) -> Hours:
    """(begin of the hour or minute, total) for each of the range, 0 without a bucket.

    Raises:
        InexactZone: one of the range begins within a bucket.
        RolledUp: it is to begin where they are rolled up.
        SeriesTooLong: there are too many.
    """
    own = _holding(session, selection, unit)
    found = _days(session, own, _from_told(own, selection, unit), added)
    with found.fitting():
        return _laid_out(found, unit)


def _holding(session: Session, selection: Selection, unit: Unit) -> Shape:
    """What is known of the counter; without its buckets wider than hours or minutes, to which
    others are rolled up, where the range has none: then its zeros are exact.
    """
    own = selected(session, selection)
    view = own.view(selection.time_zone)
    start, end = selection.start, _following(selection.end)
    ranges = []
    for policy, one in zip(view.policies, view.possible(), strict=True):
        if _is_rolled(policy, unit):
            first, until = one.first, one.until
            if start is not None:
                first = buckets.later(first, _label(policy, min(_instants(view, start)) // 60))
            if end is not None:
                last = -(-max(_instants(view, end)) // 60) - 1
                until = buckets.earlier(until, _label(policy, last) + 1)
            ranges.append(replace(one, first=first, until=until))
    where, args = condition([one for one in ranges if not one.empty])
    if ranges and session.query(
        f"SELECT 1 FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s{where} LIMIT 1",
        (own.counter, *args),
    ):
        return own
    return replace(
        own, policies=tuple(policy for policy in own.policies if not _is_rolled(policy, unit))
    )


def _label(policy: Policy, minute: int) -> int:
    """The label of the bucket in which a minute lies, or the closest one that can have events."""
    return policy.label(min(max(0, minute), buckets.MAX_MINUTE))


def _is_rolled(policy: Policy, unit: Unit) -> bool:
    """Whether hours or minutes are rolled up to its buckets."""
    return policy.rolls is not None and WIDTH[policy.resolution] * 60 > _SECONDS[unit]


def _following(end: date | None) -> date | None:
    """Before which day, or time, a range ends."""
    return end if end is None or isinstance(end, datetime) else buckets.after(end)


def _from_told(own: Shape, selection: Selection, unit: Unit) -> Selection:
    """The selection, beginning where hours or minutes can be told if it is to begin anywhere.

    Raises:
        RolledUp: it is to begin, or ends, before that.
    """
    view = own.view(selection.time_zone)
    told = _told_from(view, unit)
    if told is None:
        return selection
    start, following = selection.start, _following(selection.end)
    gone = following is not None and min(_instants(view, following)) <= buckets.unix(told)
    if not gone and start is None and selection.unrolled:
        return replace(selection, start=told)
    if not gone and start is not None and min(_instants(view, start)) >= buckets.unix(told):
        return selection
    first = view.first_day(told)
    if min(_instants(view, first)) < buckets.unix(told):
        first = buckets.after(first) or first
    raise RolledUp(
        f"{view.counter!r} has no single {unit}s before {moment_text(buckets.unix(told))}: they are"
        " rolled up to wider buckets; ask from then on, or for days",
        rolled_up_to=first,
    )


def _instants(view: View, edge: date) -> list[int]:
    """Unix seconds at which a day begins in the view's zones, or that a time is."""
    if isinstance(edge, datetime):
        return [buckets.unix(edge)]
    zones = {view.zone_of(policy) for policy in view.policies}
    return [change for zone in zones for change in buckets.date_changes(zone, edge)]


def _told_from(view: View, unit: Unit) -> datetime | None:
    rolled = [
        until
        for policy in view.policies
        if _is_rolled(policy, unit) and (until := view.until(policy)) is not None
    ]
    return datetime.fromtimestamp(max(rolled), UTC) if rolled else None


def _laid_out(found: _Found, unit: Unit) -> Hours:
    view, amounts, start, end = found.view, found.amounts, found.start, found.end
    width = _SECONDS[unit]
    if not amounts and (start is None or end is None):
        return []
    totals: dict[tuple[int, int], int] = {}  # by (begin, offset), in the order they come
    stretches: list[tuple[Policy, int, int, int]] = []
    for policy, since, until in _terms(view):
        zone = view.zone_of(policy)
        if isinstance(start, datetime):
            begin = buckets.unix(start)
        elif start is not None:
            begin = buckets.day_begins(zone, start)
        else:
            begin = min(view.moment(label) for label in amounts)
        begin = begin if since is None else max(begin, since)
        if isinstance(end, datetime):
            last = buckets.unix(end)
        elif end is not None:
            last = buckets.day_begins(zone, min(end, LAST_DAY) + ONE_DAY)
        else:
            last = max(view.policy(label).ends_at(label) for label in amounts)
        last_event = view.until(policy)
        last_event = last if last_event is None else min(last, last_event)
        if begin < last_event and WIDTH[policy.resolution] * 60 > width:
            raise _no_hours(view, policy, unit)
        stop = last if until is None else min(last, until)
        buckets.require_length(
            (stop - begin) // width,
            f"{unit}s",
            moment_text(begin),
            moment_text(stop),
            whole_days=buckets.MAX_DAYS * width // 90_000,  # clocks repeat an hour
        )
        stretches.append((policy, begin, stop, last_event))
    # Only now, that all of them are known to be short: it looks at every day.
    _require_rolled(view, stretches, unit)
    for policy, begin, stop, last_event in stretches:
        _require(view, policy, begin, last_event, unit)
        totals |= dict.fromkeys(buckets.hours(view.zone_of(policy), begin, stop, width), 0)
    for label, amount in amounts.items():
        hour = buckets.hour_at(view.zone_of(view.policy(label)), view.moment(label), width)
        totals[hour] = totals.get(hour, 0) + amount
    return [
        (datetime.fromtimestamp(hour, timezone(timedelta(seconds=offset))), totals[hour, offset])
        for hour, offset in sorted(totals, key=itemgetter(0))
    ]


def _terms(view: View) -> list[tuple[Policy, int | None, int | None]]:
    """Each policy with the time, in Unix seconds, from which and until which it is in force."""
    policies = counting(view.policies)
    begins = [view.since(policy) for policy in policies]
    return list(zip(policies, begins, [*begins[1:], None], strict=True))


def _no_hours(view: View, policy: Policy, unit: Unit) -> InexactZone:
    rest = ""
    if policy.used_to is not None:
        following = buckets.after(policy.local_day(policy.used_to))
        rest = f" until its policy changed: ask from {following} on, or"
    return InexactZone(
        f"{view.counter!r} is counted by {policy.resolution}, which has no {unit}s{rest};"
        f" `countersink counter set {view.counter} --resolution {unit} --from …` counts {unit}s"
        " from a time to come on"
    )


def _require_rolled(view: View, stretches: list[tuple[Policy, int, int, int]], unit: Unit) -> None:
    """As :func:`_require`, of the buckets that others of these stretches were rolled up to."""
    for policy in view.policies:
        until = view.until(policy)
        if policy.rolls is None or until is None:
            continue
        for counting_one, begin, stop, _ in stretches:
            if counting_one.number == policy.rolls:
                _require(view, policy, begin, min(stop, until), unit)


def _require(view: View, policy: Policy, begin: int, stop: int, unit: Unit) -> None:
    """Check that every hour or minute of [begin, stop) begins where a bucket of the policy does."""
    zone = view.zone_of(policy)
    width = WIDTH[policy.resolution] * 60
    for since, _, offset in buckets.offsets(zone, begin, stop):
        if offset % width or (since != begin and since % width):
            behind = "behind" if offset < 0 else "ahead of"
            raise InexactZone(
                f"{view.counter!r} is counted by {policy.resolution} of UTC, but {unit}s of {zone},"
                f" from {moment_text(since)} on {timedelta(seconds=abs(offset))} {behind} UTC,"
                f" begin in the middle of one: {advice(view.counter, policy, zone)}"
            )
