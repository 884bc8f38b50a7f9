"""The wire format of entries: fields, ids, encoding, how many rows an entry has at most
(``ROWS_PER_ENTRY``), and how many bytes of one are read.

========  =====================================================================================
field     meaning
========  =====================================================================================
``v``     format version, ``1`` (missing: 1)
``id``    32 hex digits, unique per entry (missing: :func:`derived_id`)
``at``    Unix ms of the first attempt to send, on Redis's clock (missing: the stream id's time)
``rows``  JSON ``[[counter, key, minute, amount], …]``; minute in Unix minutes; in the place of
          the key an object of names to values, ``{"country": "DE", "page": "/home"}``, for an
          increment with dimensions. A row that brings members has two more items: the number of
          their salt, and their hashes of eight bytes, in any order, at most 4,096, in base64
          (``runtime/members.py``); one that comes twice counts once. Its amount is the number
          of sightings, or 0
========  =====================================================================================

A worker that does not know a version puts an entry of it among the dead letters as a whole, and
``countersink dead retry`` counts it after an upgrade.

An entry's bytes never change once it was first sent: a resend is byte-identical, so that whatever
number of copies arrive, they carry one ``id`` and are counted once.

Entries are read within a bound of bytes whatever lies in a stream. Redis bounds a reply by the
number of entries alone, and an entry may have 512 MB. So scripts hand them out one after another
until there are bytes enough, and cut what is larger than any of ours.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any, Final

import redis

from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import hashes_text
from countersink.stream.connection import mapped

VERSION: Final = 1
"""The version that is written, and the newest that is read."""
ROWS_PER_ENTRY: Final = 1000
MAX_ROWS_BYTES: Final = 4 * 1024 * 1024
"""A larger ``rows`` field is refused."""
MAX_ROW_BYTES: Final = 13_000
"""A row of :func:`encode_rows` at most: eight values of 255 bytes, each of which takes six."""
PAGE: Final = 100
"""Entries handed out at once."""
PAGE_BYTES: Final = 1024 * 1024
"""Bytes after which no more are handed out at once: Redis works a few ms on them. The last entry
may go beyond, by 4 MiB."""

MAX_MEMBERS_BYTES: Final = 44_000
"""What members add to a row at most: 4,096 hashes."""

PlainRow = tuple[str, RowKey, int, int]
"""(counter, key or dimensions, minute, amount): event time in whole Unix minutes, a signed 64-bit
amount."""
MembersRow = tuple[str, RowKey, int, int, int, bytes]
"""The same, the number of a salt, and hashes as :class:`countersink.runtime.members.Seen` has
them."""
Row = PlainRow | MembersRow

_encode = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), default=hashes_text
).encode


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encoded entry as it goes over the wire; its bytes never change.

    Attributes:
        id: 32 hex digits.
        at: Unix ms of the first attempt to send, on Redis's clock.
        rows: the JSON of :func:`encode_rows`.
        increments: how many increments were folded into the rows (not sent; for the producer's
            statistics).
    """

    id: str
    at: int
    rows: bytes
    increments: int = 0

    def fields(self) -> dict[Any, Any]:
        """The fields for XADD: the same bytes at every call."""
        return {"v": VERSION, "id": self.id, "at": self.at, "rows": self.rows}


def new_entry_id(now_ms: int) -> str:
    """A new entry id: 48 bits of Unix ms, then 80 random bits (the layout of UUID version 7, RFC
    9562).

    The time comes first so that guard rows are inserted in order. The rest is drawn from the
    operating system for every id: state kept in the process would repeat in forks and in cloned
    machines.
    """
    return f"{now_ms & 0xFFFFFFFFFFFF:012x}{os.urandom(10).hex()}"


def id_for(scope: str, *names: str) -> str:
    """The entry id of what the app has named itself: the same for the same texts, for ever.

    Args:
        scope: the namespace of the names.
        names: counter and id of an increment; just the id of a batch. No increment's entry has the
            id of a batch's.
    """
    parts = [part.encode("utf-8", "surrogatepass") for part in (scope, *names)]
    return sha256(b"".join(b"%d:%b," % (len(part), part) for part in parts)).hexdigest()[:32]


def derived_id(stream: str, stream_id: str, fields: Sequence[tuple[bytes, bytes]]) -> str:
    """The id of an entry that came without one: a hash of the stream's key, the stream id and all
    field bytes.

    ``scripts/acknowledge.lua`` computes the same, so SHA-1, the one hash that Redis offers to
    scripts.
    """
    parts = [stream.encode(), stream_id.encode()]
    for name, value in fields:
        parts += name, value
    return sha1(
        b"".join(b"%d:%b" % (len(part), part) for part in parts), usedforsecurity=False
    ).hexdigest()[:32]


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The ``rows`` field for rows that passed the checks of :mod:`countersink.runtime.limits` and
    :mod:`countersink.runtime.dimensions`.
    """
    text = _encode(rows)
    if '",[["' in text:  # Dimensions, or a key that looks so; cheaper than a look at each key
        text = _encode(
            [
                (counter, key if isinstance(key, str) else dict(key), *rest)
                for counter, key, *rest in rows
            ]
        )
    return text.encode()


def encoded(rows: Sequence[Row]) -> Iterator[tuple[Sequence[Row], bytes]]:
    """Rows in parts that fit into an entry each, with their ``rows`` fields: the same parts for the
    same rows.
    """
    for at in range(0, len(rows), ROWS_PER_ENTRY):
        waiting = [rows[at : at + ROWS_PER_ENTRY]]
        while waiting:
            part = waiting.pop()
            raw = encode_rows(part)
            if len(raw) <= MAX_ROWS_BYTES:
                yield part, raw
            else:
                half = len(part) // 2
                waiting += [part[half:], part[:half]]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry as it lies in a stream: field bytes in their order, repeated ones included.

    Attributes:
        stream: its key.
        stream_id: its place there.
        fields: (name, value); of an entry larger than any of ours only those that are read, cut off
            where they are too long.
        derived: the id by the hash of the whole entry, where it was cut.
    """

    stream: str
    stream_id: str
    fields: tuple[tuple[bytes, bytes], ...]
    derived: str | None = None

    def first(self, field: bytes) -> bytes | None:
        """The value of a field, the first one of a repeated field; None: it has no such field."""
        return next((value for name, value in self.fields if name == field), None)


@cache
def script(name: str) -> str:
    """The text of ``scripts/NAME.lua``, with the functions of ``entry.lua`` in front."""
    # Not by importlib.resources: applications import this module, and would import that as well.
    folder = Path(__file__).parent / "scripts"
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in ("entry", name))


def deliveries(stream: str, entries: Iterable[Any]) -> Iterator[Delivery]:
    """What the scripts handed out."""
    for stream_id, flat, derived in entries:
        fields = tuple(zip(flat[::2], flat[1::2], strict=True))
        whole = None if derived is None else derived.decode()
        yield Delivery(stream, stream_id.decode(), fields, whole)


def size_of(found: Iterable[Delivery]) -> int:
    """Bytes of their values."""
    return sum(len(value) for delivery in found for _, value in delivery.fields)


def pages(
    client: redis.Redis, stream: str, *, start: str = "-", end: str = "+", size: int = PAGE
) -> Iterator[list[Delivery]]:
    """The entries of ``stream`` from the stream id ``start`` to ``end``, in pages of at most
    ``size``, and of :data:`PAGE_BYTES` or so.

    Raises:
        StreamError: Redis did not answer.
    """
    page_script = client.register_script(script("page"))
    while True:
        with mapped():
            found, done = page_script(keys=[stream], args=[start, end, size, PAGE_BYTES])
        page = list(deliveries(stream, found))
        if page:
            yield page
        if done:
            return
        start = f"({page[-1].stream_id}"


def ends(client: redis.Redis, stream: str) -> tuple[str, str] | None:
    """The stream ids of the first and last entry; None for an empty stream.

    Raises:
        StreamError: Redis did not answer.
    """
    with mapped():
        reply = client.register_script(script("ends"))(keys=[stream])
    return (reply[0].decode(), reply[1].decode()) if reply else None
