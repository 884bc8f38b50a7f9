"""Class ``Outbox``, the entries that are encoded and not stored yet: when an entry gets its id and
its time, how many entries are sent at a time; and ``Stats``, the figures of a producer.
"""

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
"""Maximum of parcels that are sent in one round trip, or written to the spool with one fsync."""
PIECE_ROWS: Final = 64
"""Minimum of rows that are encoded at a time. Encoding them takes some 50 µs, during which no other
thread runs."""
MAX_PIECE_ROWS: Final = 160
"""Maximum of rows that are encoded at a time where rows may have dimensions or members."""
FULL_BYTES: Final = MAX_ROWS_BYTES - (MAX_PIECE_ROWS + 1) * MAX_ROW_BYTES - MAX_MEMBERS_BYTES
"""Size in bytes above which an entry gets no further rows: the next rows that are encoded might
exceed the limit on its size."""


@dataclass(slots=True, eq=False)
class Parcel:
    """An encoded entry, with the number of increments in it. Two parcels are never equal, even with
    the same contents.

    Attributes:
        id: the entry's id, 32 hex digits. It is given when the rows are encoded, and never changes.
        rows: the rows as JSON; they never change.
        row_count: number of rows.
        increments: number of increments that were folded into the rows.
        generation: the generation that the rows belong to (see ``RowBuffer``).
        at: time of the first attempt to send the entry, in Unix ms on Redis's clock; ``None``
            before that attempt.
        in_doubt: whether an attempt to send the entry has failed so that it is unknown whether
            Redis has the entry (:func:`deliver` has raised).
        settled: whether the entry is stored, in Redis or in the spool. The lock of the
            ``EventBuffer`` guards this attribute.
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
        """Return the entry as it is sent, with the same bytes at every attempt.

        Raises:
            RuntimeError: ``at`` is not set yet.
        """
        if self.at is None:
            raise RuntimeError("the parcel has no time yet: stamp it before sending")
        return Sealed(self.id, self.at, self.rows, self.increments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """Figures of one producer in one process, counted from the producer's creation in this process
    (a forked child starts at 0). An increment is one call of ``increment()`` or ``seen()``, or one
    item of ``increment_many()`` and ``increment_batch()``, whatever its amount.
    ``accepted - stored - spooled`` is the number of increments that are only in the memory of this
    process.

    Attributes:
        accepted: number of increments accepted and not dropped.
        stored: number of increments sent from memory and acknowledged by Redis.
        resent: number of increments sent again after an attempt whose result is unknown; counted
            anew at each further attempt. In MySQL they count once, because the entry keeps its id.
        spooled: number of increments written and fsynced to the disk spool.
        replayed: number of increments sent to Redis from segments of the spool, also from those
            that dead processes have left.
        dropped: number of increments for which memory and spool had no room, which were not stored
            when the producer was closed, or which came after the close (without those of calls that
            raised RuntimeError). Batches that ``increment_batch()`` refused for lack of room or of
            a salt are not included.
        pending_rows: number of rows in memory that are not stored yet. A sighting whose member
            waits for a salt counts as a row.
        last_error: an error message without passwords: that of the spool, if its last write or the
            last check of its directory, whichever came later, failed; otherwise that of the last
            failure of Redis (also because the stream is too long), even if Redis has answered
            since. ``None`` if nothing has failed.
        connected: whether Redis accepted the last command and the stream is not too long.
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
    """Encodes rows into parcels and keeps the parcels until they are stored. The send thread and
    the spool thread use it at the same time.

    Attributes:
        stored, spooled, resent: numbers of increments: see :class:`Stats`.
        lost: number of increments that :meth:`give_up` has discarded.
        settled_at: the monotonic time at which parcels were last stored; minus infinity before.
        bell: rung by each :meth:`settle`; flushes wait for it.
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
        # The oldest generations not settled, at the last settling or flush: of rows, of all.
        self._oldest_row = NEVER
        self._oldest = NEVER

    def __len__(self) -> int:
        return len(self._parcels)

    def seal(self, upto: int = NEVER) -> Parcel | None:
        """Take rows of the oldest generation out of the buffer and encode them into a parcel: at
        most 1,000 rows, fewer if they are large. An increment or a batch with an id of the
        application becomes a parcel of its own, whose id is derived from that id, from ``id_scope``
        and, for an increment, from its counter. Return None if there are no rows, or if the number
        of this generation is above ``upto``.

        The caller has to pass the parcel to :meth:`post` or :meth:`settle`, or to call
        :meth:`give_up`: until then the rows are in the parcel only, and count as not stored.
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
        """Add parcels to the outbox, behind the others, so that :meth:`stamp` or :meth:`for_spool`
        returns them later.
        """
        with self._lock:
            self._parcels += parcels

    def stamp(self, limit: int) -> list[Parcel]:
        """Return the first ``limit`` parcels, to be sent now; they stay in the outbox. Parcels
        without a time ``at`` get the present time on Redis's clock. The increments of parcels that
        Redis may have stored already (``in_doubt``) are added to ``resent``.
        """
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
        """Return those of the first ``limit`` parcels that are not stored yet. The caller writes
        them to the spool.

        Parcels that were never sent leave the outbox: the spool's replay gives them their time and
        sends them. If the spool cannot be written, the caller has to :meth:`post` these never-sent
        parcels again. Parcels that were sent before are returned, too, but stay in the outbox until
        :meth:`settle`, because Redis's answer may still arrive.
        """
        with self._lock:
            parcels = self._parcels[:limit]
            self._parcels[:limit] = [parcel for parcel in parcels if parcel.at is not None]
            return [parcel for parcel in parcels if not parcel.settled]

    def settle(self, parcels: Sequence[Parcel], *, spooled: bool = False) -> None:
        """Record that parcels are stored: they leave the outbox, their increments are added to
        ``stored`` or ``spooled``, and the bell rings. A parcel that was settled before is ignored.
        After :meth:`give_up` all parcels are ignored. Without parcels (as after sightings were
        dropped), only the results of :meth:`settled` are updated, and the bell rings.

        Args:
            spooled: True if they are stored in the spool, False if in Redis.
        """
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

    def newest_generation(self) -> int:
        """Return the number of the generation that is being filled: no row folded so far has a
        higher one. Pass it to :meth:`settled`, to find out whether all these rows are stored.
        """
        with self._lock:
            self._update_oldest()
            return self._buffer.generation

    def _update_oldest(self) -> None:
        self._oldest = self._buffer.oldest_unsettled()
        self._oldest_row = self._buffer.oldest_unsettled(members=False)

    def settled(self, generation: int, *, members: bool = True) -> bool:
        """Whether all rows of the generations up to ``generation`` were stored at the last call of
        :meth:`settle` or :meth:`newest_generation`. Takes no lock, which is safe because rows that
        are stored stay stored. Always True after :meth:`give_up`.

        Args:
            members: True if sightings whose members wait for a salt must be stored as well; False
                ignores them.
        """
        return (self._oldest if members else self._oldest_row) > generation

    def give_up(self) -> int:
        """Discard all rows that are not stored, count their increments as dropped, and drop all
        later increments. Return the number of increments that all calls of this method have
        discarded.
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
