"""``RowBuffer``, one amount per (counter, key, minute): what is refused when memory is full
(``max_bytes_in_memory`` in ``producers/options.py``), and which rows are handed out to be sent. Its
owner holds a lock."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from countersink.producers.batch import Event, IncrementBatch, Names
from countersink.producers.buffer.generations import (
    OUTSIDE_BYTES,
    ROOM_BYTES,
    ROW_BYTES,
    TABLE_BYTES,
    Generation,
    RowChunk,
    Taken,
    named_bytes,
    rows_at,
    rows_bytes,
)
from countersink.producers.buffer.queues import WaitingMembers
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import MAX_AMOUNT, MIN_AMOUNT
from countersink.stream.entry import MembersRow, Row

PIECE: Final = 2_000
"""Keys that are added in one call into C, which holds the interpreter lock."""
NEVER: Final = 1 << 62
"""A generation later than all."""
SMALL: Final = 1 << 31
LARGE: Final = 1 << 62
"""An amount up to this stays in 64 bits as long as increments are ``SMALL``: no minute has time for
more than 2**31 of them.
"""


class RowBuffer:
    """Rows waiting to be stored, bounded by ``max_bytes`` of memory and maybe by ``limit`` rows;
    rows handed out count until they are settled, and room is kept for those that were promised it.

    Attributes:
        promised: rows that room was ever promised to. Written by who promises, one thread at a
            time, which needs no lock of the owner's; ``redeemed``: those of them that have come.
        large_rows: a row may have dimensions or members, and be larger than one with a key.
        waiting_members: those whose salts are not known: not rows yet.

    Rows belong to generations, numbered from 1: everything added so far is stored once
    :meth:`oldest_unsettled` is greater than :attr:`generation` was.
    """

    def __init__(self, limit: int, max_bytes: int = NEVER) -> None:
        self.promised = 0
        self.redeemed = 0
        self.large_rows = False
        self.waiting_members = WaitingMembers()
        self._limit = limit
        self._max_bytes = max_bytes
        self._current = Generation(1, 1)
        self._taken: Taken | None = None
        self._outside: dict[int, int] = {}
        self._outside_rows = 0

    @property
    def generation(self) -> int:
        """The generation that is being filled."""
        return self._current.number

    @property
    def growing(self) -> int:
        """Distinct rows in the generation that is being filled."""
        return self._current.size

    @property
    def waiting(self) -> int:
        """Rows not handed out."""
        taken = self._taken
        return self._current.size + (taken.left + taken.named_rows if taken else 0)

    @property
    def held(self) -> int:
        """All rows not settled."""
        return self.waiting + self._outside_rows + self.waiting_members.count

    @property
    def held_bytes(self) -> int:
        """What they take in memory."""
        taken = self._taken
        outside = self._outside_rows * OUTSIDE_BYTES + self.waiting_members.size
        return self._current.bytes + (taken.bytes if taken else 0) + outside

    @property
    def crowded(self) -> bool:
        """Whether at least half of the room is taken."""
        return self.held * 2 >= self._limit or self.held_bytes * 2 >= self._max_bytes

    def above(self, part: float, raw: int) -> bool:
        """Whether more than ``part`` of the room is taken, with ``raw`` events on their way here,
        as if each was to make a row.
        """
        memory = self.held_bytes + raw * ROW_BYTES
        return memory > part * self._max_bytes or self.held > part * self._limit

    @property
    def reserved(self) -> int:
        """Rows that room was promised to and that are still to come."""
        return self.promised - self.redeemed

    @property
    def certain(self) -> int:
        """Rows for which there is room, each with a table of its own."""
        memory = (self._max_bytes - self.held_bytes) // ROOM_BYTES
        return max(0, min(self._limit - self.held, memory) - self.reserved)

    def has_room(self, rows: int, size: int) -> bool:
        """Whether there is room for as many rows, which take ``size`` bytes."""
        reserved = self.reserved
        return (
            self.held + reserved + rows <= self._limit
            and self.held_bytes + reserved * ROOM_BYTES + size <= self._max_bytes
        )

    def fits(self, keys: Sequence[RowKey]) -> bool:
        """Whether there would be room for a row with each of ``keys`` if there were no others."""
        size = TABLE_BYTES + rows_bytes(keys)
        return len(keys) <= self._limit and size <= self._max_bytes

    @property
    def closed(self) -> bool:
        """Whether there is no room for anything any more."""
        return not self._limit

    def oldest_unsettled(self, *, members: bool = True) -> int:
        """The oldest generation with rows that are not stored; ``NEVER`` if all are. ``members``:
        or with members that wait for a salt.
        """
        oldest = min(self._outside, default=NEVER)
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
        """Add an increment of 1 for each of ``keys``; how many found no room."""
        rows = self._current
        table = rows.tables.get((counter, minute))
        if not (table is not None and table.large) and (not bounded or len(keys) <= self.certain):
            rows.count_ones(table or rows.table(counter, minute), keys)
            return 0
        dropped = 0
        for key, count in Counter(keys).items():
            # No new row once one has found no room, for a shorter key neither: who comes first is
            # not by length.
            if dropped and (table is None or key not in table.counts):
                dropped += count
            else:
                dropped += self.add(counter, key, minute, count, count, bounded=bounded)
                table = table or rows.tables.get((counter, minute))
        return dropped

    def add_many(
        self, counter: str, minute: int, keys: Sequence[RowKey], amounts: list[int]
    ) -> int:
        """Add ``amounts[i]`` to ``keys[i]``, for each an increment; how many found no room: all or
        0.
        """
        table = self._current.tables.get((counter, minute))
        if len(keys) > self.certain:
            new = keys
            if table is not None and not table.large and max(map(abs, amounts)) <= SMALL:
                new = [key for key in keys if key not in table.counts]
            size = rows_bytes(new) + (TABLE_BYTES if table is None else 0)
            if new and not self.has_room(len(new), size):
                return len(keys)
        for at in range(0, len(keys), PIECE):
            self._add_amounts(counter, minute, keys[at : at + PIECE], amounts[at : at + PIECE])
        return 0

    def _add_amounts(
        self, counter: str, minute: int, keys: Sequence[RowKey], amounts: list[int]
    ) -> None:
        """Add as many increments, for which there is room."""
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
            rows.grown(counts, len(counts) - before)

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
        """Add ``calls`` increments that come to ``amount``; how many found no room: all or 0."""
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
                rows.cells += 1
            else:
                # The sum leaves 64 bits: this row is complete, and another one begins.
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
        """Add a sighting of ``keys[i]`` by the member with ``hashes[i]`` by a salt, for each i; how
        many found no room.

        Args:
            number: of the salt.
        """
        rows = self._current
        if bounded and len(keys) > self.certain:
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
        """Add sightings of one member each; how many found no room."""
        tables: dict[tuple[str, int, int], tuple[list[RowKey], list[bytes]]] = {}
        for counter, key, minute, _, number, digest in sightings:
            keys, hashes = tables.setdefault((counter, minute, number), ([], []))
            keys.append(key)
            hashes.append(digest)
        return sum(
            self.add_sightings(*place, keys, hashes, bounded=bounded)
            for place, (keys, hashes) in tables.items()
        )

    def let_wait(
        self, counter: str, key: RowKey, minute: int, member: bytes
    ) -> list[tuple[str, RowKey, int]]:
        """Keep a sighting until the salt is known; counter, key and minute of those that find no
        room for it, which are about to be added.
        """
        # Not its number: what waits once more has come in an older generation.
        self.waiting_members.add(counter, key, minute, member, self._current.oldest)
        left = []
        while excess := self.waiting_members.pop_excess():
            name, oldest, own_key, own_minute = excess
            self._current.oldest = min(self._current.oldest, oldest)
            left.append((name, own_key, own_minute))
        return left

    def take_waiting(self, counter: str) -> list[tuple[RowKey, int, bytes]]:
        """Key, minute and member of a counter's members that have waited, which are about to be
        added.
        """
        queue = self.waiting_members.take(counter)
        self._current.oldest = min(self._current.oldest, queue.oldest)
        return queue.members

    def add_named(self, names: Names, rows: list[Row], *, bounded: bool = True) -> int:
        """Add rows that travel under the app's own names, for each an increment; how many found no
        room: all or 0.
        """
        if bounded and not self.has_room(len(rows), named_bytes(names, rows)):
            return len(rows)
        self._current.add_named(names, rows)
        return 0

    def add_events(self, events: Iterable[Event], minute: int, *, bounded: bool = True) -> int:
        """Add events, for each an increment; how many found no room.

        Args:
            minute: now.
        """
        dropped = 0
        for (counter, key, at, amount), calls in Counter(events).items():
            when = minute if at is None else at
            if MIN_AMOUNT <= amount * calls <= MAX_AMOUNT:
                dropped += self.add(counter, key, when, amount * calls, calls, bounded=bounded)
            else:  # the sum leaves 64 bits
                for _ in range(calls):
                    dropped += self.add(counter, key, when, amount, 1, bounded=bounded)
        return dropped

    def add_batches(self, batches: Sequence[IncrementBatch], minute: int) -> None:
        """Add all of them: their room was promised. To be redeemed afterwards.

        Args:
            minute: now.
        """
        ones: dict[tuple[str, int | None], list[RowKey]] = {}  # what there is most of, and cheapest
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
        """Hand out at most ``limit`` rows of the generations ``lowest`` to ``upto``, or ``None``.

        Rows with names of the app's own come by themselves, all at once, after the others, and
        only if ``named``.
        """
        if self._taken is None:
            if not self._current.size or not lowest <= self._current.oldest <= upto:
                return None
            number = self._current.number + 1
            self._taken, self._current = Taken(self._current), Generation(number, number)
        taken = self._taken
        if not lowest <= taken.generation <= upto:
            return None
        if taken.left:
            pairs = taken.next(limit)
            calls = sum([count for _, count in pairs])
            rows = [row for row, _ in pairs]
            piece = RowChunk(taken.generation, rows, calls)
        elif not (named and taken.named):
            self._taken = taken if taken.named else None  # nothing came into it after all
            return None
        else:
            names, rows = taken.next_named()
            piece = RowChunk(taken.generation, rows, len(rows), names)
        if not taken.left and not taken.named:
            self._taken = None
        self._outside[piece.generation] = self._outside.get(piece.generation, 0) + len(piece.rows)
        self._outside_rows += len(piece.rows)
        return piece

    def settle(self, generation: int, rows: int) -> None:
        """``rows`` rows of ``generation`` that were handed out are stored."""
        self._outside_rows -= rows
        left = self._outside[generation] - rows
        if left:
            self._outside[generation] = left
        else:
            del self._outside[generation]

    def close(self) -> None:
        """Forget everything, and take nothing more."""
        self._limit = self._max_bytes = 0
        self._current = Generation(self._current.number + 1, self._current.number + 1)
        self._taken = None
        self._outside.clear()
        self._outside_rows = 0
        self.waiting_members.clear()
