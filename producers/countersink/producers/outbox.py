"""Parcels that are sealed and not stored yet."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from countersink.producers.bell import Bell
from countersink.producers.clock import RedisClock
from countersink.producers.increments import Names
from countersink.producers.intake import Intake
from countersink.producers.parcel import Parcel, encode_pieces
from countersink.producers.rows import NEVER
from countersink.stream.entry import ROWS_PER_ENTRY, Row, id_for, new_entry_id

PIECE_ROWS: Final = 64
"""Rows encoded at a time at least: some 50 µs during which no other thread runs."""


class Outbox:
    """Seals rows into parcels and knows which of them are stored. For the sender and the spooler at
    once.

    Attributes:
        stored, spooled, resent: increments, see :class:`~countersink.producers.stats.Stats`.
        lost: increments given up.
        settled_at: the monotonic time at which rows were settled last.
        watchers: rung whenever rows were settled.
    """

    def __init__(
        self, intake: Intake, clock: RedisClock, id_scope: str, breathe: Callable[[], None]
    ) -> None:
        self.stored = 0
        self.spooled = 0
        self.resent = 0
        self.lost = 0
        self.watchers: list[Bell] = []
        self._intake = intake
        self._lock = intake.lock
        self._buffer = intake.buffer
        self._clock = clock
        self._id_scope = id_scope
        self._breathe = breathe
        self._parcels: list[Parcel] = []
        self._given_up = False
        self.settled_at = float("-inf")
        self._oldest = NEVER  # the oldest generation not settled, as of the last settling or mark

    def __len__(self) -> int:
        return len(self._parcels)

    def seal(self, upto: int = NEVER) -> Parcel | None:
        """Take at most 1,000 rows of generations up to ``upto`` out of the buffer; ``None``: there
        are none.

        The parcel belongs to the caller, who has to post, settle or give it up.
        """
        pieces: list[list[Row]] = []
        count = increments = generation = 0
        names: Names = ()
        # Larger pieces when much waits: between two of them this thread may wait a whole switch
        # interval.
        limit = min(ROWS_PER_ENTRY, max(PIECE_ROWS, self._buffer.waiting // 32))
        while count < ROWS_PER_ENTRY:
            with self._lock:
                piece = self._buffer.take(
                    min(limit, ROWS_PER_ENTRY - count),
                    generation or upto,
                    lowest=generation,
                    named=not pieces,
                )
            if piece is None:
                break
            rows_taken = piece.rows
            if piece.relative:
                absolute = self._clock.absolute
                rows_taken = [(c, key, absolute(minute), n) for c, key, minute, n in rows_taken]
            # By and by, see encode_pieces: a batch of the app's comes all at once.
            pieces += [rows_taken[at : at + limit] for at in range(0, len(rows_taken), limit)]
            count += len(piece.rows)
            increments += piece.increments
            generation = piece.generation
            names = piece.names
            if names:
                break
        if not pieces:
            return None
        rows = encode_pieces(pieces, self._breathe)
        id = id_for(self._id_scope, *names) if names else new_entry_id(self._clock.now_ms())
        return Parcel(id, rows, count, increments, generation)

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
            self._oldest = self._buffer.oldest_unsettled()
        if parcels:
            self.settled_at = time.monotonic()
        for watcher in list(self.watchers):
            watcher.ring()

    def give_back(self) -> None:
        """Let rows that were taken for a flush, but not sealed, coalesce again."""
        more = True
        while more:
            with self._lock:
                more = self._buffer.give_back(PIECE_ROWS)
            if more:
                self._breathe()

    def mark(self) -> int:
        """The generation of all that is folded by now, for :meth:`settled`."""
        with self._lock:
            self._oldest = self._buffer.oldest_unsettled()
            return self._buffer.generation

    def settled(self, generation: int) -> bool:
        """Whether everything up to ``generation``, which :meth:`mark` gave, is stored.

        Takes no lock: what is settled stays so, whenever it was looked at.
        """
        return self._oldest > generation

    def give_up(self) -> int:
        """Count everything that is not stored as dropped, and from now on whatever comes; how many
        increments have been lost so in all.
        """
        with self._lock:
            if not self._given_up:
                self._buffer.close()  # an event that a caller leaves from now on is dropped
                self._given_up = True
                self._parcels.clear()
            lost = self._intake.accepted - self.stored - self.spooled
            self._intake.accepted -= lost
            self._intake.dropped += lost
            self.lost += lost
            self._oldest = NEVER
            return self.lost
