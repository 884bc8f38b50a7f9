"""Cron expressions: what they mean, and when they come next or came last.

Five fields (minute, hour, day of month, month, day of week), or six with seconds first, as
crontab(5) has them: ``*``, numbers, names (``jan``, ``mon``), ranges, lists, ``/step``, and
``@hourly`` and its like. Sunday is 0 and 7. When day of month *and* day of week are restricted, a
day that fits either will do. Times that a clock change leaves out come right after it; times of
fixed hours that it repeats come once, the first time.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

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
_WINDOWS: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (60, 3600, 86_400, 32 * 86_400, 366 * 86_400, 9 * 366 * 86_400)
)
"""How far back to look: the last one spans 29 February across a year such as 2100."""
_SECOND: Final = timedelta(seconds=1)
_TICK: Final = timedelta(microseconds=1)


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
        self._trigger = _trigger(text, fields, self._zone)
        if self.after(datetime.now(UTC)) is None:
            raise ValueError(f"{text!r} never comes: there is no such day")

    def after(self, moment: datetime) -> datetime | None:
        """The first time after ``moment``; None if there is none."""
        while True:
            # Without a previous time: given one, APScheduler 3.11 stands still in a repeated hour.
            # A moment on the second would be found again.
            start = (moment + _TICK).astimezone(self._zone)
            found = self._trigger.get_next_fire_time(None, start)
            if found is None:
                return None
            local = found.astimezone(self._zone)
            moment = found.astimezone(UTC)
            if not (self._fixed_hour and local.fold):
                return moment

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The times after ``start``, up to and including ``end``, in order."""
        moment = self.after(start)
        while moment is not None and moment <= end:
            yield moment
            moment = self.after(moment)

    def last(self, moment: datetime) -> datetime | None:
        """The latest time up to and including ``moment``; None if there was none in nine years."""
        for window in _WINDOWS:
            found = self.after(moment - window)
            if found is not None and found <= moment:
                return self._latest(found, moment)
        return None

    def _latest(self, low: datetime, moment: datetime) -> datetime:
        """The latest time up to ``moment``, given one: by halves, since there may be millions."""
        high = moment + _SECOND
        while high - low > _SECOND:
            middle = low + (high - low) / 2
            found = self.after(middle)
            if found is not None and found <= moment:
                low = found
            else:
                high = middle
        # What is left is less than a second wide, but its end counts.
        found = self.after(low)
        return found if found is not None and found <= moment else low

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


def _trigger(text: str, fields: dict[str, str], time_zone: ZoneInfo) -> CronTrigger | OrTrigger:
    values = {name: _values(text, name, field) for name, field in fields.items()}
    # Days by name: APScheduler's own numbers begin with Monday.
    days = ",".join(sorted({_DAYS[number % 7] for number in values["day of week"]}))
    common = {
        "second": _listed(values["second"]),
        "minute": _listed(values["minute"]),
        "hour": _listed(values["hour"]),
        "month": _listed(values["month"]),
        "timezone": time_zone,
    }
    dates = _listed(values["day of month"])
    free_date, free_day = (fields[f"day of {of}"].startswith("*") for of in ("month", "week"))
    if free_date or free_day:
        return CronTrigger(day=dates, day_of_week=days, **common)
    return OrTrigger([CronTrigger(day=dates, **common), CronTrigger(day_of_week=days, **common)])


def _listed(values: set[int]) -> str:
    return ",".join(str(value) for value in sorted(values))


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
