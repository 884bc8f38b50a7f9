"""Totals by day, hour, minute and month, with zeros for empty ones (``series``): where they begin,
which part of one that is too long is told, and the errors for hours and minutes that a counter does
not have; the error for series too long is in ``counters/buckets.py``.

As :mod:`countersink.counting.totals.sums`, whose errors they raise; beside those ValueError for a
series of more than :data:`countersink.counting.counters.buckets.MAX_DAYS`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from operator import itemgetter
from typing import Any, Final, Literal

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

Unit = Literal["day", "hour", "minute", "month"]
UNITS: Final[tuple[Unit, ...]] = ("day", "hour", "minute", "month")
SECONDS: Final[Mapping[Unit, int]] = {"hour": 3600, "minute": 60}


@dataclass(frozen=True, slots=True)
class Series:
    """Days, hours, minutes or months of a range in order, 0 where nothing was counted.

    Attributes:
        rows: (day, or first day of the month, or begin of the hour or minute, total). A begin is an
            aware datetime with the zone's UTC offset. Where clocks repeat an hour it is there
            twice; one that they leave out is not. Of the first and the last month it is what the
            range holds of them.
        told_from: the day, or time, from which on there are single ones, where those before it that
            were asked for are rolled up to wider buckets, and are not in the rows.
        truncated: only a part of the range is in the rows.
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
    whole: bool = False,
) -> Series:
    """The totals of each day, hour, minute or month of a range, by default from the first with data
    to the last.

    Args:
        snapshot, selection: of which.
        unit: of what.
        strict: all of the range is told, or it is an error. Else the series begins where single
            ones are told; and where nobody said when it begins, it is the part that is short enough
            and has the most days with counts: one event with a wrong time would make every such
            question one without an answer.
        whole: a series that is too long is an error all the same.

    Raises:
        RolledUp: ``strict``, and some are rolled up to wider buckets; or the range cuts through a
            month.
        InexactZone: also where the counter is counted by day, or not by minute.
        SeriesTooLong: there would be too many.
    """
    view = snapshot.selected(selection)
    wanted, told = told_by(view, selection, unit, strict=strict)
    if wanted is None:
        return Series([], told)
    begins = None if unit == "day" and selection.start is None else wanted.start
    try:
        return Series(_rows(snapshot, view, wanted, unit, begins), told)
    except SeriesTooLong as error:
        first, last = error.fits_from, error.fits_to
        if strict or whole or selection.start is not None or first is None or last is None:
            raise
        if unit == "month":
            first, last = month_of(first), month_ends(last)
        # Not beyond what was asked for, and is told by single ones.
        if wanted.start is not None and first <= view.first_day(wanted.start):
            first = wanted.start
        if wanted.end is not None and last >= view.final_day(wanted.end):
            last = wanted.end
        part = replace(wanted, start=first, end=last)
        return Series(_rows(snapshot, view, part, unit, first), told, truncated=True)


def told_by(
    view: View, selection: Selection, unit: Unit, *, strict: bool
) -> tuple[Selection | None, date | None]:
    """What of a range is told by single days, hours or minutes, None if nothing is; and
    ``told_from`` of its series.

    Raises:
        RolledUp: not all of it is, and it is to be ``strict``.
    """
    rolled = None if unit == "month" else _rolled(view, selection, unit)
    if rolled is None:
        return selection, None
    until, start, end = rolled[0], selection.start, buckets.following(selection.end)
    told = view.day_from(until) if unit == "day" else datetime.fromtimestamp(until, UTC)
    gone = end is not None and min(view.instants(end)) <= min(view.instants(told))
    if not gone and start is not None and min(view.instants(start)) >= until:
        return selection, None
    if strict:
        raise _no_single(view, unit, *rolled)
    return None if gone else replace(selection, start=told), told


def _no_single(view: View, unit: Unit, until: int, width: Width) -> RolledUp:
    first = view.day_from(until)
    if width == "month":
        what = f"the days of {view.counter!r} before {first} are rolled up to months: ask from"
        return RolledUp(f"{what} that day on, or for months", rolled_up_to=first)
    return RolledUp(
        f"{view.counter!r} has no single {unit}s before {moment_text(until)}, but wider buckets:"
        " ask from then on, or for days",
        rolled_up_to=first,
    )


def _rolled(view: View, selection: Selection, unit: Unit) -> tuple[int, Width] | None:
    """Up to which Unix second buckets are rolled up to wider ones than these, and to which; None:
    none of the range are, so that its zeros are exact.
    """
    start, end = selection.start, buckets.following(selection.end)
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
            and view.holds([width], begin, stop)
        ):
            found = until, width
    return found


def _rows(
    snapshot: Snapshot, view: View, wanted: Selection, unit: Unit, start: date | None
) -> list[tuple[Any, int]]:
    """The rows of a range.

    Args:
        snapshot, view, unit: as of :func:`series`.
        wanted: what is told by single ones.
        start: where the rows begin; None: with the first that has counts.

    Raises:
        InexactZone: one of the range begins within a bucket.
        SeriesTooLong: there are too many.
    """
    scope = Scope.of(view, wanted.start, wanted.end)
    amounts = by_label(snapshot, scope, wanted.keys)
    try:
        if unit in ("day", "month"):
            return _days(view, amounts, start, wanted.end, unit)
        held = _Held(view, amounts, all_keys=wanted.keys is None)
        return _hours(held, start, wanted.end, unit)
    except SeriesTooLong as error:
        raise error.fitting({view.day(label) for label in amounts}) from None


def _days(
    view: View, amounts: dict[int, int], start: date | None, end: date | None, unit: Unit
) -> list[tuple[Any, int]]:
    first = None if start is None else view.first_day(start)
    last = None if end is None else view.final_day(end)
    if first is None or last is None:
        if not amounts:
            return []
        days = [view.day(label) for label in amounts]
        first = first or min(days)
        # The last day of a bucket may be before its first one, where clocks go back to it.
        last = last or max(*days, *map(view.last_day, amounts))
    places = buckets.days(first, last) if unit == "day" else buckets.months(first, last)
    view.require_series(places)
    totals = dict.fromkeys(places, 0)
    for label, amount in amounts.items():
        day = view.day(label)
        totals[day if unit == "day" else month_of(day)] += amount
    return list(totals.items())


def _hours(
    held: "_Held", start: date | None, end: date | None, unit: Unit
) -> list[tuple[Any, int]]:
    view, amounts, length = held.view, held.amounts, SECONDS[unit]
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
        view: whose.
        amounts: of them, by label.
        all_keys: these are of all keys.
    """

    view: View
    amounts: dict[int, int]
    all_keys: bool

    def any_of(self, widths: Collection[Width], begin: int, stop: int) -> bool:
        """Whether there are any of some widths from one Unix second to before another."""
        view = self.view
        return any(
            view.width(label) in widths
            and view.scheme.starts_at(label) < stop
            and view.scheme.ends_at(label) > begin
            for label in self.amounts
        ) or (not self.all_keys and view.holds(widths, begin, stop))


def _require_narrow(held: _Held, begin: int, stop: int, unit: Unit) -> None:
    """Check that nothing is in wider buckets than hours or minutes, and that these are counted."""
    view = held.view
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
    view = held.view
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
