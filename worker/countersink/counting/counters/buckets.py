"""Which bucket (minute, quarter, hour, day, month) an event is counted in, when it begins and ends,
by time zone; unknown time zones; longest series (``MAX_DAYS``) and its error; days and months as
dates.

A bucket's *label* is the column ``bucket`` as seconds since 1970-01-01 00:00 as if it were UTC,
plus the number of its width (1 minute, 2 quarter, 3 hour, 4 day, 5 month). For days the column is
the midnight of the local date, for months that of their first day, for the others the start in UTC.
So a label alone says from when to when a bucket is, in a time zone.
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
"""The finest first."""
NUMBER: Final[dict[Width, int]] = {width: number for number, width in enumerate(WIDTHS, 1)}
"""Numbers of the widths, as the column ``width`` has them."""
Resolution = Literal["day", "hour", "quarter", "minute"]
RESOLUTIONS: Final[tuple[Resolution, ...]] = get_args(Resolution)
"""Widths in which events can be counted."""

MINUTES: Final[dict[Resolution, int]] = {"day": 1440, "hour": 60, "quarter": 15, "minute": 1}
"""Minutes of a bucket; a local day has more or fewer where clocks are changed."""
FINER: Final[tuple[Resolution, ...]] = ("minute", "quarter", "hour")
"""Those finer than a day, the finest first."""
UNITS: Final = {"m": 1, "h": 60, "d": 1440}
"""Minutes of a unit, in ``90m``, ``24h``, ``7d``."""

_DAY: Final = 86_400
_EPOCH_ORDINAL: Final = EPOCH.toordinal()
_ZERO: Final = EPOCH.replace(tzinfo=UTC)
MAX_MINUTE: Final = 4_223_363_039
"""The last minute of 9999-12-25 UTC, the last one an event may have (0 is the first): in every time
zone there are days after it."""
FIRST_DAY: Final = date(1969, 12, 30)
LAST_DAY: Final = date(9999, 12, 28)
"""No time zone has an event on these days, before the one, or after the other: there the days are
those of UTC, and whoever adds days up meets no end of dates."""
_FIRST_NUMBER: Final = FIRST_DAY.toordinal() - _EPOCH_ORDINAL
_LAST_NUMBER: Final = LAST_DAY.toordinal() - _EPOCH_ORDINAL
_LONGEST_GAP: Final = 180
"""Minutes by which a midnight may be off its place where clocks are changed around it."""


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ValueError: there is none; the message says what a name looks like.
    """
    # Asked for by name, not by trying: a name is a path, and not every file there is a zone. That
    # of this machine is another one elsewhere.
    if name == "localtime" or name not in available_timezones():
        raise ValueError(
            f"{name!r} is no time zone: give an IANA name such as Europe/Berlin, America/New_York"
            " or UTC"
        )
    return ZoneInfo(name)


def label(time_zone: str, width: Width, minute: int) -> int:
    """The label of the bucket of such a width for an event at ``minute`` (Unix minutes)."""
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
        LookupError: there is none with its number: the row was not written by countersink.
    """
    number = width_number(label)
    if not 1 <= number <= len(WIDTHS):
        raise LookupError(f"a bucket {label_text(label)} has the width {number}, which is none")
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
    """Unix seconds at which the bucket has ended.

    Raises:
        LookupError: as :func:`width_of`.
    """
    start, width = label - width_number(label), width_of(label)
    if width == "month":
        return _day_begins(time_zone, start // _DAY + month_ends(own_date(label)).day)
    if width == "day":
        return _day_begins(time_zone, start // _DAY + 1)
    return start + MINUTES[width] * 60


def own_date(label: int) -> date:
    """The date in the label of a day or month, the same in all time zones; of a month its first."""
    return _date(label // _DAY)


def date_at(time_zone: str, instant: int) -> date:
    """The local date at an instant, in Unix seconds."""
    return _date(_day_number(time_zone, instant))


@lru_cache(maxsize=65_536)
def day_begins(time_zone: str, day: date) -> int:
    """Unix seconds of the first minute that has this local date, or a later one.

    A date that a zone left out (as Apia did with 2011-12-30) begins where the next one does.
    """
    place = zone(time_zone)
    if time_zone == "UTC" or not FIRST_DAY < day <= LAST_DAY:
        return (day.toordinal() - _EPOCH_ORDINAL) * _DAY
    begins = round(datetime(day.year, day.month, day.day, tzinfo=place).timestamp())
    if date_at(time_zone, begins) == day and date_at(time_zone, begins - 1) < day:
        return begins
    # Midnight was left out, or came twice: clocks were changed around it.
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
    """As :func:`day_begins`, of a day by its number, which may be that after the last date."""
    return number * _DAY if number > _LAST_NUMBER else day_begins(time_zone, _date(number))


def _date(day_number: int) -> date:
    return date.fromordinal(_EPOCH_ORDINAL + day_number)


Interval = tuple[int | None, int | None]
"""[begin, end) in Unix seconds; None where it is open."""

ONE_DAY: Final = timedelta(days=1)
MAX_DAYS: Final = 100_000
"""Longest series, in days, hours or minutes: one event dated 9999 would make millions of zeros."""
MAX_MONTHS: Final = 3_600
"""Longest series of months."""

_AROUND: Final = 4 * 3600
"""Seconds around midnight within which a change of clocks can make a date come back."""
_STEP: Final = 6 * 3600
"""Seconds between two looks for a change of clocks."""
_FIRST: Final = _FIRST_NUMBER * _DAY
_END: Final = (_LAST_NUMBER + 1) * _DAY


def offset_at(time_zone: str, instant: int) -> int:
    """How far local time is ahead of UTC at an instant, in seconds; 0 where days are UTC's."""
    if not _FIRST <= instant < _END:
        return 0
    offset = datetime.fromtimestamp(instant, zone(time_zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def widest(minutes: int) -> Resolution:
    """The widest resolution finer than a day that divides so many minutes."""
    return next(each for each in reversed(FINER) if minutes % MINUTES[each] == 0)


@lru_cache(maxsize=65_536)
def date_changes(time_zone: str, day: date) -> tuple[int, ...]:
    """The instants at which the local date becomes ``day`` or later, is before it again, and so on.

    Almost always one.
    """
    begins = day_begins(time_zone, day)
    if offset_at(time_zone, begins - _AROUND) == offset_at(time_zone, begins + _AROUND):
        return (begins,)
    instants = range(begins // 60 * 60 - _AROUND, begins + _AROUND, 60)
    reached = [False, *(date_at(time_zone, each) >= day for each in instants)]
    changes = zip(instants, pairwise(reached), strict=True)
    return tuple(each for each, (one, other) in changes if one != other) or (begins,)


def in_one_day(time_zone: str, begin: int, end: int) -> bool:
    """Whether the local date is one and the same from one instant to before another, which are less
    than a day apart.
    """
    day = date_at(time_zone, begin)
    return not any(
        begin < change < end
        for each in (day, day + ONE_DAY)
        for change in date_changes(time_zone, each)
    )


def intervals(time_zone: str, start: date | None, end: date | None) -> list[Interval]:
    """When the local date lies between ``start`` and ``end``, both inclusive; None is open.

    Either may be a time: a range begins at it, or ends before it.
    """
    reached: list[int | None] = [None, None]
    passed: list[int | None] = [None, None]
    if start is not None:
        reached = [*edges(time_zone, start), None]
    if (beyond := following(end)) is not None:
        passed = [None, *edges(time_zone, beyond)]
    found = []
    for begin, stop in zip(reached[::2], reached[1::2], strict=True):
        for other_begin, other_stop in zip(passed[::2], passed[1::2], strict=True):
            low = later(begin, other_begin)
            high = earlier(stop, other_stop)
            if low is None or high is None or low < high:
                found.append((low, high))
    return found


def edges(time_zone: str, edge: date) -> tuple[int, ...]:
    """The instants at which local time reaches a day, or a time, is before it again, and so on."""
    return (unix(edge),) if isinstance(edge, datetime) else date_changes(time_zone, edge)


def unix(moment: datetime) -> int:
    """Unix seconds of an aware time."""
    return (moment - _ZERO) // timedelta(seconds=1)


def following(end: date | None) -> date | None:
    """The day, or the time, that a range ends before; None: it has no end that can be written."""
    if end is None or isinstance(end, datetime):
        return end
    return None if end == date.max else end + ONE_DAY


def later(one: int | None, other: int | None) -> int | None:
    """The later of two beginnings; None is the open one."""
    return max((each for each in (one, other) if each is not None), default=None)


def earlier(one: int | None, other: int | None) -> int | None:
    """The earlier of two ends; None is the open one."""
    return min((each for each in (one, other) if each is not None), default=None)


def offsets(time_zone: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """The stretches of [begin, end) between two changes of clocks: (begin, end, UTC offset)."""
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
    """The local hour of an instant, or what has another width: (when it begins, its UTC offset),
    all in seconds.
    """
    offset = offset_at(time_zone, instant)
    return (instant + offset) // width * width - offset, offset


def hours(time_zone: str, begin: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    """The local hours of [begin, end) in order, as :func:`hour_at` has them.

    An hour that clocks repeat comes twice, with another offset; one that they leave out does not
    come. Where clocks are changed within an hour two may begin at the same instant, so to speak: of
    each only a part has been.
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
    """The first days of the months of a series in order, those of both days included.

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
    what: str,
    first: object,
    last: object,
    *,
    most: int = MAX_DAYS,
    whole_days: int,
) -> None:
    """Refuse a series that is too long.

    Args:
        count: how many members it has.
        what: they are.
        first, last: the first and the last.
        most: how many it may have.
        whole_days: how many days surely make no more than those.

    Raises:
        SeriesTooLong: it has more.
    """
    if count > most:
        raise SeriesTooLong(
            f"a series from {first} to {last} has {count:,} {what};"
            f" give a range of at most {most:,}",
            whole_days=whole_days,
        )


@lru_cache(maxsize=65_536)
def _clock_changes(time_zone: str, utc_day: int) -> tuple[tuple[int, int], ...]:
    """(instant, offset from then on) of each change of clocks in a UTC day, its end included."""
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
    """The first second of a step at which the offset is not ``before`` any more, or its end."""
    step = range(low, low + _STEP)
    return low + bisect_left(step, True, key=lambda at: offset_at(time_zone, at) != before)
