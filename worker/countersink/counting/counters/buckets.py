"""Buckets (minute, quarter, hour, day, month) in time zones: labels, begins and ends of buckets;
local days, hours and months; the longest series (``MAX_DAYS``) and its error. Functions that need a
time zone raise ValueError if this machine does not know it.

A bucket's *label* is one integer for its beginning and its width. It is the column ``bucket``,
taken as UTC, in seconds since 1970, plus the number of the width (1 minute, 2 quarter, 3 hour, 4
day, 5 month). For a day the column is midnight of the local date, for a month midnight of its first
day. For other widths it is the start in UTC. So label and time zone together tell when a bucket
begins and ends.
"""

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal, get_args

from countersink.counting.errors import SeriesTooLong
from countersink.database.sql import EPOCH, label_text, width_number
from countersink.runtime.texts import zone as zone

Width = Literal["minute", "quarter", "hour", "day", "month"]
WIDTHS: Final[tuple[Width, ...]] = get_args(Width)
"""All widths, the finest first."""
NUMBER: Final[dict[Width, int]] = {width: number for number, width in enumerate(WIDTHS, 1)}
"""The number of each width, as in the column ``width``."""
Resolution = Literal["day", "hour", "quarter", "minute"]
RESOLUTIONS: Final[tuple[Resolution, ...]] = get_args(Resolution)
"""The widths in which events can be counted."""

MINUTES: Final[dict[Resolution, int]] = {"day": 1440, "hour": 60, "quarter": 15, "minute": 1}
"""Minutes in a bucket by resolution. (A local day on which clocks change has more or fewer.)"""
FINER: Final[tuple[Resolution, ...]] = ("minute", "quarter", "hour")
"""The widths finer than a day, the finest first."""
UNITS: Final = {"m": 1, "h": 60, "d": 1440}
"""Minutes in each unit of texts such as ``90m``, ``24h`` and ``7d``."""

_DAY: Final = 86_400
_EPOCH_ORDINAL: Final = EPOCH.toordinal()
_ZERO: Final = EPOCH.replace(tzinfo=UTC)
MAX_MINUTE: Final = 4_223_363_039
"""The latest Unix minute of an event (0 is the earliest). It is the last minute of 9999-12-25 UTC,
so that ``date`` has further days after it in every time zone."""
FIRST_DAY: Final = date(1969, 12, 30)
LAST_DAY: Final = date(9999, 12, 28)
"""``FIRST_DAY`` is before the events of any time zone, and ``LAST_DAY`` after them. Days outside of
these are taken as days of UTC, so that adding days never leaves the range of ``date``."""
_FIRST_NUMBER: Final = FIRST_DAY.toordinal() - _EPOCH_ORDINAL
_LAST_NUMBER: Final = LAST_DAY.toordinal() - _EPOCH_ORDINAL
_LONGEST_GAP: Final = 180
"""Maximum number of minutes by which a change of clocks can move a midnight."""


def label(time_zone: str, width: Width, minute: int) -> int:
    """Return the label (see the module) of the bucket of ``width`` that contains a Unix minute."""
    number = NUMBER[width]
    if width == "day" or width == "month":
        day = minute // 1440 if time_zone == "UTC" else _day_number(time_zone, minute * 60)
        if width == "month":
            day -= _date(day).day - 1
        return day * _DAY + number
    minutes = MINUTES[width]
    return minute // minutes * minutes * 60 + number


def width_of(label: int) -> Width:
    """Return the width of the bucket with this label.

    Raises:
        LookupError: no width has this number, so countersink did not write the row.
    """
    number = width_number(label)
    if not 1 <= number <= len(WIDTHS):
        raise LookupError(f"a bucket {label_text(label)} has the width {number}, which is unknown")
    return WIDTHS[number - 1]


def is_wider(one: Width, other: Width) -> bool:
    """Return whether buckets of the width ``one`` are wider than those of ``other``."""
    return NUMBER[one] > NUMBER[other]


def starts_at(time_zone: str, label: int) -> int:
    """Return the Unix seconds at which the bucket with this label begins.

    Raises:
        LookupError: the label has an unknown width, so countersink did not write the row.
    """
    start = label - width_number(label)
    if width_of(label) in ("day", "month"):
        return _day_begins(time_zone, start // _DAY)
    return start


def ends_at(time_zone: str, label: int) -> int:
    """Return the Unix seconds at which the bucket with this label ends and the next begins.

    Raises:
        LookupError: the label has an unknown width, so countersink did not write the row.
    """
    start, width = label - width_number(label), width_of(label)
    if width == "month":
        return _day_begins(time_zone, start // _DAY + month_ends(label_date(label)).day)
    if width == "day":
        return _day_begins(time_zone, start // _DAY + 1)
    return start + MINUTES[width] * 60


def label_date(label: int) -> date:
    """Return the local date of a day's label, or the first of the month of a month's label. Other
    labels are not allowed (this is not checked): only a time zone tells their date.
    """
    return _date(label // _DAY)


def date_at(time_zone: str, instant: int) -> date:
    """Return the local date at an instant (Unix seconds)."""
    return _date(_day_number(time_zone, instant))


@lru_cache(maxsize=65_536)
def day_begins(time_zone: str, day: date) -> int:
    """Return the Unix seconds at which a local date begins.

    A date that the zone skipped (as Apia did 2011-12-30) begins when the next date begins.
    """
    place = zone(time_zone)
    if time_zone == "UTC" or not FIRST_DAY < day <= LAST_DAY:
        return (day.toordinal() - _EPOCH_ORDINAL) * _DAY
    begins = round(datetime(day.year, day.month, day.day, tzinfo=place).timestamp())
    if date_at(time_zone, begins) == day and date_at(time_zone, begins - 1) < day:
        return begins
    # A change of clocks skipped or repeated midnight.
    first = begins // 60 - _LONGEST_GAP
    minutes = range(first, first + 2 * _LONGEST_GAP)
    return next((at * 60 for at in minutes if date_at(time_zone, at * 60) >= day), begins)


@lru_cache(maxsize=65_536)
def _day_number(time_zone: str, instant: int) -> int:
    """Return the local date at an instant (Unix seconds), as days since 1970-01-01."""
    place = zone(time_zone)
    number = instant // _DAY
    if not _FIRST_NUMBER <= number <= _LAST_NUMBER:
        return number
    local = datetime.fromtimestamp(instant, place).toordinal() - _EPOCH_ORDINAL
    return max(_FIRST_NUMBER, min(local, _LAST_NUMBER))


def _day_begins(time_zone: str, number: int) -> int:
    """Return the Unix seconds at which a local day begins. The day is given as days since
    1970-01-01, and may be after the last one that ``date`` has.
    """
    return number * _DAY if number > _LAST_NUMBER else day_begins(time_zone, _date(number))


def _date(day_number: int) -> date:
    return date.fromordinal(_EPOCH_ORDINAL + day_number)


Interval = tuple[int | None, int | None]
"""(begin, end) in Unix seconds, without the end itself. None means that this side has no limit."""

ONE_DAY: Final = timedelta(days=1)
MAX_DAYS: Final = 100_000
"""Maximum days, hours or minutes in a series: an event dated 9999 would make millions of zeros."""
MAX_MONTHS: Final = 3_600
"""Maximum number of months in a series."""

_AROUND: Final = 4 * 3600
"""Seconds around midnight within which a change of clocks can repeat the previous date."""
_STEP: Final = 6 * 3600
"""Seconds between two offsets that are compared to find a change of clocks."""
_FIRST: Final = _FIRST_NUMBER * _DAY
_END: Final = (_LAST_NUMBER + 1) * _DAY


def offset_at(time_zone: str, instant: int) -> int:
    """Return the UTC offset (seconds) at a Unix second; 0 outside ``FIRST_DAY`` to ``LAST_DAY``."""
    if not _FIRST <= instant < _END:
        return 0
    offset = datetime.fromtimestamp(instant, zone(time_zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def widest(minutes: int) -> Resolution:
    """Return the widest resolution finer than a day that divides ``minutes`` minutes evenly.
    Messages advise this resolution for a question that the counter's own cannot answer.
    """
    return next(each for each in reversed(FINER) if minutes % MINUTES[each] == 0)


@lru_cache(maxsize=65_536)
def date_changes(time_zone: str, day: date) -> tuple[int, ...]:
    """Return the instants (Unix seconds) at which the local date becomes ``day`` or later, almost
    always one. If clocks then go back over midnight, there are three: the change to ``day``, the
    change back to the day before, and the second change to ``day``.
    """
    begins = day_begins(time_zone, day)
    if offset_at(time_zone, begins - _AROUND) == offset_at(time_zone, begins + _AROUND):
        return (begins,)
    instants = range(begins // 60 * 60 - _AROUND, begins + _AROUND, 60)
    from_day_on = [False, *(date_at(time_zone, each) >= day for each in instants)]
    changes = zip(instants, pairwise(from_day_on), strict=True)
    return tuple(each for each, (before, after) in changes if before != after) or (begins,)


def in_one_day(time_zone: str, begin: int, end: int) -> bool:
    """Return whether the local date stays the same from ``begin`` to before ``end`` (Unix seconds).
    The span must be shorter than a day.
    """
    day = date_at(time_zone, begin)
    return not any(
        begin < change < end
        for each in (day, day + ONE_DAY)
        for change in date_changes(time_zone, each)
    )


def intervals(time_zone: str, start: date | None, end: date | None) -> list[Interval]:
    """Return the intervals (begin, end) in which the local date is from ``start`` to ``end``, both
    included. Begin and end are in Unix seconds, and the end itself is not in the interval.

    ``start`` may be an aware time at which the range begins, and ``end`` an aware time before which
    it ends. None means that this side has no limit, also in the result. There may be two intervals
    or more where clocks repeat a date.
    """
    after_start: list[int | None] = [None, None]
    before_end: list[int | None] = [None, None]
    if start is not None:
        after_start = [*edges(time_zone, start), None]
    if (beyond := following(end)) is not None:
        before_end = [None, *edges(time_zone, beyond)]
    found = []
    for begin, stop in zip(after_start[::2], after_start[1::2], strict=True):
        for other_begin, other_stop in zip(before_end[::2], before_end[1::2], strict=True):
            low = later(begin, other_begin)
            high = earlier(stop, other_stop)
            if low is None or high is None or low < high:
                found.append((low, high))
    return found


def edges(time_zone: str, edge: date) -> tuple[int, ...]:
    """Return the instants (Unix seconds) of an edge of a range: of an aware time only this time, of
    a day those of :func:`date_changes` (almost always one: its begin).
    """
    return (unix(edge),) if isinstance(edge, datetime) else date_changes(time_zone, edge)


def unix(moment: datetime) -> int:
    """Return the Unix seconds of an aware time, rounded down."""
    return (moment - _ZERO) // timedelta(seconds=1)


def following(end: date | None) -> date | None:
    """Return the edge before which a range ends: the day after ``end``; ``end`` itself if it is a
    time; None, which means no limit, if ``end`` is None or ``date.max``.
    """
    if end is None or isinstance(end, datetime):
        return end
    return None if end == date.max else end + ONE_DAY


def later(one: int | None, other: int | None) -> int | None:
    """Return the later of two begins; None, which means no limit, only if both are None."""
    return max((each for each in (one, other) if each is not None), default=None)


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two ends; None, which means no limit, only if both are None."""
    return min((each for each in (one, other) if each is not None), default=None)


def offsets(time_zone: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Split the span from ``begin`` to before ``end`` (Unix seconds) where clocks change. Return
    (begin, end, UTC offset) of each part, in seconds; an empty list if the span is empty.
    """
    if begin >= end:
        return []
    found = []
    current = offset_at(time_zone, begin)
    for day in range(begin // _DAY, (end - 1) // _DAY + 1):
        for change, offset in _clock_changes(time_zone, day):
            if begin < change < end and offset != current:
                found.append((begin, change, current))
                begin, current = change, offset
    found.append((begin, end, current))
    return found


def hour_at(time_zone: str, instant: int, width: int) -> tuple[int, int]:
    """Return (begin, UTC offset), in seconds, of the local hour in which an instant (Unix seconds)
    is. ``width`` is its length, 3600 seconds; with 60, the result is of the local minute.
    """
    offset = offset_at(time_zone, instant)
    return (instant + offset) // width * width - offset, offset


def hours(time_zone: str, begin: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, UTC offset), in seconds, of each local hour from ``begin`` to before ``end``
    (Unix seconds), in order. The first contains ``begin``. ``width``: 3600, or 60 for minutes.

    An hour that clocks repeat is yielded twice, with two offsets. An hour that they skip is left
    out. If clocks change within an hour, it is yielded once for each of its two offsets.
    """
    for first, stop, offset in offsets(time_zone, begin, end):
        hour, _ = hour_at(time_zone, first, width)
        for instant in range(hour, stop, width):
            yield instant, offset


def days(first: date, last: date) -> list[date]:
    """Return the days from ``first`` to ``last``, both included; none if ``last`` is earlier.

    Raises:
        SeriesTooLong: there are more than :data:`MAX_DAYS`.
    """
    count = (last - first).days + 1
    require_length(count, "days", first, last, whole_days=MAX_DAYS)
    return [first + index * ONE_DAY for index in range(count)]


def months(first: date, last: date) -> list[date]:
    """Return the first day of each month from that of ``first`` to that of ``last``, in order.

    Raises:
        SeriesTooLong: there are more than :data:`MAX_MONTHS`.
    """
    begin, end = (day.year * 12 + day.month - 1 for day in (first, last))
    whole_days = MAX_MONTHS // 12 * 365
    require_length(end - begin + 1, "months", first, last, most=MAX_MONTHS, whole_days=whole_days)
    return [date(number // 12, number % 12 + 1, 1) for number in range(begin, end + 1)]


def month_of(day: date) -> date:
    """Return the first day of the month in which a day is."""
    return day.replace(day=1)


def month_ends(day: date) -> date:
    """Return the last day of the month in which a day is."""
    return day.replace(day=monthrange(day.year, day.month)[1])


def require_length(
    count: int,
    noun: str,
    first: object,
    last: object,
    *,
    most: int = MAX_DAYS,
    whole_days: int,
) -> None:
    """Raise an error if a series has more than ``most`` rows.

    Args:
        count: number of rows of the series.
        noun: what a row is for, in the plural, such as ``days``.
        first, last: begin and end of the series, for the message.
        most: maximum number of rows.
        whole_days: number of whole days that surely have few enough rows; stored in the error.

    Raises:
        SeriesTooLong: the series has more than ``most`` rows.
    """
    if count > most:
        raise SeriesTooLong(
            f"a series from {first} to {last} has {count:,} {noun};"
            f" give a range of at most {most:,}",
            whole_days=whole_days,
        )


@lru_cache(maxsize=65_536)
def _clock_changes(time_zone: str, utc_day: int) -> tuple[tuple[int, int], ...]:
    """Return (Unix second, new UTC offset in seconds) of each change of clocks in a day of UTC,
    without the day's first second, but with that of the next day. The day is given as the number of
    days since 1970.
    """
    found = []
    begin = utc_day * _DAY
    before = offset_at(time_zone, begin)
    for low in range(begin, begin + _DAY, _STEP):
        after = offset_at(time_zone, low + _STEP)
        if after != before:
            found.append((_change(time_zone, low, before), after))
            before = after
    return tuple(found)


def _change(time_zone: str, low: int, before: int) -> int:
    """Return the first Unix second from ``low`` on at which the UTC offset (seconds) is not
    ``before``. The offset changes once between ``low`` and ``low + _STEP``.
    """
    step = range(low, low + _STEP)
    return low + bisect_left(step, True, key=lambda at: offset_at(time_zone, at) != before)
