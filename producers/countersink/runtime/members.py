"""Members of counters that count different members: their check and hash, the salts for the hash
(``Salt``) with their JSON in Redis, and the hashes in a row (``Seen``).

A member is never sent, stored or logged; only its hash is, made with a salt of its counter.
"""

import json
from base64 import b64encode
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from countersink.runtime.limits import cut_key

HASH_BYTES: Final = 8
"""Bytes of a member's hash."""
MAX_HASHES: Final = 4_096
"""Most hashes in one row."""
SALT_BYTES: Final = 16
SALT_SECONDS: Final = 10.0
"""Seconds to wait for a salt after Redis's first answer without it: workers publish the salt of a
counter that has just got ``--unique``, and missing salts after their own restart, within
seconds."""
MAX_SALT_NUMBER: Final = 2**32 - 1


class Seen(NamedTuple):
    """The hashed members of a row.

    Attributes:
        number: number of the salt that they were hashed with.
        hashes: 1 to :data:`MAX_HASHES` hashes of :data:`HASH_BYTES` each, in any order; a hash may
            occur twice.
    """

    number: int
    hashes: bytes


class Salt(NamedTuple):
    """A salt of a counter, and the time range of the events that use it.

    Attributes:
        number: unique among the salts of all counters.
        begins: the first Unix minute.
        ends: the Unix minute after the last; None: the range has no end.
        salt: :data:`SALT_BYTES` bytes.
    """

    number: int
    begins: int
    ends: int | None
    salt: bytes


def check_member(member: object) -> bytes:
    """The bytes of a member of any length, 0 included; a ``str`` becomes UTF-8.

    Raises:
        TypeError: neither ``str`` nor ``bytes``.
        ValueError: a lone surrogate, which has no UTF-8 form. The error does not show the member.
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
    """The error message for a counter without any salt, with the remedy."""
    return (
        f"{counter} does not count different members, or no worker has made its salt yet: "
        f"run countersink counter set {counter} --unique"
    )


def no_salt_of_time(counter: str) -> str:
    """The error message for a time that none of a counter's salts covers."""
    return (
        f"{counter} renews its salt and has no salt for this time: the salt was deleted, or the"
        " time is more than a day ahead"
    )


def salt_of(salts: Iterable[Salt], minute: int) -> Salt | None:
    """The salt of a Unix minute; None: it is not made yet, or was deleted."""
    for salt in salts:
        if salt.begins <= minute and (salt.ends is None or minute < salt.ends):
            return salt
    return None


def visitor_of(address: str, agent: str) -> str:
    """The default member for a visitor: the client's address and user agent, each cut as keys are,
    with a space between.
    """
    texts = (text.encode("utf-8", "replace").decode() for text in (address, agent))
    return " ".join([cut_key(text) for text in texts])


def member_hash(member: bytes, salt: bytes) -> bytes:
    """The hash of a member: keyed BLAKE2b of 64 bits."""
    return blake2b(member, digest_size=HASH_BYTES, key=salt).digest()


def hashes_text(hashes: bytes) -> str:
    """Hashes in the form of a row's JSON: base64 without line breaks."""
    return b64encode(hashes).decode()


def encode_salts(salts: Iterable[Salt]) -> bytes:
    """The value of a counter's field in the hash of :func:`countersink.stream.names.salts_key`."""
    rows = [[one.number, one.begins, one.ends, one.salt.hex()] for one in salts]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_salts(raw: bytes | None) -> list[Salt]:
    """The salts that :func:`encode_salts` encoded; an empty list if ``raw`` is None or damaged."""
    try:
        rows = [] if raw is None else json.loads(raw)
        return [
            Salt(int(number), int(begins), ends and int(ends), bytes.fromhex(digits))
            for number, begins, ends, digits in rows
        ]
    except (TypeError, ValueError, RecursionError):
        return []
