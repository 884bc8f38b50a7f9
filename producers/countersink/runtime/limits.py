"""Limits of counter names, keys, amounts and event times; the functions that check them; and the
functions that cut a key of more than 255 bytes.

Producers and workers share these rules. So no worker refuses the name, key, amount or time of a row
that a producer has accepted, unless the counter's settings do, or the producer's clock was ahead.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

MAX_COUNTER_LENGTH: Final = 64
"""Most characters in a counter name; all are ASCII, so this is its length in bytes, too."""
MIN_AMOUNT: Final = -(2**63)
MAX_AMOUNT: Final = 2**63 - 1
MIN_MINUTE: Final = 0
"""1970-01-01 00:00 UTC, in whole Unix minutes."""
MAX_MINUTE: Final = int(datetime(9999, 12, 26, tzinfo=UTC).timestamp()) // 60 - 1
"""The last minute of 9999-12-25 UTC, the latest event time. The days after it are left free,
because the event's day, and the day after that, must be valid dates in every time zone.
"""
MAX_AHEAD: Final = 366 * 1440
"""Most minutes by which an event time may be later than now, or later than the time at which the
event's entry was sent.
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTER = re.compile(r"[A-Za-z0-9_.:\-]{1,64}", re.ASCII)


def check_counter(counter: object) -> str:
    """Return ``counter`` if it is a valid counter name.

    Raises:
        TypeError: ``counter`` is not a ``str`` (an instance of a subclass is refused, too).
        ValueError: it is empty, longer than 64 characters, or has a character outside ``A-Z a-z 0-9
            _ . : -``.
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
    """Return whether ``counter`` is a valid counter name. Looking the name up in a table does not
    replace this check, because SQL compares 'c ' and 'c' as equal.
    """
    return isinstance(counter, str) and _COUNTER.fullmatch(counter) is not None


def check_key(key: object) -> str:
    """Return ``key`` in the form in which it is counted: unchanged, or cut by :func:`cut_key` if it
    has more than 255 bytes in UTF-8. Any text that has a UTF-8 form is valid, ``''`` included.

    Raises:
        TypeError: ``key`` is not a ``str`` (an instance of a subclass is refused, too).
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
    """Return ``amount`` if it is a signed 64-bit integer. The amount 0 makes the key exist, without
    counting.

    Raises:
        TypeError: ``amount`` is not an ``int`` (a ``bool`` or another subclass is refused, too).
        ValueError: it is outside -2**63 to 2**63 - 1.
    """
    if type(amount) is not int:
        raise TypeError(f"an amount is an int, not {type(amount).__name__}")
    if not MIN_AMOUNT <= amount <= MAX_AMOUNT:
        raise ValueError("an amount is a signed 64-bit integer: -2**63 to 2**63 - 1")
    return amount


def check_minute(minute: object) -> int:
    """Return ``minute`` if it is an event time in whole Unix minutes, from 1970 to 9999-12-25
    (UTC).

    Raises:
        TypeError: ``minute`` is not an ``int`` (a ``bool`` or another subclass is refused, too).
        ValueError: it is out of range.
    """
    if type(minute) is not int:
        raise TypeError(f"a minute is an int, not {type(minute).__name__}")
    if not MIN_MINUTE <= minute <= MAX_MINUTE:
        raise ValueError("an event time lies between 1970-01-01 and 9999-12-25 (UTC)")
    return minute


def latest_minute(at: int = 0) -> int:
    """Return the latest Unix minute that an event may have: 366 days after now by this machine's
    clock, or 366 days after ``at``, whichever is later; at most :data:`MAX_MINUTE`.

    Args:
        at: the time at which the event's entry was sent, in Unix ms; 0 if it is unknown.
    """
    return min(MAX_MINUTE, max(at, int(time.time() * 1000)) // 60_000 + MAX_AHEAD)


def check_event_minute(minute: object) -> int:
    """Return ``minute`` if it is an event time of at most 366 days after now, in whole Unix
    minutes.

    Raises:
        TypeError: ``minute`` is not an ``int``; see :func:`check_minute`.
        ValueError: it is out of the range of :func:`check_minute`, or more than 366 days after now.
    """
    checked = check_minute(minute)
    if checked > latest_minute():
        raise ValueError(
            f"an event time is at most {MAX_AHEAD // 1440} days ahead of the clock of this machine"
        )
    return checked


def minute_of(at: object) -> int:
    """Return the whole Unix minute in which the aware datetime ``at`` lies.

    Raises:
        TypeError: ``at`` is not a ``datetime``.
        ValueError: it is naive (without a time zone), before 1970, or more than 366 days after now;
            or its ``tzinfo`` raises an error.
    """
    if not isinstance(at, datetime):
        raise TypeError(f"an event time is an aware datetime, not {type(at).__name__}")
    try:
        offset = at.utcoffset()
    except Exception as error:  # of the application's own tzinfo
        raise ValueError(
            f"the time zone of an event time, a {type(at.tzinfo).__name__}, fails: {error!r}"
        ) from error
    if offset is None:
        raise ValueError(
            "an event time needs a time zone: datetime.now(UTC), or .replace(tzinfo=ZoneInfo(...))"
        )
    return check_event_minute((at.replace(tzinfo=UTC) - _EPOCH - offset) // timedelta(minutes=1))


MAX_KEY_BYTES: Final = 255
"""Most bytes of UTF-8 in a counted key: the width of the SQL column ``counter_key``."""
OVERFLOW: Final = "__overflow__"
"""The key that gets the amounts of new keys, once a counter has as many keys on a day as its cap
(``--max-keys``) allows. This key itself does not count towards the cap.
"""
DIGEST_DIGITS: Final = 16
"""Hex digits of SHA-256, in lower case, at the end of a key that was cut."""


def cut_bytes(key: bytes, most: int = MAX_KEY_BYTES) -> bytes:
    """Return ``key`` if it has at most ``most`` bytes. Otherwise return its beginning, ``~`` and
    the first 16 hex digits of the SHA-256 of the whole key: ``most`` bytes together, or up to 3
    fewer if the beginning would end within a character. Cutting the result again, with the same
    ``most``, changes nothing.

    Args:
        key: a key in UTF-8. Other bytes are accepted, too; then the result may also be up to 3
            bytes shorter.
        most: most bytes of the result, at least 20; it is less than 255 for a value in a composite
            key.
    """
    if len(key) <= most:
        return key
    end = most - 1 - DIGEST_DIGITS
    shortest = end - 3
    while end > shortest and key[end] & 0xC0 == 0x80:
        end -= 1
    return key[:end] + b"~" + sha256(key).hexdigest()[:DIGEST_DIGITS].encode()


def cut_key(key: str, most: int = MAX_KEY_BYTES) -> str:
    """Return ``key`` if it has at most ``most`` bytes in UTF-8. Otherwise return its beginning,
    ``~`` and 16 hex digits of its SHA-256; see :func:`cut_bytes`.

    Raises:
        UnicodeEncodeError: ``key`` holds a lone surrogate, which has no UTF-8 form.
    """
    if len(key) <= most and key.isascii():
        return key
    data = key.encode()
    return key if len(data) <= most else cut_bytes(data, most).decode()


def key_bytes(key: str) -> bytes:
    """Return the bytes that the SQL column ``counter_key`` holds for ``key``; a key of more than
    255 bytes is cut.

    Raises:
        ValueError: ``key`` holds a lone surrogate other than U+DC80 to U+DCFF, which stand for
            bytes that are not UTF-8 (see :func:`key_text`).
    """
    return cut_bytes(text_bytes(key))


def stored_form(key: str) -> str:
    """Return the text of the bytes that the SQL column ``counter_key`` holds for ``key``; a key of
    more than 255 bytes is cut.

    Raises:
        ValueError: ``key`` holds a lone surrogate other than U+DC80 to U+DCFF, which stand for
            bytes that are not UTF-8 (see :func:`key_text`).
    """
    return key_text(key_bytes(key))


def text_bytes(text: str) -> bytes:
    """Return the bytes of a key, or of one value in a composite key; nothing is cut. The inverse is
    :func:`key_text`.

    Raises:
        ValueError: ``text`` holds a lone surrogate other than U+DC80 to U+DCFF, which stand for
            bytes that are not UTF-8 (see :func:`key_text`).
    """
    return text.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    """Return the text of a key's bytes in the database. A byte that is not valid UTF-8 becomes a
    lone surrogate, which :func:`text_bytes` turns back into the byte.
    """
    return bytes(key).decode("utf-8", "surrogateescape")
