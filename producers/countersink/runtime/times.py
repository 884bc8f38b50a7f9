"""Times as texts: in ISO 8601 for programs (``iso``), and for messages (``moment_text``)."""

from datetime import UTC, date, datetime
from typing import overload


@overload
def iso(moment: date, timespec: str = "milliseconds") -> str: ...
@overload
def iso(moment: date | None, timespec: str = "milliseconds") -> str | None: ...
def iso(moment: date | None, timespec: str = "milliseconds") -> str | None:
    """ISO 8601 of a day; or of a time, which is in UTC where it has no time zone: in UTC, ending in
    Z. None stays None.
    """
    if not isinstance(moment, datetime):
        return None if moment is None else moment.isoformat()
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def iso_ms(ms: int) -> str:
    """Unix ms as ISO 8601; a number that is no time we can write stays a number."""
    try:
        return iso(datetime.fromtimestamp(ms / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return str(ms)


def moment_text(instant: int) -> str:
    """Unix seconds for people: ``2026-11-21 08:00Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%MZ")
