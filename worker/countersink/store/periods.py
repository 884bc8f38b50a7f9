"""Days, hours and months of a time zone, as stretches of time. Instants are Unix seconds.

A local day need not be one stretch: where clocks fall back across midnight, the end of the day
before comes once more within it. So what is kept of a day is every instant at which the local date
becomes, or ceases to be, that day or a later one.
"""

from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final

from countersink.store.buckets import FIRST_DAY, LAST_DAY, date_at, day_begins, day_label, zone

Interval = tuple[int | None, int | None]
"""[begin, end) in Unix seconds; None where it is open."""

ONE_DAY: Final = timedelta(days=1)
MAX_DAYS: Final = 100_000
"""Longest series, in days, hours or months: a single event dated 9999 would make millions of
zeros."""

_AROUND: Final = 4 * 3600
"""Seconds around midnight within which a change of clocks can make a date come back."""
_STEP: Final = 6 * 3600
"""Seconds between two looks for a change of clocks."""
_UTC_DAY: Final = 86_400
_FIRST: Final = day_label(FIRST_DAY)
_END: Final = day_label(LAST_DAY + ONE_DAY)


class SeriesTooLong(ValueError):
    """A series would have more than :data:`MAX_DAYS` members.

    Attributes:
        fits_from: the first day of a range with the same end that is short enough.
    """

    def __init__(self, message: str, *, fits_from: date) -> None:
        super().__init__(message)
        self.fits_from = fits_from


def offset_at(time_zone: str, instant: int) -> int:
    """How far local time is ahead of UTC at an instant, in seconds; 0 where days are UTC's."""
    if not _FIRST <= instant < _END:
        return 0
    offset = datetime.fromtimestamp(instant, zone(time_zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


@lru_cache(maxsize=65_536)
def date_changes(time_zone: str, day: date) -> tuple[int, ...]:
    """The instants at which the local date becomes ``day`` or later, is before it again, and so on.

    Almost always one.
    """
    begins = day_begins(time_zone, day)
    if offset_at(time_zone, begins - _AROUND) == offset_at(time_zone, begins + _AROUND):
        return (begins,)
    changes = []
    before = False
    first = begins // 60 - _AROUND // 60
    for minute in range(first, first + 2 * _AROUND // 60):
        reached = date_at(time_zone, minute * 60) >= day
        if reached != before:
            changes.append(minute * 60)
            before = reached
    return tuple(changes) or (begins,)


def intervals(time_zone: str, start: date | None, end: date | None) -> list[Interval]:
    """When the local date lies between ``start`` and ``end``, both inclusive; None is open."""
    since: list[Interval] = [(None, None)]
    if start is not None:
        reached = [*date_changes(time_zone, start), None]
        since = list(zip(reached[::2], reached[1::2], strict=True))
    until: list[Interval] = [(None, None)]
    if end is not None and (following := after(end)) is not None:
        passed = [None, *date_changes(time_zone, following)]
        until = list(zip(passed[::2], passed[1::2], strict=True))
    found = []
    for begin, stop in since:
        for other_begin, other_stop in until:
            low = later(begin, other_begin)
            high = earlier(stop, other_stop)
            if low is None or high is None or low < high:
                found.append((low, high))
    return found


def after(day: date) -> date | None:
    """The next day; None after the last one that can be written."""
    return None if day == date.max else day + ONE_DAY


def later(one: int | None, other: int | None) -> int | None:
    """The later of two beginnings; None is the open one."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def earlier(one: int | None, other: int | None) -> int | None:
    """The earlier of two ends; None is the open one."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def offsets(time_zone: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """The stretches of [begin, end) between two changes of clocks: (begin, end, UTC offset)."""
    if begin >= end:
        return []
    found = []
    current = offset_at(time_zone, begin)
    for day in range(begin // _UTC_DAY, (end - 1) // _UTC_DAY + 1):
        for change, offset in _clock_changes(time_zone, day):
            if begin < change < end and offset != current:
                found.append((begin, change, current))
                begin, current = change, offset
    found.append((begin, end, current))
    return found


def hour_at(time_zone: str, instant: int) -> tuple[int, int]:
    """The local hour of an instant: (when it begins, its UTC offset), both in seconds."""
    return _hour(instant, offset_at(time_zone, instant))


def hours(time_zone: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The local hours of [begin, end) in order, as :func:`hour_at` has them.

    An hour that clocks repeat comes twice, with another offset; one that they leave out does not
    come. Where clocks are changed within an hour two may begin at the same instant, so to speak: of
    each only a part has been.
    """
    for first, stop, offset in offsets(time_zone, begin, end):
        hour, _ = _hour(first, offset)
        for instant in range(hour, stop, 3600):
            yield instant, offset


def days(first: date, last: date) -> list[date]:
    """The days of a series in order, both ends included.

    Raises:
        SeriesTooLong: there are more than :data:`MAX_DAYS`.
    """
    count = (last - first).days + 1
    require_length(count, "days", first, last, last_day=last)
    return [first + index * ONE_DAY for index in range(count)]


def months(first: date, last: date) -> list[date]:
    """The first days of the months of a series in order, those of both days included.

    Raises:
        SeriesTooLong: there are more than :data:`MAX_DAYS`.
    """
    begin, end = _month_number(first), _month_number(last)
    require_length(end - begin + 1, "months", first, last, last_day=last)
    return [date(number // 12, number % 12 + 1, 1) for number in range(begin, end + 1)]


def month_of(day: date) -> date:
    """The first day of the month."""
    return day.replace(day=1)


def month_ends(day: date) -> date:
    """The last day of the month."""
    return day.replace(day=monthrange(day.year, day.month)[1])


def require_length(
    count: int, what: str, first: object, last: object, *, last_day: date, per_day: int = 1
) -> None:
    """Refuse a series that is too long.

    Args:
        count: how many members it has.
        what: they are.
        first, last: the first and the last.
        last_day: of the last one.
        per_day: how many there are in a day.

    Raises:
        SeriesTooLong: it has more than :data:`MAX_DAYS` members.
    """
    if count > MAX_DAYS:
        # Two days less: a local day may end after that of UTC, and clocks repeat an hour.
        whole_days = MAX_DAYS // per_day - 2
        raise SeriesTooLong(
            f"a series from {first} to {last} has {count:,} {what};"
            f" give a range of at most {MAX_DAYS:,}",
            fits_from=last_day - whole_days * ONE_DAY,
        )


@lru_cache(maxsize=65_536)
def _clock_changes(time_zone: str, utc_day: int) -> tuple[tuple[int, int], ...]:
    """(instant, offset from then on) of each change of clocks in a UTC day, its end included."""
    found = []
    begin = utc_day * _UTC_DAY
    before = offset_at(time_zone, begin)
    for low in range(begin, begin + _UTC_DAY, _STEP):
        after = offset_at(time_zone, low + _STEP)
        if after != before:
            found.append((_change(time_zone, low, low + _STEP, before), after))
            before = after
    return tuple(found)


def _change(time_zone: str, low: int, high: int, before: int) -> int:
    """The first second in (low, high] at which the offset is not ``before`` any more."""
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(time_zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _hour(instant: int, offset: int) -> tuple[int, int]:
    return (instant + offset) // 3600 * 3600 - offset, offset


def _month_number(day: date) -> int:
    return day.year * 12 + day.month - 1
