"""Cron expressions: syntax with its error messages, time zones, clock changes, the next and the
last time.

Five fields (minute, hour, day of month, month, day of week), or six with seconds first, as
crontab(5) has them: ``*``, numbers, names (``jan``, ``mon``), ranges, lists, ``/step``, and
``@hourly`` and its like. Sunday is 0 and 7. When day of month *and* day of week are restricted, a
day that fits either will do.

Times that a clock change leaves out come together, once, at the first instant after it. Times that
it repeats come once, the first time, if the hours are named; if the field of hours begins with
``*``, they come both times, as they do in cron. (Not APScheduler's trigger: it loses the day whose
midnight is left out, and stands still in a repeated hour.)
"""

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

OFF: Final = "off"
"""The expression of a job that is not planned."""
MAX_LENGTH: Final = 255
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day of month": (1, 31),
    "month": (1, 12),
    "day of week": (0, 7),
}
_WINDOWS: Final = (60, 3600, 86_400, 32 * 86_400, 366 * 86_400, 9 * 366 * 86_400)
"""Seconds: how far back to look: the last one spans 29 February across a year such as 2100."""
_SECOND: Final = timedelta(seconds=1)
_CENTURIES: Final = 400
"""Years after which the calendar repeats itself: what does not come in them never comes."""


class Cron:
    """An expression in a time zone. All times in and out are aware and in UTC, whole seconds.

    Attributes:
        text: the expression as it was given.
        time_zone: the IANA name.

    Raises:
        ValueError: it is none; the message says what is wrong with it.
    """

    def __init__(self, text: str, time_zone: str = "UTC") -> None:
        self.text = text
        self.time_zone = time_zone
        self._zone = zone(time_zone)
        if len(text) > MAX_LENGTH:
            raise ValueError(f"a cron expression has at most {MAX_LENGTH} characters")
        fields = _split(text)
        self._fixed_hour = not fields["hour"].startswith("*")
        self._clock = _Clock(text, fields)
        if self.after(datetime.now(UTC)) is None:
            raise ValueError(f"{text!r} never comes: there is no such day")

    def after(self, moment: datetime) -> datetime | None:
        """The first time after ``moment``; None if there is none."""
        moment = moment.astimezone(UTC).replace(microsecond=0)
        here = moment.astimezone(self._zone)
        shown, second_time = here.replace(tzinfo=None, fold=0), bool(here.fold)
        repeated = self._repeated(shown)
        found = None
        if repeated and not self._fixed_hour:
            # What the clock shows again: after this moment, or from the start of the repetition.
            begin, end = repeated
            again = self._clock.next(shown + _SECOND if second_time else begin)
            if again is not None and again < end:
                found = _instant(again, self._offset(again, fold=1))
        # All that the clock shows before this has been, or was left out.
        local = self._clock.next(repeated[1] if repeated and second_time else shown + _SECOND)
        first = None if local is None else self._first(local)
        return min((one for one in (found, first) if one is not None), default=None)

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The times after ``start``, up to and including ``end``, in order."""
        moment = self.after(start)
        while moment is not None and moment <= end:
            yield moment
            moment = self.after(moment)

    def last(self, moment: datetime) -> datetime | None:
        """The latest time up to and including ``moment``; None if there was none in nine years."""

        def is_within(seconds: int) -> bool:
            found = self.after(moment - timedelta(seconds=seconds))
            return found is not None and found <= moment

        for window in _WINDOWS:
            if is_within(window):
                # By halves, since there may be millions.
                return self.after(moment - timedelta(seconds=_lowest(window, is_within)))
        return None

    def _offset(self, local: datetime, *, fold: int) -> timedelta:
        offset = local.replace(tzinfo=self._zone, fold=fold).utcoffset()
        assert offset is not None
        return offset

    def _first(self, local: datetime) -> datetime:
        """When the zone's clock shows that time first; the end of the gap if it leaves it out."""
        before, after = self._offset(local, fold=0), self._offset(local, fold=1)
        if before >= after:
            return _instant(local, before)
        # In a gap the offset of fold 0 is that before it, of fold 1 that after it (PEP 495).
        last = _instant(local, after)

        def is_over(seconds: int) -> bool:
            moment = last + timedelta(seconds=seconds)
            return moment.astimezone(self._zone).utcoffset() != before

        return last + timedelta(seconds=_lowest((after - before) // _SECOND, is_over))

    def _repeated(self, local: datetime) -> tuple[datetime, datetime] | None:
        """Begin and end of the time around ``local`` that the clock shows twice, if it does."""
        width = (self._offset(local, fold=0) - self._offset(local, fold=1)) // _SECOND
        if width <= 0:
            return None

        def is_once(seconds: int) -> bool:
            other = local + timedelta(seconds=seconds)
            return self._offset(other, fold=0) <= self._offset(other, fold=1)

        end = local + timedelta(seconds=_lowest(width, is_once))
        return end - timedelta(seconds=width), end

    def __repr__(self) -> str:
        return f"Cron({self.text!r}, {self.time_zone!r})"


def parse(text: str, time_zone: str = "UTC") -> Cron | None:
    """The expression; None for ``off``.

    Raises:
        ValueError: it is neither.
    """
    cleaned = " ".join(text.split())
    if cleaned.lower() == OFF:
        zone(time_zone)
        return None
    return Cron(cleaned, time_zone)


def zone(name: str) -> ZoneInfo:
    """The time zone of that IANA name.

    Raises:
        ValueError: there is none.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"{name!r} is not a time zone: use an IANA name such as Europe/Berlin"
        ) from None


def _split(text: str) -> dict[str, str]:
    parts = _MACROS.get(text.lower(), text).split()
    if len(parts) == 5:
        parts.insert(0, "0")
    if len(parts) != 6:
        raise ValueError(
            f"{text!r} is not a cron expression: five fields (minute, hour, day of month, month,"
            " day of week), six with seconds first, or off"
        )
    return dict(zip(_FIELDS, parts, strict=True))


class _Clock:
    """What a clock that nobody sets shows: the times of an expression without a zone."""

    def __init__(self, text: str, fields: dict[str, str]) -> None:
        values = {name: _values(text, name, field) for name, field in fields.items()}
        self._seconds, self._minutes, self._hours, self._months = (
            sorted(values[name]) for name in ("second", "minute", "hour", "month")
        )
        self._dates = values["day of month"]
        self._days = {number % 7 for number in values["day of week"]}
        self._either = not any(fields[f"day of {of}"].startswith("*") for of in ("month", "week"))

    def next(self, local: datetime) -> datetime | None:
        """The first time from ``local`` on, itself included; None if there is none."""
        day = local.date()
        if self._fits(day):
            later = self._time(local.hour, local.minute, local.second)
            if later is not None:
                return datetime.combine(day, later)
        following = self._day_after(day)
        if following is None:
            return None
        return datetime.combine(following, time(self._hours[0], self._minutes[0], self._seconds[0]))

    def _time(self, hour: int, minute: int, second: int) -> time | None:
        """The first time of a day from that one on."""
        if hour in self._hours:
            if minute in self._minutes:
                at = _from(self._seconds, second)
                if at is not None:
                    return time(hour, minute, at)
            at = _from(self._minutes, minute + 1)
            if at is not None:
                return time(hour, at, self._seconds[0])
        at = _from(self._hours, hour + 1)
        return None if at is None else time(at, self._minutes[0], self._seconds[0])

    def _day_after(self, day: date) -> date | None:
        for year in range(day.year, min(day.year + _CENTURIES, MAXYEAR) + 1):
            for month in self._months:
                if (year, month) < (day.year, day.month):
                    continue
                first = day.day + 1 if (year, month) == (day.year, day.month) else 1
                for number in range(first, monthrange(year, month)[1] + 1):
                    found = date(year, month, number)
                    if self._fits(found):
                        return found
        return None

    def _fits(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        of_month, of_week = day.day in self._dates, day.isoweekday() % 7 in self._days
        return of_month or of_week if self._either else of_month and of_week


def _from(values: list[int], least: int) -> int | None:
    at = bisect_left(values, least)
    return values[at] if at < len(values) else None


def _instant(local: datetime, offset: timedelta) -> datetime:
    return (local - offset).replace(tzinfo=UTC)


def _lowest(high: int, reached: Callable[[int], bool]) -> int:
    """The lowest of 1 to ``high`` for which ``reached``, given that it is for ``high``."""
    return 1 + bisect_left(range(1, high), True, key=reached)


def _values(text: str, name: str, field: str) -> set[int]:
    """The numbers that a field stands for."""
    low, high = _FIELDS[name]
    found: set[int] = set()
    for part in field.lower().split(","):
        match = re.fullmatch(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]{1,4}))?", part)
        if match is None or (match[1] == "*" and match[2]):
            raise ValueError(f"{part!r} does not fit the {name} in the cron expression {text!r}")
        step = int(match[3] or 1)
        if step == 0:
            raise ValueError(f"the step of {part!r} in the cron expression {text!r} is 0")
        if match[1] == "*":
            first, last = low, min(high, 6) if name == "day of week" else high
        else:
            first = _number(text, name, match[1])
            last = _number(text, name, match[2]) if match[2] else high if match[3] else first
            if name == "day of week" and match[2] in ("sun", "0") and first > last:
                last = 7  # mon-sun
        if first > last:
            raise ValueError(f"{part!r} in the cron expression {text!r} ends before it begins")
        found.update(range(first, last + 1, step))
    return found


def _number(text: str, name: str, word: str) -> int:
    low, high = _FIELDS[name]
    if name == "month" and word in _MONTHS:
        return _MONTHS.index(word) + 1
    if name == "day of week" and word in _DAYS:
        return _DAYS.index(word)
    if not word.isascii() or not word.isdecimal() or not low <= int(word[:6]) <= high:
        raise ValueError(
            f"{word!r} does not fit the {name} ({low} to {high}) in the cron expression {text!r}"
        )
    return int(word)
