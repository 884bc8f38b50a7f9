"""Series of totals: by day, by hour, by month.

As :mod:`countersink.store.totals_sql`, whose errors they raise; beside those ValueError for a
series of more than :data:`countersink.store.periods.MAX_DAYS`. ``added`` are amounts by label that
are not in the tables yet, such as those that are still in a queue; only those of the range and the
keys that are asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from types import MappingProxyType
from typing import Final

from countersink.store import hours, periods
from countersink.store.connection import Session
from countersink.store.periods import month_of
from countersink.store.ranges import check_days
from countersink.store.shapes import known_shape, shape
from countersink.store.sums import Scope, by_label, by_month
from countersink.store.views import View

Added = Mapping[int, int]
NOTHING: Final[Added] = MappingProxyType({})


def daily(
    session: Session,
    counter: str,
    *,
    keys: Sequence[str] | None = None,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    added: Added = NOTHING,
    known: bool = False,
) -> list[tuple[date, int]]:
    """(day, total) for each day of the range in order, 0 where nothing was counted.

    Without ``start`` it begins behind the days that are rolled up to months.

    Raises:
        RolledUp: the range begins, or lies, among those days.
    """
    found = _unrolled(session, counter, keys, start, end, time_zone, added, known)
    days = periods.days(*found.bounds) if found.bounds else []
    found.view.require_days(days[1:])
    totals = dict.fromkeys(days, 0)
    for label, amount in found.amounts.items():
        totals[found.view.day(label)] += amount
    return list(totals.items())


def hourly(
    session: Session,
    counter: str,
    *,
    keys: Sequence[str] | None = None,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    added: Added = NOTHING,
    known: bool = False,
) -> hours.Series:
    """(begin of the hour, total) for each hour of the range in order, 0 where nothing was counted.

    The begin is an aware datetime with the zone's UTC offset. Where clocks repeat an hour it is
    there twice; one that they leave out is not. Without ``start`` and ``end`` from the first hour
    with data to the last, behind what is rolled up to months.

    Raises:
        InexactZone: also where the counter is counted by day.
        RolledUp: as :func:`daily`.
    """
    found = _unrolled(session, counter, keys, start, end, time_zone, added, known)
    return hours.by_hour(found.view, found.amounts, start, end)


def monthly(
    session: Session,
    counter: str,
    *,
    keys: Sequence[str] | None = None,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    added: Added = NOTHING,
    known: bool = False,
) -> list[tuple[date, int]]:
    """(first day of the month, total) for each month of the range in order, 0 without counts.

    Of the first and the last month it is what the range holds of them.
    """
    check_days(start, end)
    own = shape(session, counter) if known else known_shape(session, counter)
    view = own.view(time_zone)
    scope = Scope.of(own, view, start, end)
    if scope.months is not None and own.rolled is not None:
        own.rolled.require_own(view)
    rolled = by_month(session, scope, keys)
    found = _Found(view, by_label(session, scope, keys), start, end).plus(added)
    bounds = [*rolled, *found.bounds] if found.bounds else list(rolled)
    if start is not None and end is not None:
        bounds = [start, end]
    if not bounds:
        return []
    months = periods.months(start or min(bounds), end or max(bounds))
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

    @property
    def bounds(self) -> tuple[date, date] | tuple[()]:
        """The first and the last day: those asked for, else those that have a bucket."""
        if self.start is not None and self.end is not None:
            return self.start, self.end
        if not self.amounts:
            return ()
        first = self.start or min(self.view.day(label) for label in self.amounts)
        return first, self.end or max(self.view.last_day(label) for label in self.amounts)


def _unrolled(
    session: Session,
    counter: str,
    keys: Sequence[str] | None,
    start: date | None,
    end: date | None,
    time_zone: str | None,
    added: Added,
    known: bool,
) -> _Found:
    """What there is of single days."""
    check_days(start, end)
    own = shape(session, counter) if known else known_shape(session, counter)
    view = own.view(time_zone)
    if own.rolled is None:
        scope = Scope.of(own, view, start, end)
        return _Found(view, by_label(session, scope, keys), start, end).plus(added)
    begins = own.rolled.require_days(view, start, end)
    scope = replace(Scope.of(replace(own, rolled=None), view, begins, end), months=None)
    ranges = scope.ranges or ()
    late = {label for label in added if not any(label in one for one in ranges)}
    later = {label: amount for label, amount in added.items() if label not in late}
    return _Found(view, by_label(session, scope, keys), start, end).plus(later)
