"""Class ``RowBuffer``, one amount per (counter, key, minute): limits on memory (see
``max_bytes_in_memory`` in ``producers/options.py``), and the order in which rows are handed out to
be sent."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from countersink.producers.batch import Event, IncrementBatch, Names
from countersink.producers.buffer.generations import (
    HANDED_OUT_BYTES,
    ROOM_BYTES,
    ROW_BYTES,
    TABLE_BYTES,
    FrozenGeneration,
    Generation,
    RowChunk,
    named_bytes,
    rows_at,
    rows_bytes,
)
from countersink.producers.buffer.queues import WaitingMembers
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import MAX_AMOUNT, MIN_AMOUNT
from countersink.stream.entry import MembersRow, Row

PIECE: Final = 2_000
"""Number of keys of ``increment_many`` that are added at a time, to bound calls into C."""
NEVER: Final = 1 << 62
"""A number above all generations; used as a limit, it means that there is no limit."""
SMALL: Final = 1 << 31
LARGE: Final = 1 << 62
"""While increments are within ±``SMALL``, an amount within ±``LARGE`` stays within 64 bits, because
fewer than 2**31 increments of a key arrive in a minute."""


class RowBuffer:
    """The rows in memory until they are stored: at most ``limit`` rows and ``max_bytes`` bytes.
    Rows handed out to be sent count until settled (stored). The ``EventBuffer``'s lock guards it.

    Attributes:
        promised: number of rows for which room was ever reserved (for batches). One thread at a
            time changes it, without the lock.
        redeemed: number of promised rows that were added, or given up.
        large_rows: whether rows may have dimensions or members, which make them larger.
        waiting_members: sightings that are not rows yet: the salts of their members are unknown.

    With ``bounded=False`` methods add rows without checking the limits, for callers that have
    reserved or checked the room. Rows belong to generations, numbered from 1. To find out later
    whether all present rows are stored, note :attr:`generation`: they are stored as soon as
    :meth:`oldest_unsettled` returns a higher number.
    """

    def __init__(self, limit: int, max_bytes: int = NEVER) -> None:
        self.promised = 0
        self.redeemed = 0
        self.large_rows = False
        self.waiting_members = WaitingMembers()
        self._limit = limit
        self._max_bytes = max_bytes
        self._current = Generation(1, 1)
        self._taken: FrozenGeneration | None = None
        self._handed_out: Counter[int] = Counter()  # generation → rows
        self._handed_out_rows = 0

    @property
    def generation(self) -> int:
        """Number of the generation that is being filled."""
        return self._current.number

    @property
    def current_rows(self) -> int:
        """Number of rows (not increments) in the generation that is being filled."""
        return self._current.size

    @property
    def waiting(self) -> int:
        """Number of rows of all generations that were not handed out yet (no waiting members)."""
        taken = self._taken
        return self._current.size + (taken.left + taken.named_rows if taken else 0)

    @property
    def held(self) -> int:
        """Number of rows (those handed out, too) and waiting members that are not stored yet."""
        return self.waiting + self._handed_out_rows + self.waiting_members.count

    @property
    def held_bytes(self) -> int:
        """Estimated bytes of memory that the rows and waiting members of :attr:`held` take."""
        taken = self._taken
        handed_out = self._handed_out_rows * HANDED_OUT_BYTES + self.waiting_members.size
        return self._current.bytes + (taken.bytes if taken else 0) + handed_out

    @property
    def half_full(self) -> bool:
        """Whether at least half of the bytes or of the rows that memory may hold is in use."""
        return self.held * 2 >= self._limit or self.held_bytes * 2 >= self._max_bytes

    def fuller_than(self, part: float, unfolded: int) -> bool:
        """Return whether more than the fraction ``part`` of the bytes or of the rows that memory
        may hold is in use. Each of the ``unfolded`` events adds a row's bytes without its key."""
        memory = self.held_bytes + unfolded * ROW_BYTES
        return memory > part * self._max_bytes or self.held > part * self._limit

    @property
    def reserved(self) -> int:
        """Number of rows for which room is reserved: promised, and not added or given up yet."""
        return self.promised - self.redeemed

    @property
    def free_rows(self) -> int:
        """Number of further rows, besides the reserved ones, that have room, even if no two share
        counter and minute and each key has 255 ASCII bytes."""
        memory = (self._max_bytes - self.held_bytes) // ROOM_BYTES
        return max(0, min(self._limit - self.held, memory) - self.reserved)

    def has_room(self, rows: int, size: int) -> bool:
        """Whether ``rows`` rows, of ``size`` bytes in all, have room besides the reserved ones."""
        reserved = self.reserved
        return (
            self.held + reserved + rows <= self._limit
            and self.held_bytes + reserved * ROOM_BYTES + size <= self._max_bytes
        )

    def fits(self, keys: Sequence[RowKey]) -> bool:
        """Whether an empty buffer has room for a row with each key; if not, waiting is useless."""
        size = TABLE_BYTES + rows_bytes(keys)
        return len(keys) <= self._limit and size <= self._max_bytes

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called: there is no room for rows any more."""
        return not self._limit

    def oldest_unsettled(self, *, members: bool = True) -> int:
        """Return the number of the oldest generation with rows that are not stored, or ``NEVER`` if
        all are stored. With ``members``, sightings that wait for a salt count as rows, too."""
        oldest = min(self._handed_out, default=NEVER)
        if self._taken is not None:
            oldest = min(oldest, self._taken.generation)
        waiting = self.waiting_members.oldest if members else None
        if waiting is not None:
            oldest = min(oldest, waiting)
        return min(oldest, self._current.oldest) if self._current.size else oldest

    # --- in ----------------------------------------------------------------------------------

    def add_ones(
        self, counter: str, minute: int, keys: Sequence[RowKey], *, bounded: bool = True
    ) -> int:
        """Add 1 to each of ``keys``. Return how many increments were dropped for lack of room (0 if
        not ``bounded``)."""
        rows = self._current
        table = rows.tables.get((counter, minute))
        if not (table is not None and table.large) and (not bounded or len(keys) <= self.free_rows):
            rows.count_ones(table or rows.table(counter, minute), keys)
            return 0
        dropped = 0
        for key, count in Counter(keys).items():
            # After the first key without room no new row is added, not even one with a shorter key:
            # the order of the keys decides, not their length.
            if dropped and (table is None or key not in table.counts):
                dropped += count
            else:
                dropped += self.add(counter, key, minute, count, count, bounded=bounded)
                table = table or rows.tables.get((counter, minute))
        return dropped

    def add_many(
        self, counter: str, minute: int, keys: Sequence[RowKey], amounts: list[int]
    ) -> int:
        """Add ``amounts[i]`` to ``keys[i]`` for each i, and return 0. For lack of room drop all
        instead, and return their number."""
        table = self._current.tables.get((counter, minute))
        if len(keys) > self.free_rows:
            new = keys
            if table is not None and not table.large and max(map(abs, amounts)) <= SMALL:
                new = [key for key in keys if key not in table.counts]
            size = rows_bytes(new) + (TABLE_BYTES if table is None else 0)
            if new and not self.has_room(len(new), size):
                return len(keys)
        for i in range(0, len(keys), PIECE):
            self._add_amounts(counter, minute, keys[i : i + PIECE], amounts[i : i + PIECE])
        return 0

    def _add_amounts(
        self, counter: str, minute: int, keys: Sequence[RowKey], amounts: list[int]
    ) -> None:
        """Add ``amounts[i]`` to ``keys[i]``, after the caller has checked that there is room."""
        least, most = min(amounts), max(amounts)
        if least == most == 1:
            self.add_ones(counter, minute, keys, bounded=False)
            return
        rows = self._current
        table = rows.tables.get((counter, minute))
        if not -SMALL <= least <= most <= SMALL or (table is not None and table.large):
            for key, amount in zip(keys, amounts, strict=True):
                self.add(counter, key, minute, amount, 1, bounded=False)
            return
        if table is None:
            table = rows.table(counter, minute)
        counts, extra = table.counts, table.extra
        before = len(counts)
        for key, amount in zip(keys, amounts, strict=True):
            counts[key] = counts.get(key, 0) + amount
            if amount != 1:
                extra[key] = extra.get(key, 0) + 1 - amount
        if len(counts) > before:
            rows.count_new_rows(counts, len(counts) - before)

    def add(
        self,
        counter: str,
        key: RowKey,
        minute: int,
        amount: int,
        calls: int,
        *,
        bounded: bool = True,
    ) -> int:
        """Add ``calls`` increments, whose sum is ``amount``, to the row of ``key``. Return 0, or
        ``calls`` if they are dropped for lack of room (never if not ``bounded``)."""
        rows = self._current
        table = rows.tables.get((counter, minute))
        have = None if table is None else table.counts.get(key)
        if have is not None and table is not None and MIN_AMOUNT <= have + amount <= MAX_AMOUNT:
            amount += have
            calls += have + table.extra.pop(key, 0)
        else:
            size = rows_bytes((key,)) + (TABLE_BYTES if table is None else 0)
            if bounded and not self.has_room(1, size):
                return calls
            if table is None:
                table = rows.table(counter, minute)
            if have is None:
                rows.table_rows += 1
            else:
                # The sum exceeds 64 bits: the row is complete, and a new row begins.
                row = (counter, key, minute, have)
                rows.full.append((row, have + table.extra.pop(key, 0)))
            rows.bytes += rows_bytes((key,))
        table.counts[key] = amount
        if calls != amount:
            table.extra[key] = calls - amount
        if not -LARGE <= amount <= LARGE:
            table.large = True
        return 0

    def add_sightings(
        self,
        counter: str,
        minute: int,
        number: int,
        keys: Sequence[RowKey],
        hashes: Sequence[bytes],
        *,
        bounded: bool = True,
    ) -> int:
        """For each i, add a sighting under ``keys[i]`` of the member whose hash is ``hashes[i]``.
        The salt of the hashes has the number ``number``. Return how many were dropped for lack of
        room (0 if not ``bounded``)."""
        rows = self._current
        if bounded and len(keys) > self.free_rows:
            if len(keys) > 1:
                return sum(
                    self.add_sightings(counter, minute, number, [key], [digest])
                    for key, digest in zip(keys, hashes, strict=True)
                )
            known = rows.members.get((counter, minute, number))
            if known is None or hashes[0] not in known.hashes.get(keys[0], ()):
                return 1
        rows.count_sightings(rows.members_table(counter, minute, number), keys, hashes)
        return 0

    def add_members(self, sightings: Iterable[MembersRow], *, bounded: bool = True) -> int:
        """Add sightings with hashed members. Return how many were dropped for lack of room (0 if
        not ``bounded``)."""
        tables: dict[tuple[str, int, int], tuple[list[RowKey], list[bytes]]] = {}
        for counter, key, minute, _, number, digest in sightings:
            keys, hashes = tables.setdefault((counter, minute, number), ([], []))
            keys.append(key)
            hashes.append(digest)
        return sum(
            self.add_sightings(*place, keys, hashes, bounded=bounded)
            for place, (keys, hashes) in tables.items()
        )

    def queue_member(
        self, counter: str, key: RowKey, minute: int, member: bytes
    ) -> list[tuple[str, RowKey, int]]:
        """Keep a sighting until its salt is known. If a limit is exceeded then, remove some (of any
        counter) and return their (counter, key, minute). The caller adds them without members."""
        # `oldest`, not `number`: a member queued again came in an older generation.
        self.waiting_members.add(counter, key, minute, member, self._current.oldest)
        left = []
        while excess := self.waiting_members.pop_excess():
            left_counter, oldest, left_key, left_minute = excess
            self._current.oldest = min(self._current.oldest, oldest)
            left.append((left_counter, left_key, left_minute))
        return left

    def take_waiting(self, counter: str) -> list[tuple[RowKey, int, bytes]]:
        """Remove a counter's sightings that wait for a salt, and return (key, minute, member) of
        each. Raises KeyError if there are none."""
        queue = self.waiting_members.take(counter)
        self._current.oldest = min(self._current.oldest, queue.oldest)
        return queue.members

    def add_named(self, names: Names, rows: list[Row], *, bounded: bool = True) -> int:
        """Add ``rows`` as one entry, whose id is hashed from ``names``. Return 0, or the number of
        rows if they are dropped for lack of room (never if not ``bounded``)."""
        if bounded and not self.has_room(len(rows), named_bytes(names, rows)):
            return len(rows)
        self._current.add_named(names, rows)
        return 0

    def add_events(self, events: Iterable[Event], minute: int, *, bounded: bool = True) -> int:
        """Add events; those without a minute get ``minute``. Return how many were dropped for lack
        of room (0 if not ``bounded``)."""
        dropped = 0
        for (counter, key, at, amount), calls in Counter(events).items():
            when = minute if at is None else at
            if MIN_AMOUNT <= amount * calls <= MAX_AMOUNT:
                dropped += self.add(counter, key, when, amount * calls, calls, bounded=bounded)
            else:  # the sum exceeds 64 bits
                for _ in range(calls):
                    dropped += self.add(counter, key, when, amount, 1, bounded=bounded)
        return dropped

    def add_batches(self, batches: Sequence[IncrementBatch], minute: int) -> None:
        """Add batches for which room is reserved. Increments without a minute get ``minute``. The
        caller has to add the room of the batches to ``redeemed`` afterwards."""
        ones: dict[tuple[str, int | None], list[RowKey]] = {}  # most increments; the fastest to add
        others: list[Event] = []
        for batch in batches:
            for event in batch.plain:
                counter, key, at, amount = event
                if amount != 1:
                    others.append(event)
                elif (counter, at) in ones:
                    ones[counter, at].append(key)
                else:
                    ones[counter, at] = [key]
        for (counter, at), keys in ones.items():
            self.add_ones(counter, minute if at is None else at, keys, bounded=False)
        self.add_events(others, minute, bounded=False)
        for batch in batches:
            self.add_members(batch.members, bounded=False)
            for names, events in batch.named:
                self.add_named(names, rows_at(events, minute), bounded=False)

    # --- out ---------------------------------------------------------------------------------

    def take(
        self, limit: int, upto: int, *, lowest: int = 0, named: bool = True
    ) -> RowChunk | None:
        """Hand out at most ``limit`` rows of the oldest generation that has any. Return None if
        there is none, or if the number of this generation is below ``lowest`` or above ``upto``.
        Rows with an id of the application come last, all rows of an id in one call, even if they
        exceed ``limit``. If only such rows are left and ``named`` is False, return None."""
        if self._taken is None:
            if not self._current.size or not lowest <= self._current.oldest <= upto:
                return None
            number = self._current.number + 1
            self._taken, self._current = FrozenGeneration(self._current), Generation(number, number)
        taken = self._taken
        if not lowest <= taken.generation <= upto:
            return None
        if taken.left:
            pairs = taken.next(limit)
            calls = sum([count for _, count in pairs])
            rows = [row for row, _ in pairs]
            piece = RowChunk(taken.generation, rows, calls)
        elif not (named and taken.named):
            self._taken = taken if taken.named else None  # the generation was empty
            return None
        else:
            names, rows = taken.next_named()
            piece = RowChunk(taken.generation, rows, len(rows), names)
        if not taken.left and not taken.named:
            self._taken = None
        self._handed_out[piece.generation] += len(piece.rows)
        self._handed_out_rows += len(piece.rows)
        return piece

    def settle(self, generation: int, rows: int) -> None:
        """Record that ``rows`` rows of ``generation``, which were handed out, are stored."""
        self._handed_out_rows -= rows
        self._handed_out[generation] -= rows
        if not self._handed_out[generation]:
            del self._handed_out[generation]

    def close(self) -> None:
        """Discard all rows and waiting members. From then on there is no room for rows."""
        self._limit = self._max_bytes = 0
        self._current = Generation(self._current.number + 1, self._current.number + 1)
        self._taken = None
        self._handed_out.clear()
        self._handed_out_rows = 0
        self.waiting_members.clear()
