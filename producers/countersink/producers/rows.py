"""The coalescing buffer: one amount per (counter, key, minute). Its owner holds a lock."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from countersink.producers.generations import Generation, Table, Taken
from countersink.producers.increments import Names
from countersink.stream.entry import Row
from countersink.stream.limits import MAX_AMOUNT, MIN_AMOUNT

NEVER: Final = 1 << 62
"""A generation later than all."""
SMALL: Final = 1 << 31
LARGE: Final = 1 << 62
"""An amount up to this stays in 64 bits as long as increments are ``SMALL``: no minute has time for
more than 2**31 of them.
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one generation, taken out of the buffer.

    Attributes:
        generation: which.
        rows: the rows.
        increments: the increments folded into them.
        names: the app's own: these rows travel in an entry of their own. Empty: none.
    """

    generation: int
    rows: list[Row]
    increments: int
    names: Names = ()


class RowBuffer:
    """Rows waiting to be stored, bounded by ``limit``; rows handed out count until they are
    settled, and room is kept for those that were promised it.

    Promises are made without the owner's lock, which a thread that waits in the midst of one could
    hold up for ever: by two figures, of which each side writes one, ``promised`` and ``until``.
    Whoever wants room moves its own first, then looks at the other's, and moves back if that is too
    much. So of two at the same moment at least one sees the other, and never do both take the last
    room.

    Attributes:
        limit: rows that may wait.
        promised: rows that were ever promised room, and those for which somebody is just trying.
            Written by whoever promises, one thread at a time.
        until: what ``promised`` may come to: ``limit`` less the rows held, and more by the promised
            ones that have become rows. Written by the owner.

    Rows belong to generations, numbered from 1: everything added so far is stored once
    :meth:`oldest_unsettled` is greater than :attr:`generation` was.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.promised = 0
        self.until = limit
        self._redeemed = 0
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
        return self.waiting + self._outside_rows

    def oldest_unsettled(self) -> int:
        """The oldest generation with rows that are not stored; ``NEVER`` if all are."""
        oldest = min(self._outside, default=NEVER)
        if self._taken is not None:
            oldest = min(oldest, self._taken.generation)
        return min(oldest, self._current.oldest) if self._current.size else oldest

    @property
    def reserved(self) -> int:
        """Rows that were promised room and are still to come."""
        return self.promised - self._redeemed

    def recount(self) -> None:
        """Find out how much room there is. To be called before adding rows, and after adding some
        that were not bounded.
        """
        self.until = self.limit - self.held + self._redeemed

    def redeem(self, rows: int) -> None:
        """``rows`` of those that were promised room have come."""
        self._redeemed += rows
        self.recount()

    def _free(self) -> int:
        return self.until - self.promised

    def _claim(self, rows: int) -> bool:
        """Take room for as many rows, if there is."""
        if self._free() < rows:
            return False
        self.until -= rows
        if self._free() >= 0:
            return True
        self._unclaim(rows)  # promised to others at this moment
        return False

    def _unclaim(self, rows: int) -> None:
        self.until += rows

    # --- in ----------------------------------------------------------------------------------

    def add_ones(
        self, counter: str, minute: int, keys: Sequence[str], *, bounded: bool = True
    ) -> int:
        """Add an increment of 1 for each of ``keys``; how many found no room."""
        rows = self._current
        table = rows.tables.get((counter, minute))
        large = table is not None and table.large
        if not large and (not bounded or self._claim(len(keys))):
            if table is None:
                table = rows.tables[counter, minute] = Table()
            before = len(table.counts)
            table.counts.update(keys)
            if bounded:
                self._unclaim(len(keys) - (len(table.counts) - before))
            return 0
        counted = Counter(keys)
        if large:
            return sum(
                self.add(counter, key, minute, count, count, bounded=bounded)
                for key, count in counted.items()
            )
        return self._add_while_there_is_room(counter, minute, counted)

    def _add_while_there_is_room(self, counter: str, minute: int, counted: Counter[str]) -> int:
        """The end of :meth:`add_ones` when not every key may find room."""
        rows = self._current
        room = len(counted)
        while room > 0 and not self._claim(room):
            room = min(room - 1, self._free())
        table = rows.tables.get((counter, minute))
        if table is None:
            if room <= 0:
                return counted.total()
            table = rows.tables[counter, minute] = Table()
        counts, dropped = table.counts, 0
        for key, count in counted.items():
            if key in counts:
                counts[key] += count
            elif room > 0:
                counts[key] = count
                room -= 1
            else:
                dropped += count
        self._unclaim(max(0, room))
        return dropped

    def add_batch(
        self, counter: str, minute: int, keys: Sequence[str], amounts: Sequence[int]
    ) -> int:
        """Add ``amounts[i]`` to ``keys[i]``, for each an increment; how many found no room."""
        least, most = min(amounts), max(amounts)
        if least == most == 1:
            return self.add_ones(counter, minute, keys)
        rows = self._current
        table = rows.tables.get((counter, minute))
        if (
            not -SMALL <= least <= most <= SMALL
            or (table is not None and table.large)
            or not self._claim(len(keys))
        ):
            return sum(
                self.add(counter, key, minute, amount, 1)
                for key, amount in zip(keys, amounts, strict=True)
            )
        if table is None:
            table = rows.tables[counter, minute] = Table()
        counts, extra = table.counts, table.extra
        before = len(counts)
        for key, amount in zip(keys, amounts, strict=True):
            counts[key] = counts.get(key, 0) + amount
            if amount != 1:
                extra[key] = extra.get(key, 0) + 1 - amount
        self._unclaim(len(keys) - (len(counts) - before))
        return 0

    def add(
        self, counter: str, key: str, minute: int, amount: int, calls: int, *, bounded: bool = True
    ) -> int:
        """Add ``calls`` increments that come to ``amount``; how many found no room: all or 0."""
        rows = self._current
        table = rows.tables.get((counter, minute))
        have = None if table is None else table.counts.get(key)
        if have is not None and table is not None and MIN_AMOUNT <= have + amount <= MAX_AMOUNT:
            amount += have
            calls += have + table.extra.pop(key, 0)
        elif bounded and not self._claim(1):
            return calls
        else:
            if table is None:
                table = rows.tables[counter, minute] = Table()
            if have is not None:
                # The sum leaves 64 bits: this row is complete, and another one begins.
                row = (counter, key, minute, have)
                rows.full.append((row, have + table.extra.pop(key, 0)))
        table.counts[key] = amount
        if calls != amount:
            table.extra[key] = calls - amount
        if not -LARGE <= amount <= LARGE:
            table.large = True
        return 0

    def add_named(self, names: Names, rows: list[Row], *, bounded: bool = True) -> int:
        """Add rows that travel under the app's own names, for each an increment; how many found no
        room: all or 0.
        """
        if bounded and not self._claim(len(rows)):
            return len(rows)
        self._current.add_named(names, rows)
        return 0

    # --- out ---------------------------------------------------------------------------------

    def take(self, limit: int, upto: int, *, lowest: int = 0, named: bool = True) -> Piece | None:
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
            piece = Piece(taken.generation, [row for row, _ in pairs], calls)
        elif not named:
            return None
        else:
            names, rows = taken.next_named()
            piece = Piece(taken.generation, rows, len(rows), names)
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
        pairs = taken.next(limit)
        for (counter, key, minute, amount), calls in pairs:
            # No bound: each of these rows was let in before, and merging makes them no more.
            self.add(counter, key, minute, amount, calls, bounded=False)
        self.recount()
        if taken.left:
            return True
        if taken.named:
            # Before those that have come since.
            number, named = 0, []
            for names, rows, _ in (*taken.named, *self._current.named):
                number += len(rows)
                named.append((names, rows, number))
            self._current.named = named
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

    def clear(self) -> None:
        """Forget everything."""
        self._current = Generation(self._current.number + 1, self._current.number + 1)
        self._taken = None
        self._outside.clear()
        self._outside_rows = 0
        self.recount()
