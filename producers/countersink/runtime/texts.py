"""Texts of times and numbers: ISO 8601 for programs (``iso``), times for messages
(``moment_text``), numbers with their noun (``plural``); the parsers of days and times that users
write, with their errors.
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
    """A day, or a time in UTC with a final Z, as ISO 8601. A time without a zone is in UTC; None
    stays None.
    """
    if not isinstance(moment, datetime):
        return None if moment is None else moment.isoformat()
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def iso_ms(ms: int) -> str:
    """Unix ms as ISO 8601; the number itself if a ``datetime`` cannot hold it."""
    try:
        return iso(datetime.fromtimestamp(ms / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return str(ms)


def moment_text(instant: int) -> str:
    """Unix seconds for people: ``2026-11-21 08:00Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%MZ")


def read_day(text: str) -> date:
    """The day that a text such as ``2026-11-21`` names.

    Raises:
        ValueError: the text is not a day.
    """
    if _DAY.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a day such as 2026-11-21")
    return date.fromisoformat(text)


def read_edge(text: str) -> date:
    """The day or time, aware or naive, that a text names.

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
    """A number with its noun: ``1 key``, ``2,000 keys``; ``many``: an irregular plural."""
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"
