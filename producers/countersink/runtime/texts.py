"""Functions that write times and numbers as texts: ``iso`` for programs, ``moment_text`` for
messages, ``ago`` for a duration, ``plural`` for a number with its noun; and the functions that read
a day, an ISO week, a time or a time zone from a user's text, or suggest a name (``did_you_mean``).
"""

import re
from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, overload

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WEEK: Final = re.compile(r"[0-9]{4}-W[0-9]{2}")
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@overload
def iso(moment: date, timespec: str = "milliseconds") -> str: ...
@overload
def iso(moment: date | None, timespec: str = "milliseconds") -> str | None: ...
def iso(moment: date | None, timespec: str = "milliseconds") -> str | None:
    """Return a day or a time as ISO 8601. A time is written in UTC with a final Z; ``timespec``
    is its last unit, as in ``datetime.isoformat``. A time without a zone is taken as UTC. For None,
    return None.
    """
    if not isinstance(moment, datetime):
        return None if moment is None else moment.isoformat()
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def iso_ms(ms: int) -> str:
    """Return a time in Unix ms as ISO 8601 in UTC, or the number itself as text if a ``datetime``
    cannot hold the time.
    """
    try:
        return iso(datetime.fromtimestamp(ms / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return str(ms)


def moment_text(instant: int) -> str:
    """Return a time in Unix seconds as people read it, in UTC: ``2026-11-21 08:00Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%MZ")


def ago(seconds: float) -> str:
    """Return a duration as text: ``250 ms``, ``12 s``, ``3 min``, ``5.0 h``, ``2.1 d``. Minutes are
    used from 100 s on, hours from 100 min on, days from 48 h on. A duration below 0 is ``0 ms``.
    """
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"


def read_day(text: str) -> date:
    """Return the day that a text such as ``2026-11-21`` names.

    Raises:
        ValueError: the text is not a day.
    """
    if _DAY.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a day such as 2026-11-21")
    return date.fromisoformat(text)


def read_edge(text: str) -> date:
    """Return the day (a ``date``) or the time (a ``datetime``) that a text names, such as
    ``2026-11-21`` or ``2026-11-21T08:00Z``. A time without a time zone becomes a naive
    ``datetime``.

    Raises:
        ValueError: the text is neither a day nor a time.
    """
    if _DAY.fullmatch(text):
        return read_day(text)
    try:
        if "T" in text:
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(
        f"{text[:40]!r} is neither a day such as 2026-11-21 nor a time such as 2026-11-21T08:00Z"
    )


@dataclass(frozen=True, slots=True)
class DayName:
    """A day that depends on which day is today.

    Attributes:
        name: ``today``, ``yesterday``, or a weekday in English. A weekday means the latest day of
            this name, which may be today.
    """

    name: str

    def day(self, today: date) -> date:
        """Return the day that the name means if ``today`` is the present day. For a weekday, return
        the latest day of this name, which may be ``today``.
        """
        if self.name in WEEKDAYS:
            return today - timedelta(days=(today.weekday() - WEEKDAYS.index(self.name)) % 7)
        return today - timedelta(days=self.name == "yesterday")


@dataclass(frozen=True, slots=True)
class NamedRange:
    """A range of time of which at least one end is the name of a day, such as ``yesterday``.

    Attributes:
        start, end: names, or days, or times; None means that this side has no limit.
    """

    start: date | DayName | None
    end: date | DayName | None

    def dated(self, today: date) -> tuple[date | None, date | None]:
        """Return start and end of the range. Names of days become the days that they mean if
        ``today`` is the present day; days, times and None stay.
        """
        ends = self.start, self.end
        start, end = (each.day(today) if isinstance(each, DayName) else each for each in ends)
        return start, end


def read_range_edge(text: str, weekday: int, *, times: bool = True) -> date | DayName:
    """Return the day or time with which a range begins or ends. The text may be a day or a time as
    for :func:`read_edge`, the name of a day such as ``yesterday`` (in upper or lower case;
    returned as :class:`DayName`), or an ISO week such as ``2026-W48``. Of a week, the day
    ``weekday`` is returned.

    Args:
        text: the text of a user.
        weekday: the day of the week: 1 (Monday) if a range begins, 7 if it ends.
        times: whether times are allowed.

    Raises:
        ValueError: the text is none of these, or a time that is not allowed.
    """
    if text.lower() in ("today", "yesterday", *WEEKDAYS):
        return DayName(text.lower())
    if _WEEK.fullmatch(text):
        try:
            return date.fromisocalendar(int(text[:4]), int(text[6:]), weekday)
        except ValueError:
            raise ValueError(f"{text!r} is no ISO week") from None
    if _DAY.fullmatch(text) or (times and "T" in text):
        return read_edge(text)
    raise ValueError(
        f"{text[:40]!r} is no day: give one such as 2026-11-21, yesterday, monday or 2026-W48"
        + (", or a time such as 2026-11-21T08:00Z" if times else "")
    )


@lru_cache(maxsize=256)
def zone(name: str) -> "ZoneInfo":
    """Return the time zone that has this IANA name.

    Raises:
        ValueError: there is no such time zone, or it is ``localtime``; the message gives examples.
    """
    from zoneinfo import ZoneInfo, available_timezones  # noqa: PLC0415 (no producer needs it)

    # Compared with the list: ZoneInfo would open the name as a path, and not every file there is a
    # zone. "localtime" differs between machines.
    if name == "localtime" or name not in available_timezones():
        raise ValueError(
            f"{name!r} is no time zone: give an IANA name such as Europe/Berlin, America/New_York"
            " or UTC"
        )
    return ZoneInfo(name)


_CANDIDATES: Final = 10_000
"""Maximum number of names with which a misspelt name is compared, which takes 0.2 s."""


def did_you_mean(
    name: str, names: Iterable[str], similarity: float = 0.6, *, prefix: str = ""
) -> str:
    """Return the question "did you mean …?" with the one of ``names`` that is most similar to
    ``name``, or an empty text if none is similar enough. If there are more than ``_CANDIDATES``
    names, only those are compared that stand next to ``name`` in sorted order.

    Args:
        name: the name that a user gave, with or without ``prefix``.
        names: the names that exist.
        similarity: the least similarity, from 0 to 1 (equal).
        prefix: a text with which all ``names`` begin; it is left out of the comparison.
    """
    from difflib import get_close_matches  # noqa: PLC0415 (few processes need it)

    rest = name.removeprefix(prefix)
    known = sorted(each.removeprefix(prefix) for each in names)
    place = bisect(known, rest)
    nearest = known[max(0, place - _CANDIDATES // 2) : place + _CANDIDATES // 2]
    found = get_close_matches(rest, nearest, 1, similarity)
    return f"did you mean {prefix}{found[0]}?" if found else ""


def plural(number: int, noun: str, many: str = "") -> str:
    """Return a number with its noun: ``1 key``, ``2,000 keys``.

    Args:
        number: the number.
        noun: the noun in the singular.
        many: the noun in the plural; ``''`` if it is the singular and an ``s``.
    """
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"
