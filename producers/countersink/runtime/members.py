"""Members whose different ones are counted: their check and hash, the salts by which they are
hashed (``Salt``) and their JSON in Redis, and ``Seen``, the hashes that a row brings.

A member is never sent, stored or logged: only its hash is, by a salt of its counter.
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
"""Hashes in one row at most."""
SALT_BYTES: Final = 16
SALT_SECONDS: Final = 10.0
"""From Redis's first answer that a counter has no salt, or none of a time, how long one may be due:
workers publish that of a counter which has just got ``--unique``, and those that are lacking when
they are back, within seconds."""
MAX_SALT_NUMBER: Final = 2**32 - 1


class Seen(NamedTuple):
    """The members that a row brings.

    Attributes:
        number: of the salt by which they were hashed.
        hashes: :data:`HASH_BYTES` each, in any order, some perhaps twice; at least one, at most
            :data:`MAX_HASHES`.
    """

    number: int
    hashes: bytes


class Salt(NamedTuple):
    """A salt of a counter, and when its events happened.

    Attributes:
        number: tells it from all others, of other counters too.
        begins: the first Unix minute; ends: the one after the last, None: it has no end.
        salt: :data:`SALT_BYTES` bytes.
    """

    number: int
    begins: int
    ends: int | None
    salt: bytes


def check_member(member: object) -> bytes:
    """The bytes of a member: of a ``str`` its UTF-8. The empty one is one, and any length will do.

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
    """What to do where a counter has no salt."""
    return (
        f"{counter} does not count different members, or no worker has made its salt yet: "
        f"countersink counter set {counter} --unique"
    )


def out_of_reach(counter: str) -> str:
    """Why a member has no salt where its counter has others."""
    return (
        f"{counter} renews its salt, and has none of this time: it was forgotten, or the time is"
        " more than a day ahead"
    )


def salt_of(salts: Iterable[Salt], minute: int) -> Salt | None:
    """The salt of a minute; None: it is not made yet, or forgotten."""
    for salt in salts:
        if salt.begins <= minute and (salt.ends is None or minute < salt.ends):
            return salt
    return None


def visitor_of(address: str, agent: str) -> str:
    """The member that a visitor is where nothing better is known: the client's address and its user
    agent, each as keys are cut.
    """
    texts = (text.encode("utf-8", "replace").decode() for text in (address, agent))
    return " ".join([cut_key(text) for text in texts])


def member_hash(member: bytes, salt: bytes) -> bytes:
    """The hash of a member: keyed BLAKE2b of 64 bits."""
    return blake2b(member, digest_size=HASH_BYTES, key=salt).digest()


def hashes_text(hashes: bytes) -> str:
    """Hashes as a row brings them: base64 without line breaks."""
    return b64encode(hashes).decode()


def encode_salts(salts: Iterable[Salt]) -> bytes:
    """A counter's field in the hash of :func:`countersink.stream.names.salts_key`."""
    rows = [[one.number, one.begins, one.ends, one.salt.hex()] for one in salts]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_salts(raw: bytes | None) -> list[Salt]:
    """The salts that :func:`encode_salts` was given; none for anything else."""
    try:
        rows = [] if raw is None else json.loads(raw)
        return [
            Salt(int(number), int(begins), ends and int(ends), bytes.fromhex(digits))
            for number, begins, ends, digits in rows
        ]
    except (TypeError, ValueError, RecursionError):
        return []
