"""Buckets (minute, quarter, hour, day, month) by time zone: labels, begins and ends; unknown time
zones; local days, hours and months; the longest series (``MAX_DAYS``) and its error.

A bucket's *label* is the column ``bucket`` as seconds since 1970-01-01 00:00 as if it were UTC,
plus the number of its width (1 minute, 2 quarter, 3 hour, 4 day, 5 month). For days the column is
the midnight of the local date, for months that of their first day, for other widths the start in
UTC. So label and time zone together give begin and end of a bucket.
"""

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from countersink.counting.errors import SeriesTooLong
from countersink.database.sql import EPOCH, label_text, width_number

Width = Literal["minute", "quarter", "hour", "day", "month"]
WIDTHS: Final[tuple[Width, ...]] = get_args(Width)
"""All widths, the finest first."""
NUMBER: Final[dict[Width, int]] = {width: number for number, width in enumerate(WIDTHS, 1)}
"""Numbers of the widths in the column ``width``."""
Resolution = Literal["day", "hour", "quarter", "minute"]
RESOLUTIONS: Final[tuple[Resolution, ...]] = get_args(Resolution)
"""Widths in which events can be counted."""

MINUTES: Final[dict[Resolution, int]] = {"day": 1440, "hour": 60, "quarter": 15, "minute": 1}
"""Minutes of a bucket; a local day on which clocks change has more or fewer."""
FINER: Final[tuple[Resolution, ...]] = ("minute", "quarter", "hour")
"""Widths finer than a day, the finest first."""
UNITS: Final = {"m": 1, "h": 60, "d": 1440}
"""Minutes of a unit, in ``90m``, ``24h``, ``7d``."""

_DAY: Final = 86_400
_EPOCH_ORDINAL: Final = EPOCH.toordinal()
_ZERO: Final = EPOCH.replace(tzinfo=UTC)
MAX_MINUTE: Final = 4_223_363_039
"""The last minute of 9999-12-25 UTC, the last minute of an event (0 is the first): every time zone
has days after it."""
FIRST_DAY: Final = date(1969, 12, 30)
LAST_DAY: Final = date(9999, 12, 28)
"""No time zone has events up to ``FIRST_DAY`` or from ``LAST_DAY`` on: these days are days of UTC,
so that adding days never leaves the range of ``date``."""
_FIRST_NUMBER: Final = FIRST_DAY.toordinal() - _EPOCH_ORDINAL
_LAST_NUMBER: Final = LAST_DAY.toordinal() - _EPOCH_ORDINAL
_LONGEST_GAP: Final = 180
"""Maximum minutes by which a change of clocks can move a midnight."""


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ValueError: there is no such time zone; the message has examples.
    """
    # Compared with the list: ZoneInfo would open the name as a path, and not every file there is a
    # zone. "localtime" differs between machines.
    if name == "localtime" or name not in available_timezones():
        raise ValueError(
            f"{name!r} is no time zone: give an IANA name such as Europe/Berlin, America/New_York"
            " or UTC"
        )
    return ZoneInfo(name)


def label(time_zone: str, width: Width, minute: int) -> int:
    """The label of the bucket of this width that has an event at ``minute`` (Unix minutes)."""
    number = NUMBER[width]
    if width == "day" or width == "month":
        day = minute // 1440 if time_zone == "UTC" else _day_number(time_zone, minute * 60)
        if width == "month":
            day -= _date(day).day - 1
        return day * _DAY + number
    minutes = MINUTES[width]
    return minute // minutes * minutes * 60 + number


def width_of(label: int) -> Width:
    """The width of a bucket.

    Raises:
        LookupError: unknown number of a width: the row was not written by countersink.
    """
    number = width_number(label)
    if not 1 <= number <= len(WIDTHS):
        raise LookupError(f"a bucket {label_text(label)} has the width {number}, which is unknown")
    return WIDTHS[number - 1]


def is_wider(one: Width, other: Width) -> bool:
    """Whether buckets of one width are wider than those of another."""
    return NUMBER[one] > NUMBER[other]


def starts_at(time_zone: str, label: int) -> int:
    """Unix seconds at which the bucket begins.

    Raises:
        LookupError: as :func:`width_of`.
    """
    start = label - width_number(label)
    if width_of(label) in ("day", "month"):
        return _day_begins(time_zone, start // _DAY)
    return start


def ends_at(time_zone: str, label: int) -> int:
    """Unix seconds at which the bucket ends (exclusive).

    Raises:
        LookupError: as :func:`width_of`.
    """
    start, width = label - width_number(label), width_of(label)
    if width == "month":
        return _day_begins(time_zone, start // _DAY + month_ends(label_date(label)).day)
    if width == "day":
        return _day_begins(time_zone, start // _DAY + 1)
    return start + MINUTES[width] * 60


def label_date(label: int) -> date:
    """The date in the label of a day, or of a month (its first day), in any time zone."""
    return _date(label // _DAY)


def date_at(time_zone: str, instant: int) -> date:
    """The local date at an instant (Unix seconds)."""
    return _date(_day_number(time_zone, instant))


@lru_cache(maxsize=65_536)
def day_begins(time_zone: str, day: date) -> int:
    """Unix seconds of the first minute with this local date, or a later one.

    A date that a zone skipped (as Apia did 2011-12-30) begins with the next date.
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
    """Days since 1970-01-01 of the local date at an instant."""
    place = zone(time_zone)
    number = instant // _DAY
    if not _FIRST_NUMBER <= number <= _LAST_NUMBER:
        return number
    local = datetime.fromtimestamp(instant, place).toordinal() - _EPOCH_ORDINAL
    return max(_FIRST_NUMBER, min(local, _LAST_NUMBER))


def _day_begins(time_zone: str, number: int) -> int:
    """:func:`day_begins` of a day's number, which may be one beyond the last date."""
    return number * _DAY if number > _LAST_NUMBER else day_begins(time_zone, _date(number))


def _date(day_number: int) -> date:
    return date.fromordinal(_EPOCH_ORDINAL + day_number)


Interval = tuple[int | None, int | None]
"""[begin, end) in Unix seconds; None: open."""

ONE_DAY: Final = timedelta(days=1)
MAX_DAYS: Final = 100_000
"""Maximum days, hours or minutes of a series: an event dated 9999 would make millions of zeros."""
MAX_MONTHS: Final = 3_600
"""Maximum months of a series."""

_AROUND: Final = 4 * 3600
"""Seconds around midnight within which a change of clocks can repeat the previous date."""
_STEP: Final = 6 * 3600
"""Seconds between two offsets compared in the search for changes of clocks."""
_FIRST: Final = _FIRST_NUMBER * _DAY
_END: Final = (_LAST_NUMBER + 1) * _DAY


def offset_at(time_zone: str, instant: int) -> int:
    """Seconds by which local time is ahead of UTC at an instant; 0 where days are days of UTC."""
    if not _FIRST <= instant < _END:
        return 0
    offset = datetime.fromtimestamp(instant, zone(time_zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def widest(minutes: int) -> Resolution:
    """The widest resolution finer than a day that divides ``minutes``."""
    return next(each for each in reversed(FINER) if minutes % MINUTES[each] == 0)


@lru_cache(maxsize=65_536)
def date_changes(time_zone: str, day: date) -> tuple[int, ...]:
    """The instants at which the local date becomes ``day`` or later, or earlier again, in turns;
    almost always one instant.
    """
    begins = day_begins(time_zone, day)
    if offset_at(time_zone, begins - _AROUND) == offset_at(time_zone, begins + _AROUND):
        return (begins,)
    instants = range(begins // 60 * 60 - _AROUND, begins + _AROUND, 60)
    from_day_on = [False, *(date_at(time_zone, each) >= day for each in instants)]
    changes = zip(instants, pairwise(from_day_on), strict=True)
    return tuple(each for each, (before, after) in changes if before != after) or (begins,)


def in_one_day(time_zone: str, begin: int, end: int) -> bool:
    """Whether the local date does not change in [begin, end), which is shorter than a day."""
    day = date_at(time_zone, begin)
    return not any(
        begin < change < end
        for each in (day, day + ONE_DAY)
        for change in date_changes(time_zone, each)
    )


def intervals(time_zone: str, start: date | None, end: date | None) -> list[Interval]:
    """The intervals in which the local date is from ``start`` to ``end``, inclusive; None: open.

    Either may be a time: the range begins at it, or ends before it.
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
    """The instants at which local time becomes ``edge`` or later, or earlier again, in turns."""
    return (unix(edge),) if isinstance(edge, datetime) else date_changes(time_zone, edge)


def unix(moment: datetime) -> int:
    """Unix seconds of an aware time."""
    return (moment - _ZERO) // timedelta(seconds=1)


def following(end: date | None) -> date | None:
    """The day or time before which a range ends; None: no end, or none that ``date`` can hold."""
    if end is None or isinstance(end, datetime):
        return end
    return None if end == date.max else end + ONE_DAY


def later(one: int | None, other: int | None) -> int | None:
    """The later of two begins; None: open."""
    return max((each for each in (one, other) if each is not None), default=None)


def earlier(one: int | None, other: int | None) -> int | None:
    """The earlier of two ends; None: open."""
    return min((each for each in (one, other) if each is not None), default=None)


def offsets(time_zone: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """The parts of [begin, end) between changes of clocks: (begin, end, UTC offset in seconds)."""
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
    """The local hour (or span of ``width`` seconds) of an instant: (begin, offset), seconds."""
    offset = offset_at(time_zone, instant)
    return (instant + offset) // width * width - offset, offset


def hours(time_zone: str, begin: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    """The local hours of [begin, end) in order, as by :func:`hour_at`.

    An hour that a change of clocks repeats is returned twice, with two offsets; a skipped hour is
    left out. Where clocks change within an hour, two hours may have equal begins: each of them
    exists only in part.
    """
    for first, stop, offset in offsets(time_zone, begin, end):
        hour, _ = hour_at(time_zone, first, width)
        for instant in range(hour, stop, width):
            yield instant, offset


def days(first: date, last: date) -> list[date]:
    """The days of a series in order, both ends included.

    Raises:
        SeriesTooLong: there are more than :data:`MAX_DAYS`.
    """
    count = (last - first).days + 1
    require_length(count, "days", first, last, whole_days=MAX_DAYS)
    return [first + index * ONE_DAY for index in range(count)]


def months(first: date, last: date) -> list[date]:
    """The first days of the months of a series in order, the months of both days included.

    Raises:
        SeriesTooLong: there are more than :data:`MAX_MONTHS`.
    """
    begin, end = (day.year * 12 + day.month - 1 for day in (first, last))
    whole_days = MAX_MONTHS // 12 * 365
    require_length(end - begin + 1, "months", first, last, most=MAX_MONTHS, whole_days=whole_days)
    return [date(number // 12, number % 12 + 1, 1) for number in range(begin, end + 1)]


def month_of(day: date) -> date:
    """The first day of the month."""
    return day.replace(day=1)


def month_ends(day: date) -> date:
    """The last day of the month."""
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
    """Refuse a series that is too long.

    Args:
        count: its number of members.
        noun: plural noun of the members.
        first, last: first and last member.
        most: maximum number of members.
        whole_days: maximum number of days of a range that surely has no more members.

    Raises:
        SeriesTooLong: the series has more than ``most`` members.
    """
    if count > most:
        raise SeriesTooLong(
            f"a series from {first} to {last} has {count:,} {noun};"
            f" give a range of at most {most:,}",
            whole_days=whole_days,
        )


@lru_cache(maxsize=65_536)
def _clock_changes(time_zone: str, utc_day: int) -> tuple[tuple[int, int], ...]:
    """(instant, new offset) of each change of clocks in a UTC day, its end included."""
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
    """The first second of a step whose offset is not ``before``, or the end of the step."""
    step = range(low, low + _STEP)
    return low + bisect_left(step, True, key=lambda at: offset_at(time_zone, at) != before)
