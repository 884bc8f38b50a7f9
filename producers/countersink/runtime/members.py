"""Members: checks, hashes and salts. A member is a text, such as a visitor's address, or bytes; a
counter with ``--unique`` counts how many different members it got. ``Salt`` is a salt of the
hashes, with its JSON form in Redis; ``Seen`` has the hashes in one row of an entry.

A member is never sent, stored or logged. Only its hash is, which depends on a salt of its counter.
"""

import json
from base64 import b64encode
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from countersink.runtime.limits import cut_key

HASH_BYTES: Final = 8
"""Bytes in the hash of a member."""
MAX_HASHES: Final = 4_096
"""Most hashes in one row of an entry."""
SALT_BYTES: Final = 16
SALT_SECONDS: Final = 10.0
"""Seconds that a producer waits for a salt, from Redis's first answer without it. Workers publish a
salt within seconds after ``--unique`` is set for a counter, or after their own restart if Redis has
lost it.
"""
MAX_SALT_NUMBER: Final = 2**32 - 1


class Seen(NamedTuple):
    """The hashes of the members in one row of an entry.

    Attributes:
        number: the number of the salt with which the members were hashed.
        hashes: 1 to :data:`MAX_HASHES` hashes of :data:`HASH_BYTES` bytes each, joined in any
            order; a hash may occur twice.
    """

    number: int
    hashes: bytes


class Salt(NamedTuple):
    """A salt of a counter, and the range of event times in which it is used.

    Attributes:
        number: the salt's number, unique among the salts of all counters.
        begins: the first Unix minute of the range.
        ends: the Unix minute after the last one; None if the range has no end.
        salt: the secret itself, :data:`SALT_BYTES` bytes.
    """

    number: int
    begins: int
    ends: int | None
    salt: bytes


def check_member(member: object) -> bytes:
    """Return the bytes of a member: a ``str`` becomes UTF-8, ``bytes`` stay. Any length is valid, 0
    too.

    Raises:
        TypeError: ``member`` is neither a ``str`` nor ``bytes`` (an instance of a subclass is
            refused, too).
        ValueError: it holds a lone surrogate, which has no UTF-8 form. The error does not show the
            member.
    """
    if type(member) is bytes:
        return member
    if type(member) is not str:
        raise TypeError(f"a member is a str or bytes, not {type(member).__name__}")
    try:
        return member.encode()
    except UnicodeEncodeError:
        raise ValueError("a member holds a lone surrogate and cannot be written as UTF-8") from None


def no_salt(counter: str) -> str:
    """Return the error message for a counter that has no salt at all, with the remedy."""
    return (
        f"{counter} does not count different members, or no worker has made its salt yet: "
        f"run countersink counter set {counter} --unique"
    )


def no_salt_of_time(counter: str) -> str:
    """Return the error message for an event time at which none of the counter's salts is used."""
    return (
        f"{counter} renews its salt and has no salt for this time: the salt was deleted, or the"
        " time is more than a day ahead"
    )


def salt_of(salts: Iterable[Salt], minute: int) -> Salt | None:
    """Return the one of ``salts`` that is used at a Unix minute, or None if the salt of this minute
    is not made yet or was deleted.
    """
    for salt in salts:
        if salt.begins <= minute and (salt.ends is None or minute < salt.ends):
            return salt
    return None


def visitor_of(address: str, agent: str) -> str:
    """Return the text that stands for a visitor if the application names no member: the client's
    address, a space, and the user agent. Each of the two is cut if it has more than 255 bytes; see
    :func:`countersink.runtime.limits.cut_key`. A lone surrogate becomes ``?``.
    """
    texts = (text.encode("utf-8", "replace").decode() for text in (address, agent))
    return " ".join([cut_key(text) for text in texts])


def member_hash(member: bytes, salt: bytes) -> bytes:
    """Return the hash of a member: 64 bits of BLAKE2b, with ``salt`` as its key."""
    return blake2b(member, digest_size=HASH_BYTES, key=salt).digest()


def hashes_text(hashes: bytes) -> str:
    """Return ``hashes`` as they stand in the JSON of a row: base64 without line breaks."""
    return b64encode(hashes).decode()


def encode_salts(salts: Iterable[Salt]) -> bytes:
    """Return a counter's salts as JSON. It is the value of the counter's field in the Redis hash
    :func:`countersink.stream.names.salts_key`.
    """
    rows = [[one.number, one.begins, one.ends, one.salt.hex()] for one in salts]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_salts(raw: bytes | None) -> list[Salt]:
    """Return the salts in the JSON of :func:`encode_salts`, or an empty list if ``raw`` is None or
    damaged.
    """
    try:
        rows = [] if raw is None else json.loads(raw)
        return [
            Salt(int(number), int(begins), ends and int(ends), bytes.fromhex(digits))
            for number, begins, ends, digits in rows
        ]
    except (TypeError, ValueError, OverflowError, RecursionError):
        return []
