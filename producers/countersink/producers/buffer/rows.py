"""``RowBuffer``, one amount per (counter, key, minute): what is refused when memory is full
(``max_bytes_in_memory`` in ``producers/options.py``), and which rows are handed out to be sent. Its
owner holds a lock."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from countersink.producers.batch import Event, IncrementBatch, Names
from countersink.producers.buffer.generations import (
    HASH_MEMORY,
    MEMBERS_BYTES,
    MOST_DIMENSIONS_BYTES,
    MOST_ROW_BYTES,
    OUTSIDE_BYTES,
    ROW_BYTES,
    TABLE_BYTES,
    Generation,
    Room,
    RowChunk,
    Taken,
    named_bytes,
    rows_at,
    rows_bytes,
)
from countersink.producers.buffer.sightings import WaitingMembers
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import MAX_AMOUNT, MIN_AMOUNT
from countersink.runtime.members import HASH_BYTES
from countersink.stream.entry import Row

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
        rows: the room for rows, in rows.
        memory: the same room, in bytes.
        dimensions: a row may have dimensions, and take more than one with a key can.
        members: a row may have members, likewise.
        waiting_members: those whose salts are not known: not rows yet.

    Rows belong to generations, numbered from 1: everything added so far is stored once
    :meth:`oldest_unsettled` is greater than :attr:`generation` was.
    """

    def __init__(self, limit: int, max_bytes: int = NEVER) -> None:
        self.rows = Room(limit)
        self.memory = Room(max_bytes)
        self.dimensions = False
        self.members = False
        self.waiting_members = WaitingMembers()
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
        rows, memory = self.rows.limit, self.memory.limit
        return self.held * 2 >= rows or self.held_bytes * 2 >= memory

    def above(self, part: float, raw: int) -> bool:
        """Whether more than ``part`` of the room is taken, with ``raw`` events on their way here,
        as if each was to make a row.
        """
        memory = self.held_bytes + raw * ROW_BYTES
        return memory > part * self.memory.limit or self.held > part * self.rows.limit

    @property
    def most_row_bytes(self) -> int:
        """What a row takes at most."""
        most = MOST_DIMENSIONS_BYTES if self.dimensions else MOST_ROW_BYTES
        return most + MEMBERS_BYTES + HASH_MEMORY if self.members else most

    @property
    def certain(self) -> int:
        """Rows for which there is room whatever they are."""
        return max(0, min(self.rows.free, self.memory.free // (TABLE_BYTES + self.most_row_bytes)))

    def fits(self, keys: Sequence[RowKey]) -> bool:
        """Whether there would be room for a row with each of ``keys`` if there were no others."""
        size = TABLE_BYTES + rows_bytes(keys)
        return len(keys) <= self.rows.limit and size <= self.memory.limit

    @property
    def closed(self) -> bool:
        """Whether there is no room for anything any more."""
        return not self.rows.limit

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

    def promise(self, rows: int, size: int) -> bool:
        """Promise room for as many rows and bytes, if there is; by one thread at a time, which
        needs no lock of the owner's.
        """
        if not self.rows.promise(rows):
            return False
        if self.memory.promise(size):
            return True
        self.rows.promised -= rows
        return False

    def take_back(self, rows: int, size: int) -> None:
        """What was promised, by the same thread, is not needed."""
        self.rows.promised -= rows
        self.memory.promised -= size

    @property
    def much_promised(self) -> bool:
        """Whether an eighth of the room is promised to what has not come yet."""
        rows, memory = self.rows, self.memory
        return rows.reserved * 8 > rows.limit or memory.reserved * 8 > memory.limit

    def recount(self) -> None:
        """Find out how much room there is. To be called before adding rows, and after adding some
        that were not bounded.
        """
        self.rows.recount(self.held)
        self.memory.recount(self.held_bytes)

    def mend(self) -> None:
        """Find all figures out again: an exception came up in the midst of adding."""
        self._current.count_anew()
        self.recount()

    def redeem(self, rows: int, size: int) -> None:
        """``rows`` of those that were promised room, and ``size`` bytes, have come."""
        self.rows.redeemed += rows
        self.memory.redeemed += size
        self.recount()

    def claim(self, rows: int, size: int) -> bool:
        """Take room for as many rows and bytes, if there is. What was not used after all is given
        back by :meth:`recount`.
        """
        if not self.rows.claim(rows):
            return False
        if self.memory.claim(size):
            return True
        self.rows.until += rows
        return False

    def claim_tables(self, rows: int) -> bool:
        """Take room for as many rows with tables of their own, whatever their keys."""
        return self.claim(rows, rows * (TABLE_BYTES + self.most_row_bytes))

    # --- in ----------------------------------------------------------------------------------

    def add_ones(
        self, counter: str, minute: int, keys: Sequence[RowKey], *, bounded: bool = True
    ) -> int:
        """Add an increment of 1 for each of ``keys``; how many found no room."""
        rows = self._current
        table = rows.tables.get((counter, minute))
        large = table is not None and table.large
        if not large and (
            not bounded or self.claim(len(keys), TABLE_BYTES + len(keys) * self.most_row_bytes)
        ):
            rows.count_ones(table or rows.table(counter, minute), keys)
            if bounded:
                self.recount()
            return 0
        counted = Counter(keys)
        if large:
            return sum(
                self.add(counter, key, minute, count, count, bounded=bounded)
                for key, count in counted.items()
            )
        return self._add_while_there_is_room(counter, minute, counted)

    def _add_while_there_is_room(self, counter: str, minute: int, counted: Counter[RowKey]) -> int:
        """The end of :meth:`add_ones` when not every key may find room."""
        dropped = 0
        full = False
        rows = self._current
        table = rows.tables.get((counter, minute))
        for key, count in counted.items():
            if table is not None and key in table.counts:
                table.counts[key] += count
            elif full:
                dropped += count
            elif self.add(counter, key, minute, count, count):
                dropped += count
                full = True  # also for a shorter key: who comes first is not by length
            elif table is None:
                table = rows.tables[counter, minute]
        return dropped

    def add_many(
        self, counter: str, minute: int, keys: Sequence[RowKey], amounts: list[int]
    ) -> int:
        """Add ``amounts[i]`` to ``keys[i]``, for each an increment; how many found no room: all or
        0.
        """
        table = self._current.tables.get((counter, minute))
        if not self.claim(len(keys), TABLE_BYTES + len(keys) * self.most_row_bytes):
            new = keys
            if table is not None and not table.large and max(map(abs, amounts)) <= SMALL:
                new = [key for key in keys if key not in table.counts]
            size = rows_bytes(new) + (TABLE_BYTES if table is None else 0)
            if new and not self.claim(len(new), size):
                return len(keys)
        for at in range(0, len(keys), PIECE):
            self._add_amounts(counter, minute, keys[at : at + PIECE], amounts[at : at + PIECE])
        self.recount()
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
            if bounded and not self.claim(1, size):
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

    def add_members(
        self,
        counter: str,
        key: RowKey,
        minute: int,
        number: int,
        hashes: Collection[bytes],
        calls: int,
        *,
        bounded: bool = True,
    ) -> int:
        """Add ``calls`` sightings, of the members that have these hashes by a salt; how many found
        no room: all or 0.

        Args:
            number: of the salt.
        """
        rows = self._current
        table = rows.members.get((counter, minute, number))
        if bounded:
            have = None if table is None else table.hashes.get(key)
            size = HASH_MEMORY * len(hashes) + (TABLE_BYTES if table is None else 0)
            if have is None:
                size += rows_bytes((key,)) + MEMBERS_BYTES
            elif have.issuperset(hashes):
                size = 0
            if size and not self.claim(have is None, size):
                return calls
        table = table or rows.members_table(counter, minute, number)
        rows.add_members(table, key, hashes, calls)
        return 0

    def add_sightings(
        self,
        counter: str,
        minute: int,
        number: int,
        keys: Sequence[RowKey],
        hashes: Sequence[bytes],
    ) -> int:
        """Add a sighting of ``keys[i]`` by the member with ``hashes[i]`` by a salt, for each i; how
        many found no room.

        Args:
            number: of the salt.
        """
        if self.claim(len(keys), TABLE_BYTES + len(keys) * self.most_row_bytes):
            rows = self._current
            rows.count_sightings(rows.members_table(counter, minute, number), keys, hashes)
            self.recount()
            return 0
        return sum(
            self.add_members(counter, key, minute, number, (digest,), calls)
            for (key, digest), calls in Counter(zip(keys, hashes, strict=True)).items()
        )

    def let_wait(
        self, counter: str, key: RowKey, minute: int, member: bytes
    ) -> list[tuple[str, RowKey, int]]:
        """Keep a sighting until the salt is known; counter, key and minute of those that had to
        leave for it, which are about to be added.
        """
        # Not its number: what waits once more has come in an older generation.
        left = self.waiting_members.add(counter, key, minute, member, self._current.oldest)
        for _, oldest, _, _ in left:
            self._current.oldest = min(self._current.oldest, oldest)
        return [(name, own_key, at) for name, _, own_key, at in left]

    def return_from_waiting(self, counter: str) -> None:
        """Members of a counter that have waited are about to be added."""
        oldest = self.waiting_members.oldest_of(counter)
        self._current.oldest = min(self._current.oldest, oldest)

    def add_named(self, names: Names, rows: list[Row], *, bounded: bool = True) -> int:
        """Add rows that travel under the app's own names, for each an increment; how many found no
        room: all or 0.
        """
        if bounded and not self.claim(len(rows), named_bytes(names, rows)):
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
            for counter, key, at, amount, number, digest in batch.members:
                self.add_members(counter, key, at, number, (digest,), amount, bounded=False)
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
            piece = RowChunk(taken.generation, rows, calls, relative=taken.relative)
        elif not named:
            return None
        else:
            names, rows = taken.next_named()
            piece = RowChunk(taken.generation, rows, len(rows), names, taken.relative)
        if not taken.left and not taken.named:
            self._taken = None
        self._outside[piece.generation] = self._outside.get(piece.generation, 0) + len(piece.rows)
        self._outside_rows += len(piece.rows)
        return piece

    def give_back(self, limit: int) -> bool:
        """Let ``limit`` rows that were taken, not handed out, coalesce again; whether more are."""
        taken = self._taken
        if taken is None:
            return False
        self._current.oldest = min(self._current.oldest, taken.generation)
        before = taken.left
        pairs = taken.next(limit)
        if pairs:  # as a share: the keys are the same ones in both tables
            taken.bytes -= taken.bytes * len(pairs) // before
        # No bound: each of these rows was let in before, and merging makes them no more.
        for row, calls in pairs:
            if len(row) == 6:
                counter, key, minute, _, number, data = row
                hashes = [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]
                self.add_members(counter, key, minute, number, hashes, calls, bounded=False)
            else:
                counter, key, minute, amount = row
                self.add(counter, key, minute, amount, calls, bounded=False)
        self.recount()
        if taken.left:
            return True
        if taken.named:
            # Before those that have come since.
            number, size, named = 0, 0, []
            for names, rows, _ in (*taken.named, *self._current.named):
                number += len(rows)
                named.append((names, rows, number))
            for names, rows, _ in taken.named:
                size += named_bytes(names, rows)
            self._current.named = named
            self._current.bytes += size
            self._current.relative |= taken.relative
        self._taken = None
        return False

    def settle(self, generation: int, rows: int) -> None:
        """``rows`` rows of ``generation`` that were handed out are stored."""
        self._outside_rows -= rows
        left = self._outside[generation] - rows
        if left:
            self._outside[generation] = left
        else:
            del self._outside[generation]
        self.recount()

    def close(self) -> None:
        """Forget everything, and take nothing more."""
        self.rows.limit = self.memory.limit = 0
        self._current = Generation(self._current.number + 1, self._current.number + 1)
        self._taken = None
        self._outside.clear()
        self._outside_rows = 0
        self.waiting_members.clear()
        self.recount()
