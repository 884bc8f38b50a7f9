"""Totals by day, hour and month, with zeros for empty ones, and the errors for hours that a counter
does not have; the error for series too long is in ``counters/buckets.py``.

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
from typing import Final

from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.buckets import LAST_DAY, ONE_DAY, WIDTH, month_of
from countersink.store.counters.policies import Policy
from countersink.store.errors import InexactZone, SeriesTooLong
from countersink.store.totals.selection import Selection
from countersink.store.totals.shapes import selected
from countersink.store.totals.sums import Scope, by_label, by_month
from countersink.store.totals.views import View, advice

Added = Mapping[int, int]
NOTHING: Final[Added] = MappingProxyType({})
Hours = list[tuple[datetime, int]]
"""(begin of the hour, total)."""


def daily(session: Session, selection: Selection, added: Added = NOTHING) -> list[tuple[date, int]]:
    """(day, total) for each day of the range in order, 0 where nothing was counted.

    Without ``start``, if ``unrolled``, it begins behind the days that are rolled up to months.

    Raises:
        RolledUp: the range begins, or lies, among those days; without ``start`` and ``unrolled``
            also where there are any.
    """
    found = _days(session, selection, added)
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
        RolledUp: as :func:`daily`.
    """
    found = _days(session, selection, added)
    with found.fitting():
        return _by_hour(found.view, found.amounts, selection.start, selection.end)


def monthly(
    session: Session, selection: Selection, added: Added = NOTHING
) -> list[tuple[date, int]]:
    """(first day of the month, total) for each month of the range in order, 0 without counts.

    Of the first and the last month it is what the range holds of them.
    """
    start, end = selection.start, selection.end
    own = selected(session, selection)
    view = own.view(selection.time_zone)
    scope = Scope.of(own, view, start, end)
    if scope.months is not None and own.rolled is not None:
        own.rolled.require_own(view)
    rolled = by_month(session, scope, selection.keys)
    found = _Found(view, by_label(session, scope, selection.keys), start, end).plus(added)
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
    def bounds(self) -> tuple[date, date] | tuple[()]:
        """The first and the last day: those asked for, else those that have a bucket."""
        if self.start is not None and self.end is not None:
            return self.start, self.end
        if not self.amounts:
            return ()
        first = self.start or min(self.view.day(label) for label in self.amounts)
        return first, self.end or max(self.view.last_day(label) for label in self.amounts)


def _days(session: Session, selection: Selection, added: Added) -> _Found:
    """What there is of single days."""
    start, end, keys = selection.start, selection.end, selection.keys
    own = selected(session, selection)
    view = own.view(selection.time_zone)
    if own.rolled is None:
        scope = Scope.of(own, view, start, end)
        return _Found(view, by_label(session, scope, keys), start, end).plus(added)
    begins = own.rolled.require_days(view, start, end, unrolled=selection.unrolled)
    scope = Scope.of(replace(own, rolled=None), view, begins, end)
    ranges = scope.ranges or ()
    late = {label for label in added if not any(label in one for one in ranges)}
    later = {label: amount for label, amount in added.items() if label not in late}
    return _Found(view, by_label(session, scope, keys), start, end).plus(later)


def _by_hour(view: View, amounts: Mapping[int, int], start: date | None, end: date | None) -> Hours:
    """(begin of the hour, total) for each hour of the days, 0 where ``amounts`` has no bucket.

    Args:
        view: in whose zone, or zones: an hour is shown in that of the policy it was counted under.
        amounts: the sums of the range, by label.
        start, end: days; None: from, or to, the hour that has the first, or the last, bucket.

    Raises:
        InexactZone: an hour of the range begins within a bucket.
        SeriesTooLong: there are too many.
    """
    if not amounts and (start is None or end is None):
        return []
    totals: dict[tuple[int, int], int] = {}  # by (begin, offset), in the order they come
    stretches: list[tuple[Policy, int, int, int]] = []
    for policy, since, until in _terms(view):
        zone = view.zone_of(policy)
        if start is not None:
            begin = buckets.day_begins(zone, start)
        else:
            begin = min(view.moment(label) for label in amounts)
        begin = begin if since is None else max(begin, since)
        if end is not None:
            last = buckets.day_begins(zone, min(end, LAST_DAY) + ONE_DAY)
        else:
            last = max(view.policy(label).ends_at(label) for label in amounts)
        last_event = view.until(policy)
        last_event = last if last_event is None else min(last, last_event)
        if begin < last_event and policy.resolution == "day":
            raise _no_hours(view, policy)
        stop = last if until is None else min(last, until)
        buckets.require_length(
            (stop - begin) // 3600,
            "hours",
            _utc(begin),
            _utc(stop),
            whole_days=buckets.MAX_DAYS // 25,  # clocks repeat an hour
        )
        stretches.append((policy, begin, stop, last_event))
    # Only now, that all of them are known to be short: it looks at every day.
    for policy, begin, stop, last_event in stretches:
        _require(view, policy, begin, last_event)
        totals |= dict.fromkeys(buckets.hours(view.zone_of(policy), begin, stop), 0)
    for label, amount in amounts.items():
        hour = buckets.hour_at(view.zone_of(view.policy(label)), view.moment(label))
        totals[hour] = totals.get(hour, 0) + amount
    return [
        (datetime.fromtimestamp(hour, timezone(timedelta(seconds=offset))), totals[hour, offset])
        for hour, offset in sorted(totals, key=itemgetter(0))
    ]


def _terms(view: View) -> list[tuple[Policy, int | None, int | None]]:
    """Each policy with the time, in Unix seconds, from which and until which it is in force."""
    begins = [view.since(policy) for policy in view.policies]
    return list(zip(view.policies, begins, [*begins[1:], None], strict=True))


def _no_hours(view: View, policy: Policy) -> InexactZone:
    rest = ""
    if policy.used_to is not None:
        following = buckets.after(policy.local_day(policy.used_to))
        rest = f" until its policy changed: ask from {following} on, or"
    return InexactZone(
        f"{view.counter!r} is counted by day, which has no hours{rest}; `countersink counter set"
        f" {view.counter} --resolution hour --from …` counts hours from a time to come on"
    )


def _require(view: View, policy: Policy, begin: int, stop: int) -> None:
    """Check that every hour of [begin, stop) begins where a bucket of the policy does."""
    zone = view.zone_of(policy)
    width = WIDTH[policy.resolution] * 60
    for since, _, offset in buckets.offsets(zone, begin, stop):
        if offset % width or (since != begin and since % width):
            behind = "behind" if offset < 0 else "ahead of"
            raise InexactZone(
                f"{view.counter!r} is counted by {policy.resolution} of UTC, but hours of {zone},"
                f" from {_utc(since)} on {timedelta(seconds=abs(offset))} {behind} UTC, begin in"
                f" the middle of one: {advice(view.counter, policy, zone)}"
            )


def _utc(instant: int) -> str:
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%MZ")
