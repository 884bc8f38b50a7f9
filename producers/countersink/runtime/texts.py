"""Functions that write times and numbers as texts: ``iso`` for programs, ``moment_text`` for
messages, ``plural`` for a number with its noun; and the functions that read a day or a time from a
user's text.
"""

import re
from datetime import UTC, date, datetime
from typing import Final, overload

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@overload
def iso(moment: date, timespec: str = "milliseconds") -> str: ...
@overload
def iso(moment: date | None, timespec: str = "milliseconds") -> str | None: ...
def iso(moment: date | None, timespec: str = "milliseconds") -> str | None:
    """Return a day or a time as ISO 8601. A time is written in UTC with a final Z; a time without a
    zone is taken as UTC. None stays None.
    """
    if not isinstance(moment, datetime):
        return None if moment is None else moment.isoformat()
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def iso_ms(ms: int) -> str:
    """Return a time in Unix ms as ISO 8601, or the number's digits if a ``datetime`` cannot hold
    the time.
    """
    try:
        return iso(datetime.fromtimestamp(ms / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return str(ms)


def moment_text(instant: int) -> str:
    """Return a time in Unix seconds as people read it: ``2026-11-21 08:00Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%MZ")


def read_day(text: str) -> date:
    """Return the day that a text such as ``2026-11-21`` names.

    Raises:
        ValueError: the text is not a day.
    """
    if _DAY.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a day such as 2026-11-21")
    return date.fromisoformat(text)


def read_edge(text: str) -> date:
    """Return the day, or the time with or without a time zone, that a text names.

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


def plural(number: int, noun: str, many: str = "") -> str:
    """Return a number with its noun: ``1 key``, ``2,000 keys``.

    Args:
        number: the number.
        noun: the noun in the singular.
        many: the plural, where it is not the singular and ``s``.
    """
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"
