"""Limits of counter names, keys, amounts and event times, their checks with the error messages, and
the cut of keys of more than 255 bytes.

Producers and workers share these rules, so that a producer refuses in the caller exactly the rows
that a worker would have to put among the dead letters.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

MAX_COUNTER_LENGTH: Final = 64
"""Characters (all ASCII, so bytes too) in a counter name."""
MIN_AMOUNT: Final = -(2**63)
MAX_AMOUNT: Final = 2**63 - 1
MIN_MINUTE: Final = 0
"""1970-01-01 00:00 UTC, in whole Unix minutes."""
MAX_MINUTE: Final = int(datetime(9999, 12, 26, tzinfo=UTC).timestamp()) // 60 - 1
"""The last minute of 9999-12-25 UTC, so that in any time zone there are dates after its day."""
MAX_AHEAD: Final = 366 * 1440
"""Minutes by which an event may be later than now, or than its entry was sent."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
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
        raise ValueError(
            f"counter name {counter[:80]!r}: use 1 to {MAX_COUNTER_LENGTH} characters of "
            "A-Z a-z 0-9 _ . : -"
        )
    return counter


def is_name(counter: object) -> bool:
    """Whether ``counter`` is a valid counter name; the SQL column alone would take 'c ' for 'c'."""
    return isinstance(counter, str) and _COUNTER.fullmatch(counter) is not None


def check_key(key: object) -> str:
    """``key`` in the form in which it is counted: any text, ``''`` included; :func:`cut_key` cuts a
    key of more than 255 bytes in UTF-8.

    Raises:
        TypeError: not a ``str``.
        ValueError: it holds a lone surrogate, which has no UTF-8 form.
    """
    if type(key) is not str:
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    try:
        return cut_key(key)
    except UnicodeEncodeError:
        raise ValueError(
            f"key {key[:80]!r} holds a lone surrogate and cannot be written as UTF-8"
        ) from None


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


def latest_minute(at: int = 0) -> int:
    """The latest Unix minute that an event may have: 366 days after now, on this machine's clock,
    or after ``at``, when its entry was sent (Unix ms), whichever is later.
    """
    return min(MAX_MINUTE, max(at, int(time.time() * 1000)) // 60_000 + MAX_AHEAD)


def check_event_minute(minute: object) -> int:
    """Return ``minute`` if it is an event time up to 366 days ahead; see :func:`check_minute`.

    Raises:
        TypeError: not an ``int``.
        ValueError: out of range, or more than 366 days ahead.
    """
    checked = check_minute(minute)
    if checked > latest_minute():
        raise ValueError(
            f"an event time is at most {MAX_AHEAD // 1440} days ahead of the clock of this machine"
        )
    return checked


def minute_of(at: object) -> int:
    """The whole Unix minute in which the aware datetime ``at`` lies.

    Raises:
        TypeError: not a ``datetime``.
        ValueError: naive (without a time zone), before 1970, or more than 366 days ahead.
    """
    if not isinstance(at, datetime):
        raise TypeError(f"an event time is an aware datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise ValueError(
            "an event time needs a time zone: datetime.now(UTC), or .replace(tzinfo=ZoneInfo(...))"
        )
    return check_event_minute((at - _EPOCH) // timedelta(minutes=1))


MAX_KEY_BYTES: Final = 255
"""Most bytes of UTF-8 in a counted key: the width of the column ``counter_key``."""
OVERFLOW: Final = "__overflow__"
"""The key of the amounts beyond a counter's key cap of a day; it does not count towards the cap."""
DIGEST_DIGITS: Final = 16
"""Hex digits of SHA-256, lower case, at the end of a key that was cut."""


def cut_bytes(key: bytes, most: int = MAX_KEY_BYTES) -> bytes:
    """``key`` if it has at most 255 bytes, else its beginning, ``~`` and 16 digits of its digest.

    The beginning is 238 bytes, or up to 3 fewer where that would end within a character. The digest
    is the SHA-256 of all bytes of the key. A second call changes nothing.

    Args:
        key: UTF-8; of other bytes, at most 3 that look like the rest of a character are left out.
        most: most bytes of the result, at least 20; less than 255 for a part of a key.
    """
    if len(key) <= most:
        return key
    end = most - 1 - DIGEST_DIGITS
    shortest = end - 3
    while end > shortest and key[end] & 0xC0 == 0x80:
        end -= 1
    return key[:end] + b"~" + sha256(key).hexdigest()[:DIGEST_DIGITS].encode()


def cut_key(key: str, most: int = MAX_KEY_BYTES) -> str:
    """``key`` as :func:`cut_bytes` cuts it.

    Raises:
        UnicodeEncodeError: it holds a lone surrogate, which has no UTF-8 form.
    """
    if len(key) <= most and key.isascii():
        return key
    data = key.encode()
    return key if len(data) <= most else cut_bytes(data, most).decode()


def key_bytes(key: str) -> bytes:
    """A key as the table holds it, in bytes: cut if it has more than 255.

    Raises:
        ValueError: it holds a lone surrogate that stands for no byte.
    """
    return cut_bytes(text_bytes(key))


def stored_form(key: str) -> str:
    """A key as the table holds it, as text.

    Raises:
        ValueError: as :func:`key_bytes`.
    """
    return key_text(key_bytes(key))


def text_bytes(text: str) -> bytes:
    """The bytes of a key, or of a part of a key; the inverse of :func:`key_text`.

    Raises:
        ValueError: it holds a lone surrogate that stands for no byte.
    """
    return text.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    """The text of a key of the table; :func:`key_bytes` is its inverse, also for invalid UTF-8."""
    return bytes(key).decode("utf-8", "surrogateescape")
