"""Entries that are encoded and not stored yet (``Outbox``): when an entry gets its id and its time,
how many entries are sent at a time; and ``Stats``, the figures of a producer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from countersink.producers.batch import Names
from countersink.producers.buffer.events import EventBuffer
from countersink.producers.buffer.rows import NEVER
from countersink.producers.threads import Bell, let_app_run
from countersink.stream.entry import (
    MAX_MEMBERS_BYTES,
    MAX_ROW_BYTES,
    MAX_ROWS_BYTES,
    ROWS_PER_ENTRY,
    RedisClock,
    Sealed,
    encode_rows,
    id_for,
    new_entry_id,
)

PARCELS_AT_A_TIME: Final = 16
"""Parcels sent in one round trip, or written with one fsync."""
PIECE_ROWS: Final = 64
"""Minimum of rows encoded at a time; they take some 50 µs, during which no other thread runs."""
MAX_PIECE_ROWS: Final = 160
"""Maximum of rows encoded at a time where rows may have dimensions or members."""
FULL_BYTES: Final = MAX_ROWS_BYTES - (MAX_PIECE_ROWS + 1) * MAX_ROW_BYTES - MAX_MEMBERS_BYTES
"""Bytes above which an entry gets no further rows, since the next piece might not fit."""


@dataclass(slots=True, eq=False)
class Parcel:
    """An encoded entry with the number of its increments. Parcels are compared by identity.

    Attributes:
        id: the entry's id, 32 hex digits, given at sealing; never changes.
        rows: the rows as JSON; never changes.
        row_count: number of rows.
        increments: number of increments folded into the rows.
        generation: the rows' generation (see ``RowBuffer``).
        at: Unix ms on Redis's clock of the first attempt to send; ``None``: no attempt yet.
        in_doubt: the answer to an attempt was lost: Redis may have the entry.
        settled: whether it is stored, in Redis or in the spool; guarded by the producer's lock.
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
        """The entry to send: equal bytes at every attempt.

        Raises:
            RuntimeError: ``at`` is not set yet.
        """
        if self.at is None:
            raise RuntimeError("the parcel has no time yet: stamp it before sending")
        return Sealed(self.id, self.at, self.rows, self.increments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """Figures of one producer in one process, since its creation there (a forked child starts at
    0). An increment is one call of ``increment()`` or one item of ``increment_many()`` and
    ``increment_batch()``, whatever its amount. ``accepted - stored - spooled`` is the number of
    increments in this process's memory only.

    Attributes:
        accepted: increments accepted and not dropped.
        stored: increments sent from memory and acknowledged by Redis.
        resent: increments sent again because the first answer was lost (not counted twice: the
            entry keeps its id).
        spooled: increments written and fsynced to the disk spool.
        replayed: increments sent to Redis from segments, also from segments of dead processes.
        dropped: increments without room in memory and spool, or not stored at close; batches for
            which ``increment_batch()`` returned False are not among them.
        pending_rows: distinct rows in memory that are not stored yet.
        last_error: the last failure to reach Redis or to write the spool, without passwords;
            ``None``: none so far.
        connected: whether Redis answered the last command and takes entries.
    """

    accepted: int = 0
    stored: int = 0
    resent: int = 0
    spooled: int = 0
    replayed: int = 0
    dropped: int = 0
    pending_rows: int = 0
    last_error: str | None = None
    connected: bool = False


class Outbox:
    """Seals rows into parcels and keeps them until they are stored. Used by the send thread and the
    spool thread at the same time.

    Attributes:
        stored, spooled, resent: numbers of increments: see :class:`Stats`.
        lost: number of increments given up.
        settled_at: the monotonic time at which rows were settled last.
        bell: rung after rows were settled.
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
        # The oldest generations not settled, at the last settling or mark: of rows, of all.
        self._oldest_row = NEVER
        self._oldest = NEVER

    def __len__(self) -> int:
        return len(self._parcels)

    def seal(self, upto: int = NEVER) -> Parcel | None:
        """Take at most 1,000 rows (fewer large ones) of generations up to ``upto`` out of the
        buffer and encode them; ``None``: there are no rows.

        The caller has to post, settle or give up the parcel.
        """
        encoded: list[bytes] = []
        count = increments = generation = size = 0
        names: Names = ()
        while count < ROWS_PER_ENTRY and size <= FULL_BYTES:
            # Larger pieces when many rows wait: between pieces this thread may wait a full switch
            # interval of the interpreter.
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
            for start in range(0, len(rows), limit):  # a batch with an id exceeds the limit
                if encoded:
                    let_app_run()  # the JSON encoder holds the interpreter lock
                part = encode_rows(rows[start : start + limit])[1:-1]  # without the brackets
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
        """Queue parcels to be sent."""
        with self._lock:
            self._parcels += parcels

    def stamp(self, limit: int) -> list[Parcel]:
        """The first ``limit`` parcels, to be sent now; sets ``at`` of those without one."""
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
        """The first ``limit`` parcels, without settled ones, for the spool.

        Parcels that were never sent leave the outbox: the spool stamps and sends them. Parcels that
        were sent stay as well, since Redis's answer may still arrive.
        """
        with self._lock:
            parcels = self._parcels[:limit]
            self._parcels[:limit] = [parcel for parcel in parcels if parcel.at is not None]
            return [parcel for parcel in parcels if not parcel.settled]

    def settle(self, parcels: Sequence[Parcel], *, spooled: bool = False) -> None:
        """Note that parcels are stored. Idempotent."""
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
            self._update_oldest()
        if parcels:
            self.settled_at = time.monotonic()
        self.bell.ring()

    def mark(self) -> int:
        """The generation of all rows folded so far, for :meth:`settled`."""
        with self._lock:
            self._update_oldest()
            return self._buffer.generation

    def _update_oldest(self) -> None:
        self._oldest = self._buffer.oldest_unsettled()
        self._oldest_row = self._buffer.oldest_unsettled(members=False)

    def settled(self, generation: int, *, members: bool = True) -> bool:
        """Whether all rows up to ``generation`` (from :meth:`mark`) are stored; with
        ``members``, also all members that waited for a salt.

        Takes no lock: settled rows stay settled.
        """
        return (self._oldest if members else self._oldest_row) > generation

    def give_up(self) -> int:
        """Count all increments that are not stored as dropped, and all later ones; returns the
        number of increments lost in all.
        """
        with self._lock:
            if not self._given_up:
                self._buffer.close()  # later events are dropped
                self._given_up = True
                self._parcels.clear()
            lost = self._events.accepted - self.stored - self.spooled
            self._events.accepted -= lost
            self._events.dropped += lost
            self.lost += lost
            self._oldest = self._oldest_row = NEVER
            return self.lost
