"""Parses times of logs, CSV and JSON into Unix minutes: ``auto``, ``unix``, ``unix-ms``, strptime
patterns, time zones, and the reasons why a time is rejected.

``auto`` takes

- ISO 8601: ``2015-05-17T10:05:03Z``, ``2015-05-17 10:05:03.123+02:00`` (or ``,123``),
  ``2015-05-17``;
- Unix seconds of ten digits (2001 to 2286), with or without a fraction;
- Unix milliseconds of thirteen digits;
- an access log's ``17/May/2015:10:05:03 +0000``.

What says no time zone is in the recipe's. A date alone is that day of the counter, whatever its
time zone; where the counter is not known, midnight in the recipe's. A time that the clock passes
twice is the first of the two; one that it skips is as far after the last that it had.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from countersink.producers.access_log.line import minute_of
from countersink.producers.errors import Malformed
from countersink.runtime.limits import check_minute

_LONGEST: Final = 64
"""Characters of a time that is looked at."""
_REMEMBERED: Final = 20_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE: Final = timedelta(minutes=1)

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}(?:\.[0-9]{1,30})?")
_SECONDS: Final = re.compile(r"[0-9]{10}(?:\.[0-9]{1,30})?")
_MILLISECONDS: Final = re.compile(r"[0-9]{13}(?:\.[0-9]{1,30})?")
_ACCESS_LOG: Final = re.compile(
    r"\[?([0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}):(?:[0-5][0-9]|60) ([+-][0-9]{4})\]?"
)
_DATE: Final = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}.*", re.DOTALL)
_NAMED_UTC: Final = re.compile(r" ?(?:UTC|GMT)\Z")
_SPACED_ZONE: Final = re.compile(r" (?=[+-][0-9]{2}:?(?:[0-9]{2})?\Z)")
_DATE_ALONE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}")
_HOURS: Final = re.compile(r"%[HIcXMSf]")
_LEAP: Final = re.compile(r"(:[0-9]{2}):60")


def has_hours(time_format: str) -> bool:
    """Whether a pattern of strptime says when on a day."""
    return _HOURS.search(time_format.replace("%%", "")) is not None


def no_day(day: date) -> int:
    """What a log says by a date alone: nothing, since it is not known when the counter's day was.

    Raises:
        ValueError: always.
    """
    raise ValueError("it is a date without a time of day")


class Clock:
    """Reads the times of one source. Remembers texts; not thread-safe.

    Args:
        time_format: ``auto``, ``unix``, ``unix-ms`` or a pattern of strptime.
        time_zone: IANA name for times without one; '': those are refused.
        begins: the first minute of a day of the counter; None: a date alone is a time.

    Raises:
        ValueError: there is no such time zone, or the format cannot be.
    """

    def __init__(
        self,
        time_format: str = "auto",
        time_zone: str = "",
        begins: Callable[[date], int] | None = None,
    ) -> None:
        self._begins = begins
        self._zone: ZoneInfo | None = _zone(time_zone) if time_zone else None
        self._format = time_format
        named = {"auto": self._auto, "unix": _seconds, "unix-ms": _milliseconds}
        self._read: Callable[[str], int] = named.get(time_format, self._by_pattern)
        if time_format not in named:
            self._dates = not has_hours(time_format)
            dates = self._dates and begins is not None
            _check_pattern(time_format, zoned=self._zone is not None or dates)
        self._minutes: dict[str, int] = {}

    def minute(self, time: object) -> int:
        """The whole Unix minute of ``time``, a text or a number.

        Raises:
            Malformed: it is no time in this format, has no zone where one is needed, or lies
                outside 1970 to 9999-12-25.
        """
        text = time if type(time) is str else _digits(time)
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
            raise Malformed("there is no time" if time.strip() == "" else "the time is too long")
        try:
            return check_minute(self._read(text))
        except Malformed:
            raise
        except (ValueError, OverflowError) as error:
            raise Malformed(f"the time {text!r} cannot be: {error}") from None

    def _auto(self, text: str) -> int:
        if _SECONDS.fullmatch(text):
            return _seconds(text)
        if _MILLISECONDS.fullmatch(text):
            return _milliseconds(text)
        if found := _ACCESS_LOG.fullmatch(text):
            return minute_of((found[1] + found[2]).encode())
        if not _DATE.fullmatch(text):
            raise ValueError("it is neither ISO 8601 nor Unix seconds; say what it is by a format")
        if self._begins and _DATE_ALONE.fullmatch(text):
            return self._day(date.fromisoformat(text))
        text = _SPACED_ZONE.sub("", _NAMED_UTC.sub("+00:00", text))
        return self._whole(datetime.fromisoformat(_LEAP.sub(r"\1:59", text)))

    def _by_pattern(self, text: str) -> int:
        # Without %z it is naive; _whole gives it a zone.
        when = datetime.strptime(text, self._format)  # noqa: DTZ007
        if self._begins and self._dates and when.tzinfo is None:
            return self._day(when.date())
        return self._whole(when)

    def _day(self, day: date) -> int:
        assert self._begins is not None
        if day < _EPOCH.date():
            raise ValueError("it is before 1970")
        return self._begins(day)

    def _whole(self, when: datetime) -> int:
        if when.tzinfo is None:
            if self._zone is None:
                raise ValueError("it has no time zone; say which by --time-zone")
            when = when.replace(tzinfo=self._zone)
        return (when - _EPOCH) // _MINUTE


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    """As ``countersink.store.counters.buckets.zone``, which producers must not import."""
    if name not in available_timezones():
        raise ValueError(
            f"{name!r} is no time zone: give an IANA name such as Europe/Berlin, America/New_York"
            " or UTC"
        )
    return ZoneInfo(name)


def _digits(time: object) -> str:
    """A number of JSON as the text of one."""
    if time is None:
        raise Malformed("there is no time")
    if type(time) is int:
        if abs(time) < 10**19:
            return str(time)
    elif type(time) is float and math.isfinite(time) and abs(time) < 1e19:
        return f"{Decimal(time):.6f}"
    raise Malformed("the time is neither a text nor a number that can be one")


def _seconds(text: str) -> int:
    return math.floor(_number(text) / 60)


def _milliseconds(text: str) -> int:
    return math.floor(_number(text) / 60_000)


def _number(text: str) -> Decimal:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("it is no number")
    return Decimal(text)


def _check_pattern(pattern: str, *, zoned: bool) -> None:
    """Write a time by ``pattern`` and read it again."""
    if "%Z" in pattern.replace("%%", ""):
        raise ValueError(
            f"time format {pattern!r}: Python reads %Z and forgets it; write %z for +0200, or the"
            " name itself (GMT) and say by --time-zone where it is"
        )
    sample = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)
    try:
        if "%" not in pattern:
            raise ValueError("it holds no % directive")
        read = datetime.strptime(sample.strftime(pattern), pattern)  # noqa: DTZ007
    except (ValueError, re.error) as error:
        raise ValueError(
            f"time format {pattern!r}: {error}; give auto, unix, unix-ms or a pattern of strptime"
            " such as '%d.%m.%Y %H:%M:%S'"
        ) from None
    if read.year != sample.year:  # 1900 is what strptime takes then
        raise ValueError(f"time format {pattern!r} has no year")
    if read.tzinfo is None and not zoned:
        raise ValueError(
            f"time format {pattern!r} has no %z: say by --time-zone where the times are from"
        )
