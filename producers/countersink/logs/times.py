"""Parser of the times in logs, CSV and JSON, which become whole Unix minutes: time formats
``auto``, ``unix``, ``unix-ms``, ``unix-us``, ``unix-ns`` and strptime patterns, time zones, and the
reasons for rejecting a time.

``auto`` accepts

- ISO 8601: ``2015-05-17T10:05:03Z``, ``2015-05-17 10:05:03.123+02:00`` (or ``,123``),
  ``2015-05-17``, also with an offset (``2015-05-17+02:00``, a date of XML Schema);
- Unix seconds of ten digits (2001 to 2286), milliseconds of thirteen, microseconds of sixteen and
  nanoseconds of nineteen, with or without a fraction;
- the time of access logs, ``17/May/2015:10:05:03 +0000``.

A time without a zone is in the zone that the user gives by ``--time-zone``. A date without a time
of day means the beginning of that day in the counter's own time zone; an offset behind the date is
ignored. If the counter is not known, the date means midnight in the zone of ``--time-zone``. In
access logs, a date without a time of day is refused.
Where a clock change repeats a time, the first of the two is meant. A time that a clock change skips
is read with the UTC offset from before the change.

With a format ``unix`` to ``unix-ns``, a number is rejected if it is a time from 1990 to 2099 in
another one of these units, because the unit of the format is probably wrong.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from time import strptime
from typing import Final
from zoneinfo import ZoneInfo

from countersink.logs.errors import Malformed, Misread
from countersink.logs.line import minute_of
from countersink.runtime.limits import check_event_minute
from countersink.runtime.texts import zone

_LONGEST: Final = 64
"""Number of characters of the longest time that is parsed."""
_REMEMBERED: Final = 20_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE: Final = timedelta(minutes=1)

_NUMBER: Final = re.compile(r"([0-9]{1,19})(?:\.[0-9]{1,30})?")
_UNIX: Final = re.compile(r"([0-9]{10}(?:[0-9]{3}){0,3})(?:\.[0-9]{1,30})?")
UNITS: Final = {"unix": 1, "unix-ms": 10**3, "unix-us": 10**6, "unix-ns": 10**9}
"""How many units a second has, by the name of a numeric time format."""
_OF_DIGITS: Final = dict(zip((10, 13, 16, 19), UNITS.values(), strict=True))
"""How many units a second has, by the number of digits that a present-day time has in the unit."""
LIKELY: Final = range(631_152_000, 4_102_444_800)
"""The Unix seconds from 1990 to 2099."""
_ACCESS_LOG: Final = re.compile(
    r"\[?([0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}):(?:[0-5][0-9]|60) ([+-][0-9]{4})\]?"
)
_DATE: Final = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}(?:[T ].*)?", re.DOTALL)
_NAMED_UTC: Final = re.compile(r" ?(?:UTC|GMT)\Z")
_SPACED_ZONE: Final = re.compile(r" (?=[+-][0-9]{2}:?(?:[0-9]{2})?\Z)")
_DATE_ALONE: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8})(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?"
)
_HOURS: Final = re.compile(r"%[HIcXMSf]")
_LEAP: Final = re.compile(r"([T ][0-9]{2}(:?)[0-9]{2}\2)60")
_OFFSET: Final = re.compile(r"[+-][0-9]{2}(?::?[0-9]{2})?:?[6-9][0-9]\Z")
"""The pattern of a UTC offset with 60 or more minutes or seconds; Python would accept it."""


def has_hours(time_format: str) -> bool:
    """Return whether a strptime pattern reads a time of day."""
    return _HOURS.search(time_format.replace("%%", "")) is not None


def no_day(day: date) -> int:
    """Raise an error for a date without a time of day. A :class:`Clock` for logs gets this function
    as ``begins``, because a date alone is a mistake in a log.

    Raises:
        ValueError: always.
    """
    raise ValueError("it is a date without a time of day")


class Clock:
    """Parser of the times of one source. It caches what it has parsed, and is not thread-safe.

    Args:
        time_format: ``auto``, a name from :data:`UNITS`, or a strptime pattern.
        time_zone: the IANA name of the zone of times that are written without one; '' refuses such
            times.
        begins: a function that returns the first Unix minute of a day of the counter, for dates
            without a time of day. If it is None, such a date means midnight in ``time_zone``.
        column: the name of the column that has the times, with which error messages begin; '' for
            none.
        advises: whether error messages recommend the option ``--time-format``; false if the user
            cannot give it.

    Raises:
        ValueError: the time zone does not exist, or the format cannot be used.
    """

    def __init__(
        self,
        time_format: str = "auto",
        time_zone: str = "",
        begins: Callable[[date], int] | None = None,
        column: str = "",
        *,
        advises: bool = True,
    ) -> None:
        self._begins = begins
        self._advises = advises
        self._where = f"column {column!r}: " if column else ""
        self._zone: ZoneInfo | None = zone(time_zone) if time_zone else None
        self._format = time_format
        named = {"auto": self._auto, **dict.fromkeys(UNITS, self._unix)}
        self._read: Callable[[str], int] = named.get(time_format, self._by_pattern)
        if time_format not in named:
            self._dates = not has_hours(time_format)
            dates = self._dates and begins is not None
            _check_pattern(time_format, zoned=self._zone is not None or dates)
        self._minutes: dict[str, int] = {}

    def minute(self, time: object) -> int:
        """Return the whole Unix minute of ``time``, a text or a number.

        Raises:
            Malformed: ``time`` is missing, does not fit the time format, has no zone though it
                needs one, or is before 1970 or more than 366 days ahead.
            Misread: the format is a unit such as ``unix``, and ``time`` is from 1990 to 2099 only
                if it is read in another unit.
        """
        text = time if type(time) is str else _digits(time, self._where)
        minute = self._minutes.get(text)
        if minute is None:
            minute = self._minute(text)
            if len(self._minutes) >= _REMEMBERED:
                self._minutes.clear()
            self._minutes[text] = minute
        return minute

    def _minute(self, time: str) -> int:
        text = time.strip() if len(time) <= _LONGEST else ""
        if not text:
            why = "the time is too long" if time.strip() else "there is no time"
            raise Malformed(self._where + why)
        try:
            return check_event_minute(self._read(text))
        except Malformed:
            raise
        except (ValueError, OverflowError) as error:
            raise Malformed(f"{self._where}the time {text!r} cannot be counted: {error}") from None

    def _unix(self, text: str) -> int:
        found = _NUMBER.fullmatch(text)
        if found is None:
            raise ValueError("it is no number")
        number = int(found[1])  # a fraction does not change the minute
        for other, unit in UNITS.items():
            if other != self._format and number // unit in LIKELY:
                when = _EPOCH + timedelta(seconds=number // unit)
                raise Misread(
                    f"{self._where}the time {text!r} is not from 1990 to 2099 as {self._format}"
                    + self._advice(f"; --time-format {other} reads {when:%Y-%m-%dT%H:%M:%SZ}")
                )
        return number // (60 * UNITS[self._format])

    def _auto(self, text: str) -> int:
        if found := _UNIX.fullmatch(text):
            return int(found[1]) // (60 * _OF_DIGITS[len(found[1])])
        if found := _ACCESS_LOG.fullmatch(text):
            return minute_of((found[1] + found[2]).encode())
        text = text.upper()
        date_only = _DATE_ALONE.fullmatch(text)
        if not date_only and not _DATE.fullmatch(text):
            raise ValueError(
                "it is neither ISO 8601 nor a Unix time"
                + self._advice("; give its format by --time-format")
            )
        if _OFFSET.search(text):
            raise ValueError("its offset has 60 minutes or more")
        text = date_only[1] if date_only else _SPACED_ZONE.sub("", _NAMED_UTC.sub("+00:00", text))
        try:
            when = datetime.fromisoformat(_LEAP.sub(r"\g<1>59", text))
        except ValueError:
            raise ValueError("ISO 8601 has no such date or time") from None
        return self._day(when.date()) if date_only and self._begins else self._whole(when)

    def _advice(self, option: str) -> str:
        return option if self._advises else ""

    def _by_pattern(self, text: str) -> int:
        try:
            read = strptime(text, self._format)  # unlike datetime's it takes leap seconds
            offset, leap = read.tm_gmtoff, read.tm_sec == 60
            when = datetime(  # without %z it is naive; _whole gives it a zone
                *read[:5],
                read.tm_sec - leap,
                tzinfo=None if offset is None else timezone(timedelta(seconds=offset)),
            )
        except ValueError:
            raise ValueError(f"it does not fit the format {self._format!r}") from None
        return self._day(when.date()) if self._begins and self._dates else self._whole(when)

    def _day(self, day: date) -> int:
        assert self._begins is not None
        if day < _EPOCH.date():
            raise ValueError("it is before 1970")
        return self._begins(day)

    def _whole(self, when: datetime) -> int:
        if when.tzinfo is None:
            if self._zone is None:
                raise ValueError("it has no time zone; give one by --time-zone")
            when = when.replace(tzinfo=self._zone)
        return (when - _EPOCH) // _MINUTE


def _digits(time: object, where: str) -> str:
    """Return the text of a time that is a number in JSON; of a float, with six decimal places.

    Args:
        time: the JSON value.
        where: the beginning of the error message, such as ``column 'at': ``.

    Raises:
        Malformed: the value is null, no number, or out of range.
    """
    if time is None:
        raise Malformed(f"{where}there is no time")
    if type(time) is int:
        if abs(time) < 10**19:
            return str(time)
    elif type(time) is float and math.isfinite(time) and abs(time) < 1e19:
        return f"{time:.6f}"
    raise Malformed(f"{where}the time is neither a text nor a number in range")


def _check_pattern(pattern: str, *, zoned: bool) -> None:
    """Check a strptime pattern: format a sample time by the pattern and parse the result.

    Args:
        pattern: the pattern.
        zoned: whether the pattern may lack ``%z``, because the zone of the times is known
            otherwise.

    Raises:
        ValueError: the pattern is invalid, has ``%Z``, no year, or no zone though it needs one.
    """
    if "%Z" in pattern.replace("%%", ""):
        raise ValueError(
            f"time format {pattern!r}: Python ignores the zone that %Z reads; write %z for +0200,"
            " or the zone's name (GMT) itself, and give the zone by --time-zone"
        )
    sample = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)
    try:
        read = datetime.strptime(sample.strftime(pattern), pattern)  # noqa: DTZ007
    except (ValueError, re.error) as error:
        raise ValueError(
            f"time format {pattern!r}: {error}; give auto, {', '.join(UNITS)} or a pattern of"
            " strptime such as '%d.%m.%Y %H:%M:%S'"
        ) from None
    if read.year != sample.year:  # strptime takes 1900 then
        raise ValueError(
            f"time format {pattern!r} has no year: write %Y, as in '%d.%m.%Y' for 17.05.2015"
        )
    if read.tzinfo is None and not zoned:
        raise ValueError(
            f"time format {pattern!r} has no %z: give the zone of the times by --time-zone"
        )
