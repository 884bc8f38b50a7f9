"""Series of totals by day, week, hour, minute or month, with zeros (``series``). Decides where a
series begins. If a series is too long, chooses the part that is returned. Refuses hours and minutes
that a counter does not have. See ``counters/buckets.py`` for the maximum length.

Functions raise the errors of :mod:`countersink.counting.totals.sums`, and SeriesTooLong.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from operator import itemgetter
from typing import Any, Final, Literal, get_args

from countersink.counting.counters import buckets
from countersink.counting.counters.buckets import (
    FINER,
    LAST_DAY,
    MINUTES,
    ONE_DAY,
    Width,
    is_wider,
    month_ends,
    month_of,
)
from countersink.counting.errors import InexactZone, RolledUp, SeriesTooLong
from countersink.counting.totals.selection import Selection
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.totals.sums import Scope, by_label
from countersink.counting.totals.views import View
from countersink.runtime.texts import moment_text

Unit = Literal["day", "week", "hour", "minute", "month"]
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
MAX_WEEKS: Final = 15_000
"""Maximum number of weeks in a series. They have more days than the longest series of days."""
ClockUnit = Literal["hour", "minute"]
SECONDS: Final[Mapping[Unit, int]] = {"hour": 3600, "minute": 60}


def week_of(day: date) -> date:
    """Return the Monday of the ISO week in which a day is."""
    return day - day.weekday() * ONE_DAY


def week_ends(day: date) -> date:
    """Return the Sunday of the ISO week in which a day is, or ``date.max`` if that is earlier."""
    return week_of(day) + min(6 * ONE_DAY, date.max - week_of(day))


def _weeks(first: date, last: date) -> list[date]:
    begin, count = week_of(first), (week_of(last) - week_of(first)).days // 7 + 1
    days = 7 * MAX_WEEKS - 7
    buckets.require_length(count, "weeks", first, last, most=MAX_WEEKS, whole_days=days)
    return [begin + timedelta(weeks=number) for number in range(count)]


@dataclass(frozen=True, slots=True)
class DateUnit:
    """A unit that consists of whole days: a day, week or month.

    Attributes:
        first, last: functions that return the first and the last day of the unit that contains a
            given day.
        listed: function that returns the first day of each unit, from the unit that contains one
            given day to the unit that contains another. It raises SeriesTooLong for too many.
    """

    first: Callable[[date], date]
    last: Callable[[date], date]
    listed: Callable[[date, date], list[date]]


DATE_UNITS: Final[Mapping[Unit, DateUnit]] = {
    "day": DateUnit(lambda day: day, lambda day: day, buckets.days),
    "week": DateUnit(week_of, week_ends, _weeks),
    "month": DateUnit(month_of, month_ends, buckets.months),
}


@dataclass(frozen=True, slots=True)
class Series:
    """The total of each day, week, hour, minute or month of a range, in order; 0 where nothing was
    counted.

    Attributes:
        rows: (day, total), (first day of the ISO week or month, total), or (begin of the hour or
            minute, total). A begin is an aware datetime with the zone's UTC offset. An hour that
            clocks repeat has two rows; an hour that they skip has none. Of the first and the last
            week or month, only the days in the range are added up.
        told_from: day or time before which the range is left out, because it is rolled up to wider
            buckets. Otherwise None.
        truncated: True if the range was too long, and the rows are only a part of it.
    """

    rows: list[tuple[Any, int]]
    told_from: date | None = None
    truncated: bool = False


def series(
    snapshot: Snapshot,
    selection: Selection,
    unit: Unit,
    *,
    strict: bool = False,
    uncut: bool = False,
) -> Series:
    """Return the total of each day, week, hour, minute or month of a range. Without a start, the
    series begins with the first bucket that has rows. (If a rolled-up part is left out, hours and
    minutes begin at the end of this part.) Without an end, the series ends with the last bucket.

    Args:
        snapshot: the snapshot to read.
        selection: counter, keys and range.
        unit: what each row of the series is for.
        strict: True to raise an error instead of returning a partial answer. If False, the part of
            the range that is rolled up is left out. Also, if a series has no start and is too long,
            only a part of it is returned: of all parts that are short enough, the one that has the
            most days with counts. So a single event with a wrong time does not prevent every
            answer.
        uncut: True to raise an error if a series is too long, even if ``strict`` is False.

    Raises:
        RolledUp: ``strict`` is set, and a part of the range is rolled up to wider buckets; or the
            range begins or ends within a month that is a single bucket.
        InexactZone: the buckets do not add up to the units; or the counter has no hours, or no
            minutes.
        SeriesTooLong: the series is too long, and no part of it may be returned: ``strict`` or
            ``uncut`` is set, the range has a start, or no day has counts.
    """
    view = snapshot.selected(selection)
    wanted, told_from = answerable(view, selection, unit, strict=strict)
    if wanted is None:
        return Series([], told_from)
    begins = None if unit in DATE_UNITS and selection.start is None else wanted.start
    try:
        return Series(_rows(snapshot, view, wanted, unit, begins), told_from)
    except SeriesTooLong as error:
        first, last = error.fits_from, error.fits_to
        if strict or uncut or selection.start is not None or first is None or last is None:
            raise
        if unit in DATE_UNITS:
            first, last = DATE_UNITS[unit].first(first), DATE_UNITS[unit].last(last)
        # Not beyond the range that was asked for and can be answered.
        if wanted.start is not None and first <= view.first_day(wanted.start):
            first = wanted.start
        if wanted.end is not None and last >= view.final_day(wanted.end):
            last = wanted.end
        part = replace(wanted, start=first, end=last)
        return Series(_rows(snapshot, view, part, unit, first), told_from, truncated=True)


def answerable(
    view: View, selection: Selection, unit: Unit, *, strict: bool
) -> tuple[Selection | None, date | None]:
    """Return the part of a range whose units are not rolled up to wider buckets, and the day or
    time at which it begins. A week is left out if some of its days are rolled up.

    Returns:
        (None, begin) if the whole range is rolled up: begin is then after it. (``selection``, None)
        if nothing is rolled up. Otherwise a copy of the selection that begins later, and this
        begin.

    Raises:
        RolledUp: ``strict`` is set, and a part of the range is rolled up.
    """
    rolled = None if unit == "month" else _rolled(view, selection, unit)
    if rolled is None:
        return selection, None
    until, start, end = rolled[0], selection.start, buckets.following(selection.end)
    if start is not None and min(view.instants(start)) >= until:
        return selection, None
    begin: date = datetime.fromtimestamp(until, UTC)
    if unit in DATE_UNITS:
        begin = view.day_from(until)
    if unit == "week":
        begin = week_of(begin + 6 * ONE_DAY)  # months end within weeks
    nothing = end is not None and min(view.instants(end)) <= min(view.instants(begin))
    if strict:
        raise _rolled_up(view, unit, *rolled)
    return None if nothing else replace(selection, start=begin), begin


def _rolled_up(view: View, unit: Unit, until: int, width: Width) -> RolledUp:
    first = view.day_from(until)
    if width == "month":
        problem = f"the days of {view.counter!r} before {first} are rolled up to months: ask from"
        return RolledUp(f"{problem} that day on, or for months", rolled_up_to=first)
    return RolledUp(
        f"the {unit}s of {view.counter!r} before {moment_text(until)} are rolled up to wider"
        " buckets: ask from then on, or for days",
        rolled_up_to=first,
    )


def _rolled(view: View, selection: Selection, unit: Unit) -> tuple[int, Width] | None:
    """Return the Unix seconds before which the units of a range are rolled up to wider buckets, and
    the width of these buckets. Wider buckets of a former resolution are taken as rolled up, too.
    Return None if no wider bucket in the range has rows: then the total of a unit without rows is
    0, and not unknown.
    """
    start, end = selection.start, buckets.following(selection.end)
    begin = None if start is None else min(view.instants(start))
    stop = None if end is None else max(view.instants(end))
    found: tuple[int, Width] | None = None
    # Also wider buckets of a former resolution.
    for width, _ in (*view.scheme.rolled, *view.scheme.counted):
        until = view.scheme.until(width)
        if (
            until is not None
            and is_wider(width, "day" if unit == "week" else unit)
            and (found is None or until > found[0])
            and view.holds([width], begin, stop)
        ):
            found = until, width
    return found


def _rows(
    snapshot: Snapshot, view: View, wanted: Selection, unit: Unit, start: date | None
) -> list[tuple[Any, int]]:
    """Return the rows of a series: (begin of the unit, total), as in :class:`Series`.

    Args:
        snapshot, view, unit: as for :func:`series`.
        wanted: the selection, with the part of the range that can be answered.
        start: day or time at which the rows begin; None for the first bucket with rows.

    Raises:
        InexactZone: a day, week, hour, minute or month of the range begins within a bucket; or the
            counter has no hours, or no minutes.
        SeriesTooLong: the series is too long; the error has the part that is short enough (None if
            no day has counts).
    """
    scope = Scope.of(view, wanted.start, wanted.end)
    amounts = by_label(snapshot, scope, wanted.keys)
    try:
        if unit == "hour" or unit == "minute":
            stored = _StoredBuckets(view, amounts, all_keys=wanted.keys is None)
            return _hours(stored, start, wanted.end, unit)
        return _days(view, amounts, start, wanted.end, DATE_UNITS[unit])
    except SeriesTooLong as error:
        raise error.fitting({view.day(label) for label in amounts}) from None


def _days(
    view: View, amounts: dict[int, int], start: date | None, end: date | None, unit: DateUnit
) -> list[tuple[Any, int]]:
    first = None if start is None else view.first_day(start)
    last = None if end is None else view.final_day(end)
    if first is None or last is None:
        if not amounts:
            return []
        days = [view.day(label) for label in amounts]
        first = first or min(days)
        # The last day of a bucket may be before its first day, where clocks go back over midnight.
        last = last or max(*days, *map(view.last_day, amounts))
    places = unit.listed(first, last)
    view.require_series(places)
    totals = dict.fromkeys(places, 0)
    for label, amount in amounts.items():
        totals[unit.first(view.day(label))] += amount
    return list(totals.items())


def _hours(
    stored: "_StoredBuckets", start: date | None, end: date | None, unit: ClockUnit
) -> list[tuple[Any, int]]:
    view, amounts, length = stored.view, stored.amounts, SECONDS[unit]
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
    if begin < stop:
        _require_narrow(stored, begin, stop, unit)
    buckets.require_length(
        (stop - begin) // length,
        f"{unit}s",
        moment_text(begin),
        moment_text(stop),
        whole_days=buckets.MAX_DAYS * length // 90_000,  # clocks repeat an hour
    )
    # After the check of the length, as this takes time for every day.
    _require_whole(stored, begin, stop, unit)
    totals = dict.fromkeys(buckets.hours(view.zone, begin, stop, length), 0)
    for label, amount in amounts.items():
        hour = buckets.hour_at(view.zone, view.scheme.starts_at(label), length)
        totals[hour] = totals.get(hour, 0) + amount
    return [
        (datetime.fromtimestamp(hour, timezone(timedelta(seconds=offset))), totals[hour, offset])
        for hour, offset in sorted(totals, key=itemgetter(0))
    ]


@dataclass(frozen=True, slots=True)
class _StoredBuckets:
    """The buckets of a counter that have rows in a range.

    Attributes:
        view: the counter's buckets in a time zone.
        amounts: sums of the selected keys by bucket's label.
        all_keys: whether all keys are selected. If not, :meth:`include` also queries the table.
    """

    view: View
    amounts: dict[int, int]
    all_keys: bool

    def include(self, widths: Collection[Width], begin: int, stop: int) -> bool:
        """Return whether any bucket of these widths has rows (of any key) and overlaps the span
        from ``begin`` to before ``stop`` (Unix seconds).
        """
        view = self.view
        return any(
            view.width(label) in widths
            and view.scheme.starts_at(label) < stop
            and view.scheme.ends_at(label) > begin
            for label in self.amounts
        ) or (not self.all_keys and view.holds(widths, begin, stop))


def _require_narrow(stored: _StoredBuckets, begin: int, stop: int, unit: ClockUnit) -> None:
    """Raise InexactZone if events between ``begin`` and ``stop`` (Unix seconds, ``stop`` excluded)
    are counted in buckets wider than the unit.

    This is so if the span has rows in such buckets. It is also so if the counter is counted in such
    buckets now, and the span has no rows in narrower ones. Wider buckets that retention has made
    are ignored.
    """
    view = stored.view
    narrow = [each for each in view.widths if not is_wider(each, unit)]
    for width in view.widths:
        resolution = width == view.scheme.resolution
        if width in narrow or (not resolution and view.scheme.rolled_to(width) is not None):
            continue
        if (
            (resolution and view.certain(width, begin))
            or stored.include([width], begin, stop)
            or (resolution and not stored.include(narrow, begin, stop))
        ):
            raise _no_hours(view, width, unit)


def _no_hours(view: View, width: Width, unit: Unit) -> InexactZone:
    until, advice = view.scheme.until(width), ""
    if until is not None:
        advice = f": ask from {view.day_from(until)} on"
    elif view.scheme.resolution == width:
        advice = (
            f"; have later events counted by {unit} with `countersink counter set {view.counter}"
            f" --resolution {unit}`"
        )
    return InexactZone(f"{view.counter!r} {view.counted_by(width)}, so it has no {unit}s{advice}")


def _require_whole(stored: _StoredBuckets, begin: int, stop: int, unit: ClockUnit) -> None:
    """Raise InexactZone if any hour or minute in the span from ``begin`` to before ``stop`` (Unix
    seconds) begins within a bucket.
    """
    view = stored.view
    for width in view.widths:
        if width not in FINER or is_wider(width, unit):
            continue
        seconds, end = MINUTES[width] * 60, view.scheme.until(width)
        last = stop if end is None else min(stop, end)
        for since, until, offset in buckets.offsets(view.zone, begin, last):
            odd = offset % seconds or (since != begin and since % seconds)
            if odd and (view.certain(width, since) or stored.include([width], since, until)):
                behind = "behind" if offset < 0 else "ahead of"
                raise InexactZone(
                    f"{view.counter!r} {view.counted_by(width)} of UTC, but {unit}s of {view.zone},"
                    f" from {moment_text(since)} on {timedelta(seconds=abs(offset))} {behind} UTC,"
                    f" begin in the middle of a bucket: {view.advice(width, view.zone)}"
                )
