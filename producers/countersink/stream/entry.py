"""The wire format of entries: their fields, ids and encoding, their limits of rows
(``ROWS_PER_ENTRY``) and bytes, and pages of entries from a stream. Also Redis's clock, computed
from this machine's clock (``RedisClock``); ``RELEARN_SECONDS`` is when it is measured again.

========  =====================================================================================
field     meaning
========  =====================================================================================
``v``     format version, ``1`` (missing: 1)
``id``    32 hex digits, unique per entry (missing: :func:`derived_id`)
``at``    Unix ms of the first attempt to send, on Redis's clock (missing: the stream id's time)
``rows``  JSON ``[[counter, key, minute, amount], …]``; minute in Unix minutes; for an increment
          with dimensions the key is an object with their names and values,
          ``{"country": "DE", "page": "/home"}``. A row with members has two more items: the
          number of their salt, and in base64 up to 4,096 hashes of eight bytes, in any order
          (``runtime/members.py``); a repeated hash counts once. The amount of such a row is the
          number of sightings, or 0
========  =====================================================================================

A worker stores an entry of a newer version as one dead letter; ``countersink dead retry`` counts
it after the worker was upgraded.

An entry's bytes never change after it was first sent. If it is sent again, it has the same bytes
and the same ``id``, so that any number of copies is counted once.

A read returns a bounded number of bytes, whatever is in the stream. Redis itself bounds a reply
only by the number of entries, and an entry may have 512 MB. So scripts add entries to their reply
until it has enough bytes, and cut an entry that is larger than any entry of a producer.

All ``at`` fields, and the times of events without a given time, are on Redis's clock. So a producer
whose own clock is a year off does not count into the wrong year.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1, sha256
from typing import Any, Final

import redis

from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import hashes_text
from countersink.stream.connection import cluster_of, mapped, script, time_us


def offset_ms(client: redis.Redis, key: str | None = None) -> int:
    """Return Redis's clock minus this machine's clock in ms, precise to half of this call's round
    trip.

    Args:
        client: a client from :func:`countersink.stream.connection.connect`.
        key: on a cluster, the clock is that of the master that serves this key; None for any
            master.

    Raises:
        StreamError: Redis did not answer, or refuses.
    """
    cluster = cluster_of(client)
    with mapped():
        if cluster is None or key is None:
            return _offset_ms(client)
        with cluster.with_short_timeout.asked_for(key) as node:
            return _offset_ms(node)


def _offset_ms(server: redis.Redis) -> int:
    before = time.time()
    then = time_us(server)
    middle = (before + time.time()) / 2
    return round(then / 1000 - middle * 1000)


RELEARN_SECONDS: Final = 300.0
JUMP_SECONDS: Final = 0.5
"""Seconds by which the wall clock may move against the steady clock before it counts as set
anew.
"""

if sys.platform == "linux":
    _STEADY: Final = time.CLOCK_BOOTTIME  # unlike CLOCK_MONOTONIC, runs while the machine sleeps
else:
    _STEADY: Final = time.CLOCK_MONOTONIC


def _steady() -> float:
    return time.clock_gettime(_STEADY)


class RedisClock:
    """Redis's clock, computed from this machine's clock and the difference that was measured last.
    Before the first :meth:`learn` it is this machine's clock.
    """

    def __init__(self) -> None:
        self._offset_ms = 0
        self._learnt: tuple[float, float] | None = None  # wall clock, steady clock

    def learn(self, client: redis.Redis, key: str | None = None) -> None:
        """Measure the difference between Redis's clock and this machine's clock. On a cluster,
        Redis's clock is that of the master that serves ``key``, or of any master for None. After an
        error the old difference stays.

        Raises:
            StreamError: Redis did not answer, or refuses.
        """
        self._offset_ms = offset_ms(client, key)
        self._learnt = (time.time(), _steady())

    def stale(self) -> bool:
        """Return whether the difference was never measured, was measured more than
        :data:`RELEARN_SECONDS` ago, or this machine's clock was set since, by more than
        :data:`JUMP_SECONDS`.
        """
        if self._learnt is None:
            return True
        wall, steady = time.time() - self._learnt[0], _steady() - self._learnt[1]
        return steady > RELEARN_SECONDS or abs(wall - steady) > JUMP_SECONDS

    def now_ms(self) -> int:
        """Return the time in Unix ms on Redis's clock. The result does not jump when this machine's
        wall clock is set after :meth:`learn`.
        """
        learnt = self._learnt
        wall = time.time() if learnt is None else learnt[0] + _steady() - learnt[1]
        return int(wall * 1000) + self._offset_ms

    def minute(self) -> int:
        """Return the time in whole Unix minutes on Redis's clock."""
        return max(0, self.now_ms() // 60_000)

    def seconds_to_next_minute(self) -> float:
        """Return the seconds until :meth:`minute` changes."""
        return (60_000 - self.now_ms() % 60_000) / 1000


VERSION: Final = 1
"""The format version that is written, and the newest version that can be read."""
ROWS_PER_ENTRY: Final = 1000
MAX_ROWS_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of a ``rows`` field."""
MAX_ROW_BYTES: Final = 13_000
"""Most bytes of one row without members that :func:`encode_rows` writes: eight values of 255
characters, each character written in six bytes.
"""
PAGE: Final = 100
"""Most entries of one page, the entries that a script returns at once."""
PAGE_BYTES: Final = 1024 * 1024
"""Bytes after which a page ends, so that Redis works on it for a few ms only. The last entry of a
page may go beyond this, by up to about 4 MiB.
"""

MAX_MEMBERS_BYTES: Final = 44_000
"""Most bytes that members add to a row: those of 4,096 hashes."""

PlainRow = tuple[str, RowKey, int, int]
"""A row: counter, key or dimensions, event time in whole Unix minutes, signed 64-bit amount."""
MembersRow = tuple[str, RowKey, int, int, int, bytes]
"""The items of a :data:`PlainRow`, then the number and the hashes of a
:class:`countersink.runtime.members.Seen`.
"""
Row = PlainRow | MembersRow

_encode = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), default=hashes_text
).encode


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encoded entry in the wire format; its bytes never change.

    Attributes:
        id: the entry id, 32 hex digits.
        at: the time of the first attempt to send, in Unix ms on Redis's clock.
        rows: the JSON that :func:`encode_rows` wrote.
        increments: number of increments in the rows. It is not sent; the producer's statistics use
            it.
    """

    id: str
    at: int
    rows: bytes
    increments: int = 0

    def fields(self) -> dict[Any, Any]:
        """Return the fields for XADD; every call returns the same bytes."""
        return {"v": VERSION, "id": self.id, "at": self.at, "rows": self.rows}


def new_entry_id(now_ms: int) -> str:
    """Return a new entry id: ``now_ms``, the time in Unix ms, in 48 bits, then 80 random bits; like
    a UUID of version 7 (RFC 9562), but without the bits for the version.

    The time comes first so that guard rows are inserted in the order of their primary key. The
    operating system draws the random bits of each id: a generator in the process would repeat its
    numbers in forks and in cloned machines.
    """
    return f"{now_ms & 0xFFFFFFFFFFFF:012x}{os.urandom(10).hex()}"


def id_for(scope: str, *names: str) -> str:
    """Return the entry id for names that the application gives. Equal names always give equal ids.

    Args:
        scope: the namespace of the names; the producer's ``id_scope``.
        names: the counter and the id of an increment, or the id of a batch alone. The two forms
            never give the same entry id.
    """
    parts = [part.encode("utf-8", "surrogatepass") for part in (scope, *names)]
    return sha256(b"".join(b"%d:%b," % (len(part), part) for part in parts)).hexdigest()[:32]


def derived_id(stream: str, stream_id: str, fields: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the entry id of an entry without a field ``id``: a hash of the stream's key, the
    stream id and the bytes of all fields.

    ``scripts/entry.lua`` computes the same id. Both use SHA-1, the only hash that scripts in Redis
    have.
    """
    parts = [stream.encode(), stream_id.encode()]
    for name, value in fields:
        parts += name, value
    return sha1(
        b"".join(b"%d:%b" % (len(part), part) for part in parts), usedforsecurity=False
    ).hexdigest()[:32]


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Return the ``rows`` field for rows that passed the checks of
    :mod:`countersink.runtime.limits` and :mod:`countersink.runtime.dimensions`.
    """
    text = _encode(rows)
    if '",[["' in text:  # dimensions, or a key with these characters; cheaper than checking keys
        text = _encode(
            [
                (counter, key if isinstance(key, str) else dict(key), *rest)
                for counter, key, *rest in rows
            ]
        )
    return text.encode()


def encoded(rows: Sequence[Row]) -> Iterator[tuple[Sequence[Row], bytes]]:
    """Split rows into parts that fit into one entry each; yield each part with its ``rows`` field.
    The same rows are always split in the same way.
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
    """An entry as it was read from a stream: the bytes of its fields in order, repeated fields
    included.

    Attributes:
        stream: the stream's key.
        stream_id: the entry's stream id.
        fields: (name, value) pairs. If the entry is larger than any entry of a producer, these may
            be only the fields that the decoder uses, each cut to slightly more than its longest
            valid value.
        derived: the :func:`derived_id` of the whole entry if it was cut, else None.
    """

    stream: str
    stream_id: str
    fields: tuple[tuple[bytes, bytes], ...]
    derived: str | None = None

    def first(self, field: bytes) -> bytes | None:
        """Return the first value of a field, or None if the entry does not have the field."""
        return next((value for name, value in self.fields if name == field), None)


def deliveries(stream: str, entries: Iterable[Any]) -> Iterator[Delivery]:
    """Yield the entries of ``stream`` in a script's reply, as :class:`Delivery` objects. Each item
    of the reply has the form of ``fit()`` in ``scripts/entry.lua``: stream id, fields, and the
    derived id if the entry was cut.
    """
    for stream_id, flat, derived in entries:
        fields = tuple(zip(flat[::2], flat[1::2], strict=True))
        uncut_id = None if derived is None else derived.decode()
        yield Delivery(stream, stream_id.decode(), fields, uncut_id)


def size_of(found: Iterable[Delivery]) -> int:
    """Return the bytes of all values of the entries' fields, for the limits of a read."""
    return sum(len(value) for delivery in found for _, value in delivery.fields)


def pages(
    client: redis.Redis, stream: str, *, start: str = "-", end: str = "+", size: int = PAGE
) -> Iterator[list[Delivery]]:
    """Yield the entries of ``stream`` whose ids are from ``start`` to ``end`` (included), in pages
    of at most ``size`` entries and about :data:`PAGE_BYTES`. No page is empty. If ``start`` begins
    with ``(``, the entry with this id is left out, as in XRANGE.

    Raises:
        StreamError: Redis did not answer, or refuses.
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
