"""Totals by day, hour, minute and month, with zeros for empty ones, and the errors for hours and
minutes that a counter does not have; the error for series too long is in ``counters/buckets.py``.

As :mod:`countersink.store.totals.sums`, whose errors they raise; beside those ValueError for a
series of more than :data:`countersink.store.counters.buckets.MAX_DAYS` (it says which part of it
would be short enough and has most of what was counted). ``added`` are amounts by label that are not
in the tables yet, such as those that are still in a queue; only those of the range and the keys
that are asked for.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from operator import itemgetter
from types import MappingProxyType
from typing import Final, Literal

from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.buckets import (
    FINER,
    LAST_DAY,
    MINUTES,
    ONE_DAY,
    Width,
    is_wider,
    month_of,
)
from countersink.store.errors import InexactZone, RolledUp, SeriesTooLong
from countersink.store.totals.selection import Selection
from countersink.store.totals.shapes import selected
from countersink.store.totals.sums import Scope, by_label
from countersink.store.totals.views import View, following, moment_text

Added = Mapping[int, int]
NOTHING: Final[Added] = MappingProxyType({})
Hours = list[tuple[datetime, int]]
"""(begin of the hour or minute, total)."""
Unit = Literal["day", "hour", "minute"]
_SECONDS: Final[Mapping[Unit, int]] = {"hour": 3600, "minute": 60}


def daily(session: Session, selection: Selection, added: Added = NOTHING) -> list[tuple[date, int]]:
    """(day, total) for each day of the range in order, 0 where nothing was counted.

    Without ``start``, if ``unrolled``, it begins behind the days that are rolled up to months.

    Raises:
        RolledUp: the range begins, or lies, among those days; without ``start`` and ``unrolled``
            also where there are any.
    """
    found = _found(session, selection, added, "day")
    with found.fitting():
        days = buckets.days(*found.bounds) if found.bounds else []
    found.view.require_series(session, days)
    totals = dict.fromkeys(days, 0)
    for label, amount in found.amounts.items():
        totals[found.view.day(label)] += amount
    return list(totals.items())


def hourly(session: Session, selection: Selection, added: Added = NOTHING) -> Hours:
    """(begin of the hour, total) for each hour of the range in order, 0 where nothing was counted.

    The begin is an aware datetime with the zone's UTC offset. Where clocks repeat an hour it is
    there twice; one that they leave out is not. Without ``start`` and ``end`` from the first hour
    with data to the last; if ``unrolled``, behind what is rolled up to wider buckets.

    Raises:
        InexactZone: also where the counter is counted by day.
        RolledUp: they are rolled up to wider buckets, and the series is to begin there.
    """
    return _by_time(session, selection, added, "hour")


def minutely(session: Session, selection: Selection, added: Added = NOTHING) -> Hours:
    """(begin of the minute, total) for each minute of the range in order, as :func:`hourly`.

    Raises:
        InexactZone: also where the counter is not counted by minute.
        RolledUp: as :func:`hourly`.
    """
    return _by_time(session, selection, added, "minute")


def monthly(
    session: Session, selection: Selection, added: Added = NOTHING
) -> list[tuple[date, int]]:
    """(first day of the month, total) for each month of the range in order, 0 without counts.

    Of the first and the last month it is what the range holds of them.
    """
    found = _found(session, selection, added, "month")
    with found.fitting():
        months = buckets.months(*found.bounds) if found.bounds else []
    found.view.require_series(session, months)
    totals = dict.fromkeys(months, 0)
    for label, amount in found.amounts.items():
        totals[month_of(found.view.day(label))] += amount
    return list(totals.items())


def told_from(session: Session, selection: Selection, unit: Unit) -> datetime | None:
    """The time from which on there are single hours, or minutes; None: nothing of the range is
    rolled up, but to months.
    """
    view = selected(session, selection).view(selection.time_zone)
    rolled = _rolled(session, view, selection, unit)
    return _time(rolled[0]) if rolled is not None and rolled[1] != "month" else None


def begins(
    session: Session, view: View, selection: Selection, unit: Unit | Literal["month"]
) -> date | None:
    """Where a series of days, hours or minutes may begin: where the selection does, or, if only
    what is not rolled up is wanted, where single ones are told.

    Raises:
        RolledUp: it is to begin, or ends, where they are rolled up.
    """
    rolled = None if unit == "month" else _rolled(session, view, selection, unit)
    start, end = selection.start, following(selection.end)
    if rolled is None:
        return start
    until, width = rolled
    gone = end is not None and min(view.instants(end)) <= until
    if not gone and start is None and selection.unrolled:
        return view.day_from(until) if unit == "day" else _time(until)
    if not gone and start is not None and min(view.instants(start)) >= until:
        return start
    first = view.day_from(until)
    if width == "month":
        what = f"the days of {view.counter!r} before {first} are rolled up to months: ask from"
        raise RolledUp(f"{what} that day on, or for months", rolled_up_to=first)
    raise RolledUp(
        f"{view.counter!r} has no single {unit}s before {moment_text(until)}, but wider buckets:"
        " ask from then on, or for days",
        rolled_up_to=first,
    )


def _rolled(
    session: Session, view: View, selection: Selection, unit: Unit
) -> tuple[int, Width] | None:
    """Up to which Unix second buckets are rolled up to wider ones than these, and to which; None:
    none of the range are, so that its zeros are exact.
    """
    start, end = selection.start, following(selection.end)
    begin = None if start is None else min(view.instants(start))
    stop = None if end is None else max(view.instants(end))
    found: tuple[int, Width] | None = None
    # Also those in which it counted before its resolution was changed.
    for width, _ in (*view.scheme.rolled, *view.scheme.counted):
        until = view.scheme.until(width)
        if (
            until is not None
            and is_wider(width, unit)
            and (found is None or until > found[0])
            and view.holds(session, [width], begin, stop)
        ):
            found = until, width
    return found


@dataclass(frozen=True, slots=True)
class _Found:
    """The sums of a range's buckets by label, and the range as it was asked for."""

    view: View
    amounts: dict[int, int]
    start: date | None
    end: date | None

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """A series that is too long says which part of it would do."""
        try:
            yield
        except SeriesTooLong as error:
            raise error.fitting({self.view.day(label) for label in self.amounts}) from None

    @property
    def bounds(self) -> tuple[date, date] | tuple[()]:
        """The first and the last day: those asked for, else those that have a bucket."""
        start = None if self.start is None else self.view.first_day(self.start)
        end = None if self.end is None else self.view.final_day(self.end)
        if start is not None and end is not None:
            return start, end
        if not self.amounts:
            return ()
        # The last day of a bucket may be before its first one, where clocks go back to it.
        first = [self.view.day(label) for label in self.amounts]
        last = [self.view.last_day(label) for label in self.amounts]
        return start or min(first), end or max(*first, *last)


def _found(
    session: Session, selection: Selection, added: Added, unit: Unit | Literal["month"]
) -> _Found:
    """What there is of a range, or of what of it is told by single ones."""
    view = selected(session, selection).view(selection.time_zone)
    begin = begins(session, view, selection, unit)
    scope = Scope.of(session, view, begin, selection.end)
    amounts = by_label(session, scope, selection.keys)
    for label, amount in added.items():
        # What is behind the begin of the series, where that was not asked for, is left out.
        if scope.ranges is None or any(label in one for one in scope.ranges):
            amounts[label] = amounts.get(label, 0) + amount
    # Days without counts before the first one that has some were not asked for.
    start = selection.start if unit == "day" else begin
    return _Found(view, amounts, start, selection.end)


def _by_time(session: Session, selection: Selection, added: Added, unit: Unit) -> Hours:
    """(begin of the hour or minute, total) for each of the range, 0 without a bucket.

    Raises:
        InexactZone: one of the range begins within a bucket.
        RolledUp: it is to begin where they are rolled up.
        SeriesTooLong: there are too many.
    """
    found = _found(session, selection, added, unit)
    with found.fitting():
        return _laid_out(session, found, selection, unit)


def _laid_out(session: Session, found: _Found, selection: Selection, unit: Unit) -> Hours:
    view, amounts, start, end = found.view, found.amounts, found.start, found.end
    length = _SECONDS[unit]
    if not amounts and (start is None or end is None):
        return []
    if isinstance(start, datetime):
        begin = buckets.unix(start)
    elif start is not None:
        begin = buckets.day_begins(view.zone, start)
    else:
        begin = min(view.scheme.starts_at(label) for label in amounts)
    if isinstance(end, datetime):
        stop = buckets.unix(end)
    elif end is not None:
        stop = buckets.day_begins(view.zone, min(end, LAST_DAY) + ONE_DAY)
    else:
        stop = max(view.scheme.ends_at(label) for label in amounts)
    held = _Held(session, found, all_keys=selection.keys is None)
    if begin < stop:
        _require_narrow(held, begin, stop, unit)
    buckets.require_length(
        (stop - begin) // length,
        f"{unit}s",
        moment_text(begin),
        moment_text(stop),
        whole_days=buckets.MAX_DAYS * length // 90_000,  # clocks repeat an hour
    )
    # Only now, that it is known to be short: it looks at every day.
    _require_whole(held, begin, stop, unit)
    totals = dict.fromkeys(buckets.hours(view.zone, begin, stop, length), 0)
    for label, amount in amounts.items():
        hour = buckets.hour_at(view.zone, view.scheme.starts_at(label), length)
        totals[hour] = totals.get(hour, 0) + amount
    return [
        (datetime.fromtimestamp(hour, timezone(timedelta(seconds=offset))), totals[hour, offset])
        for hour, offset in sorted(totals, key=itemgetter(0))
    ]


@dataclass(frozen=True, slots=True)
class _Held:
    """Which buckets have rows, of whatever key.

    Attributes:
        session: in the snapshot of the sums.
        found: them.
        all_keys: they are of all keys.
    """

    session: Session
    found: _Found
    all_keys: bool

    def any_of(self, widths: Collection[Width], begin: int, stop: int) -> bool:
        """Whether there are any of some widths from one Unix second to before another."""
        view = self.found.view
        return any(
            view.width(label) in widths
            and view.scheme.starts_at(label) < stop
            and view.scheme.ends_at(label) > begin
            for label in self.found.amounts
        ) or (not self.all_keys and view.holds(self.session, widths, begin, stop))


def _require_narrow(held: _Held, begin: int, stop: int, unit: Unit) -> None:
    """Check that nothing is in wider buckets than hours or minutes, and that these are counted."""
    view = held.found.view
    narrow = [each for each in view.widths if not is_wider(each, unit)]
    for width in view.widths:
        resolution = width == view.scheme.resolution
        if width in narrow or (not resolution and view.scheme.rolled_to(width) is not None):
            continue
        if (
            (resolution and view.certain(width, begin))
            or held.any_of([width], begin, stop)
            or (resolution and not held.any_of(narrow, begin, stop))
        ):
            raise _no_hours(view, width, unit)


def _no_hours(view: View, width: Width, unit: Unit) -> InexactZone:
    until, rest = view.scheme.until(width), ""
    if until is not None:
        rest = f": ask from {view.day_from(until)} on"
    elif view.scheme.resolution == width:
        rest = (
            f"; `countersink counter set {view.counter} --resolution {unit}` counts {unit}s from"
            " now on"
        )
    return InexactZone(f"{view.counter!r} {view.counted_by(width)}, which has no {unit}s{rest}")


def _require_whole(held: _Held, begin: int, stop: int, unit: Unit) -> None:
    """Check that every hour or minute of [begin, stop) begins where a bucket does."""
    view = held.found.view
    for width in view.widths:
        if width not in FINER or is_wider(width, unit):
            continue
        seconds, end = MINUTES[width] * 60, view.scheme.until(width)
        last = stop if end is None else min(stop, end)
        for since, until, offset in buckets.offsets(view.zone, begin, last):
            odd = offset % seconds or (since != begin and since % seconds)
            if odd and (view.certain(width, since) or held.any_of([width], since, until)):
                behind = "behind" if offset < 0 else "ahead of"
                raise InexactZone(
                    f"{view.counter!r} {view.counted_by(width)} of UTC, but {unit}s of {view.zone},"
                    f" from {moment_text(since)} on {timedelta(seconds=abs(offset))} {behind} UTC,"
                    f" begin in the middle of one: {view.advice(width, view.zone)}"
                )


def _time(instant: int) -> datetime:
    return datetime.fromtimestamp(instant, UTC)
