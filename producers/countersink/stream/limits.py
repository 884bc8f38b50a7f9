"""What a counter name, a key, an amount and an event time may be.

One place for the rules of the wire format, so that a producer refuses in the
caller exactly what a worker would have to put among the dead letters.
"""

import re
from datetime import UTC, datetime
from typing import Final

MAX_COUNTER_LENGTH: Final = 64
"""Characters (all ASCII, so bytes too) in a counter name."""
MAX_KEY_BYTES: Final = 255
"""Bytes of UTF-8 in a key."""
MIN_AMOUNT: Final = -(2**63)
MAX_AMOUNT: Final = 2**63 - 1
MIN_MINUTE: Final = 0
"""1970-01-01 00:00 UTC, in whole Unix minutes."""
MAX_MINUTE: Final = int(datetime(9999, 12, 26, tzinfo=UTC).timestamp()) // 60 - 1
"""The last minute of 9999-12-25 UTC, so that in any time zone there are dates after its day."""

_COUNTER = re.compile(r"[A-Za-z0-9_.:\-]{1,64}", re.ASCII)


def check_counter(counter: object) -> str:
    """Return ``counter`` if it is a valid counter name.

    Raises:
        TypeError: not a ``str``.
        ValueError: empty, longer than 64 characters, or with a character outside ``A-Z a-z 0-9 _ .
            : -``.
    """
    if type(counter) is not str:
        raise TypeError(f"a counter name is a str, not {type(counter).__name__}")
    if _COUNTER.fullmatch(counter) is None:
        shown = counter if len(counter) <= 80 else counter[:77] + "..."
        raise ValueError(
            f"counter name {shown!r}: use 1 to {MAX_COUNTER_LENGTH} characters of "
            "A-Z a-z 0-9 _ . : -"
        )
    return counter


def check_key(key: object) -> str:
    """Return ``key`` if it is a valid key: any text of at most 255 bytes in UTF-8, the empty one
    included.

    Raises:
        TypeError: not a ``str``.
        ValueError: longer than 255 bytes, or holding a lone surrogate, which has no UTF-8 form.
    """
    if type(key) is not str:
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(
            f"the key is {len(key)} characters long; at most {MAX_KEY_BYTES} bytes fit"
        )
    if not key.isascii():
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise ValueError(
                f"key {key!r} holds a lone surrogate and cannot be written as UTF-8"
            ) from None
        if size > MAX_KEY_BYTES:
            raise ValueError(f"the key is {size} bytes of UTF-8; at most {MAX_KEY_BYTES} fit")
    return key


def check_amount(amount: object) -> int:
    """Return ``amount`` if it is a signed 64-bit integer; 0 declares a key without counting.

    Raises:
        TypeError: not an ``int`` (``bool`` is refused too).
        ValueError: outside -2**63 to 2**63 - 1.
    """
    if type(amount) is not int:
        raise TypeError(f"an amount is an int, not {type(amount).__name__}")
    if not MIN_AMOUNT <= amount <= MAX_AMOUNT:
        raise ValueError("an amount is a signed 64-bit integer: -2**63 to 2**63 - 1")
    return amount


def check_minute(minute: object) -> int:
    """Return ``minute`` if it is an event time in whole Unix minutes, 1970 to 9999-12-25.

    Raises:
        TypeError: not an ``int``.
        ValueError: out of range.
    """
    if type(minute) is not int:
        raise TypeError(f"a minute is an int, not {type(minute).__name__}")
    if not MIN_MINUTE <= minute <= MAX_MINUTE:
        raise ValueError("an event time lies between 1970-01-01 and 9999-12-25 (UTC)")
    return minute


def minute_of(at: object) -> int:
    """The whole Unix minute in which the aware datetime ``at`` lies.

    Raises:
        TypeError: not a ``datetime``.
        ValueError: naive (without a time zone), or outside 1970-01-01 to 9999-12-25 UTC.
    """
    if not isinstance(at, datetime):
        raise TypeError(f"an event time is an aware datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise ValueError(
            "an event time needs a time zone: datetime.now(UTC), or .replace(tzinfo=ZoneInfo(...))"
        )
    return check_minute(int(at.timestamp() // 60))
