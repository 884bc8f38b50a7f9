"""Rows encoded into entries that neither Redis nor the spool has stored yet: when an entry gets its
id and time, and how many are sent at a time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from countersink.producers.batch import Names
from countersink.producers.buffer.events import EventBuffer
from countersink.producers.buffer.rows import NEVER
from countersink.producers.threads import Bell, breathe
from countersink.stream.clock import RedisClock
from countersink.stream.entry import (
    MAX_MEMBERS_BYTES,
    MAX_ROW_BYTES,
    MAX_ROWS_BYTES,
    ROWS_PER_ENTRY,
    Sealed,
    encode_rows,
    id_for,
    new_entry_id,
)

PARCELS_AT_A_TIME: Final = 16
"""Parcels sent in one round trip, or written with one fsync."""
PIECE_ROWS: Final = 64
"""Rows encoded at a time at least: some 50 µs during which no other thread runs."""
MAX_PIECE_ROWS: Final = 160
"""At most, where rows may have dimensions or members;"""
FULL_BYTES: Final = MAX_ROWS_BYTES - (MAX_PIECE_ROWS + 1) * MAX_ROW_BYTES - MAX_MEMBERS_BYTES
"""and an entry of as many bytes gets no further rows: the next piece might not fit."""


@dataclass(slots=True, eq=False)
class Parcel:
    """Rows on their way to Redis. Identity, not content, tells two parcels apart.

    Attributes:
        id: 32 hex digits, given at sealing and kept for ever.
        rows: the JSON, frozen.
        row_count: rows in it.
        increments: increments folded into them.
        generation: the generation of rows that they were taken from (see ``RowBuffer``).
        at: Unix ms on Redis's clock of the first attempt to send; ``None``: never attempted.
        in_doubt: it was sent and the answer was lost: Redis may have it.
        settled: it is stored, in Redis or in the spool; guarded by the producer's lock.
    """

    id: str
    rows: bytes
    row_count: int
    increments: int
    generation: int = 0
    at: int | None = None
    in_doubt: bool = False
    settled: bool = False

    def sealed(self) -> Sealed:
        """The entry to send: the same bytes at every attempt.

        Raises:
            RuntimeError: ``at`` was not stamped yet.
        """
        if self.at is None:
            raise RuntimeError("a parcel is stamped before it is sent")
        return Sealed(self.id, self.at, self.rows, self.increments)


class Outbox:
    """Seals rows into parcels and knows which of them are stored. For the send thread and the
    spool thread at once.

    Attributes:
        stored, spooled, resent: increments, see :class:`~countersink.producers.engine.Stats`.
        lost: increments given up.
        settled_at: the monotonic time at which rows were settled last.
        bell: rung whenever rows were settled.
    """

    def __init__(self, events: EventBuffer, clock: RedisClock, id_scope: str) -> None:
        self.stored = 0
        self.spooled = 0
        self.resent = 0
        self.lost = 0
        self.bell = Bell()
        self._events = events
        self._lock = events.lock
        self._buffer = events.buffer
        self._clock = clock
        self._id_scope = id_scope
        self._parcels: list[Parcel] = []
        self._given_up = False
        self.settled_at = float("-inf")
        self._oldest_row = NEVER
        self._oldest = NEVER  # the oldest generation not settled, as of the last settling or mark

    def __len__(self) -> int:
        return len(self._parcels)

    def seal(self, upto: int = NEVER) -> Parcel | None:
        """Take at most 1,000 rows of generations up to ``upto`` out of the buffer, or fewer that
        are large; ``None``: there are none.

        The parcel belongs to the caller, who has to post, settle or give it up.
        """
        encoded: list[bytes] = []
        count = increments = generation = size = 0
        names: Names = ()
        while count < ROWS_PER_ENTRY and size <= FULL_BYTES:
            # Larger pieces when much waits: between two of them this thread may wait a whole switch
            # interval.
            limit = min(ROWS_PER_ENTRY, max(PIECE_ROWS, self._buffer.waiting // 32))
            if self._buffer.large_rows:
                limit = min(limit, MAX_PIECE_ROWS)
            with self._lock:
                piece = self._buffer.take(
                    min(limit, ROWS_PER_ENTRY - count),
                    generation or upto,
                    lowest=generation,
                    named=not encoded,
                )
            if piece is None:
                break
            rows = piece.rows
            for at in range(0, len(rows), limit):  # a batch of the app's comes all at once
                if encoded:
                    # The JSON encoder holds the interpreter lock: the app's threads go on.
                    breathe()
                part = encode_rows(rows[at : at + limit])[1:-1]  # without the array's brackets
                encoded.append(part)
                size += len(part)
            count += len(rows)
            increments += piece.increments
            generation = piece.generation
            names = piece.names
            if names:
                break
        if not encoded:
            return None
        id = id_for(self._id_scope, *names) if names else new_entry_id(self._clock.now_ms())
        return Parcel(id, b"[" + b",".join(encoded) + b"]", count, increments, generation)

    def post(self, parcels: Sequence[Parcel]) -> None:
        """Leave parcels to be sent."""
        with self._lock:
            self._parcels += parcels

    def stamp(self, limit: int) -> list[Parcel]:
        """The first ``limit`` parcels, to be sent now: their ``at`` is frozen if it was not."""
        with self._lock:
            parcels = self._parcels[:limit]
            now = self._clock.now_ms()
            for parcel in parcels:
                if parcel.at is None:
                    parcel.at = now
                if parcel.in_doubt:
                    self.resent += parcel.increments
            return parcels

    def for_spool(self, limit: int) -> list[Parcel]:
        """At most ``limit`` parcels for the spool.

        One that was never sent is taken out, and so never will be from here: the spool stamps it.
        One that was sent stays as well: the answer may be on its way.
        """
        with self._lock:
            parcels = self._parcels[:limit]
            self._parcels[:limit] = [parcel for parcel in parcels if parcel.at is not None]
            return [parcel for parcel in parcels if not parcel.settled]

    def settle(self, parcels: Sequence[Parcel], *, spooled: bool = False) -> None:
        """These parcels are stored; a second time counts for nothing."""
        with self._lock:
            for parcel in parcels:
                if parcel.settled or self._given_up:
                    continue
                parcel.settled = True
                self._buffer.settle(parcel.generation, parcel.row_count)
                if spooled:
                    self.spooled += parcel.increments
                else:
                    self.stored += parcel.increments
            self._parcels = [parcel for parcel in self._parcels if not parcel.settled]
            self._look()
        if parcels:
            self.settled_at = time.monotonic()
        self.bell.ring()

    def mark(self) -> int:
        """The generation of all that is folded by now, for :meth:`settled`."""
        with self._lock:
            self._look()
            return self._buffer.generation

    def _look(self) -> None:
        self._oldest = self._buffer.oldest_unsettled()
        self._oldest_row = self._buffer.oldest_unsettled(members=False)

    def settled(self, generation: int, *, members: bool = True) -> bool:
        """Whether everything up to ``generation``, which :meth:`mark` gave, is stored; with
        ``members=False``, all but the members that wait for a salt.

        Takes no lock: what is settled stays so, whenever it was looked at.
        """
        return (self._oldest if members else self._oldest_row) > generation

    def give_up(self) -> int:
        """Count everything that is not stored as dropped, and from now on whatever comes; how many
        increments have been lost so in all.
        """
        with self._lock:
            if not self._given_up:
                self._buffer.close()  # an event that a caller leaves from now on is dropped
                self._given_up = True
                self._parcels.clear()
            lost = self._events.accepted - self.stored - self.spooled
            self._events.accepted -= lost
            self._events.dropped += lost
            self.lost += lost
            self._oldest = self._oldest_row = NEVER
            return self.lost
