"""What a key, an amount and an event time may be, where the application counts by itself.

The same rules as the queue's (``countersink.stream.limits``): what counts one way counts the other.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from countersink.store.buckets import MAX_MINUTE

MAX_KEY_BYTES: Final = 255
MIN_AMOUNT: Final = -(2**63)
MAX_AMOUNT: Final = 2**63 - 1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_key(key: object) -> bytes:
    """The UTF-8 of ``key``.

    Raises:
        TypeError: not a ``str``.
        ValueError: longer than 255 bytes, or holding a lone surrogate, which has no UTF-8 form.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    try:
        written = key.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"key {key[:80]!r} holds a lone surrogate and cannot be written as UTF-8"
        ) from None
    if len(written) > MAX_KEY_BYTES:
        raise ValueError(f"the key is {len(written)} bytes of UTF-8; at most {MAX_KEY_BYTES} fit")
    return written


def check_amount(amount: object) -> int:
    """``amount``, if it is a signed 64-bit integer; 0 declares a key without counting.

    Raises:
        TypeError: not an ``int`` (``bool`` is refused too).
        ValueError: outside -2**63 to 2**63 - 1.
    """
    if type(amount) is not int:
        raise TypeError(f"an amount is an int, not {type(amount).__name__}")
    if not MIN_AMOUNT <= amount <= MAX_AMOUNT:
        raise ValueError("an amount is a signed 64-bit integer: -2**63 to 2**63 - 1")
    return amount


def check_amounts(amounts: object) -> list[tuple[bytes, int]]:
    """The keys as UTF-8 with their amounts, in the order of the table's primary key.

    Raises:
        TypeError: not a mapping. TypeError, ValueError: as :func:`check_key`, :func:`check_amount`.
    """
    if not isinstance(amounts, Mapping):
        raise TypeError(f"amounts is a mapping of key to amount, not {type(amounts).__name__}")
    # A list of it first: another thread may be changing it.
    return sorted((check_key(key), check_amount(amount)) for key, amount in list(amounts.items()))


def minute_of(at: object) -> int:
    """The whole Unix minute in which ``at`` lies; None: now, on this machine's clock.

    Raises:
        TypeError: not a ``datetime``.
        ValueError: naive (without a time zone), or outside 1970-01-01 to 9999-12-25 UTC.
    """
    if at is None:
        at = datetime.now(UTC)
    if not isinstance(at, datetime):
        raise TypeError(f"an event time is an aware datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise ValueError(
            "an event time needs a time zone: datetime.now(UTC), or .replace(tzinfo=ZoneInfo(...))"
        )
    minute = (at - _EPOCH) // timedelta(minutes=1)
    if not 0 <= minute <= MAX_MINUTE:
        raise ValueError("an event time lies between 1970-01-01 and 9999-12-25 (UTC)")
    return minute
