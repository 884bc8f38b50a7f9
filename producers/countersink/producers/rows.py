"""The coalescing buffer: one amount per (counter, key, minute). Its owner holds a lock."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from countersink.producers.increments import Names
from countersink.stream.entry import Row
from countersink.stream.limits import MAX_AMOUNT, MIN_AMOUNT

Named = tuple[Names, list[Row], int]
"""The app's own names, the rows that travel under them, and how many rows there are in the list up
to and including these: counted so that their sum can be told without adding it up, and cannot part
from them."""

NEVER: Final = 1 << 62
"""A generation later than all."""
SMALL: Final = 1 << 31
LARGE: Final = 1 << 62
"""An amount up to this stays in 64 bits as long as increments are ``SMALL``: no minute has time for
more than 2**31 of them.
"""


@dataclass(slots=True)
class _Table:
    """One counter's rows of one minute.

    Counting by 1, which is nearly all there is to do, is one call into C: `counts.update(keys)`.

    Attributes:
        counts: key → amount.
        extra: key → increments minus amount; missing: 0. Counting by 1 does not change it.
        large: an amount is beyond ±``LARGE``, so that every addition has to be checked.
    """

    counts: Counter[str] = field(default_factory=Counter)
    extra: dict[str, int] = field(default_factory=dict)
    large: bool = False


@dataclass(slots=True)
class _Generation:
    """The rows that were accepted between two takings."""

    number: int
    oldest: int  # of the generations whose rows are in here; smaller than `number` after a return
    tables: dict[tuple[str, int], _Table] = field(default_factory=dict)
    full: list[tuple[Row, int]] = field(default_factory=list)  # whose next sum left 64 bits
    named: list[Named] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Rows, of all kinds. Counted anew: a figure kept beside the tables could part from them
        when a caller that folds is interrupted by an exception of a signal handler.
        """
        tables = list(self.tables.values())
        return sum([len(each.counts) for each in tables]) + len(self.full) + self.named_rows

    @property
    def named_rows(self) -> int:
        """Rows that have names."""
        return self.named[-1][2] if self.named else 0

    def add_named(self, names: Names, rows: list[Row]) -> None:
        """Add rows that travel in an entry of their own."""
        self.named.append((names, rows, self.named_rows + len(rows)))

    def walk(self) -> Iterator[tuple[Row, int]]:
        """Each row without an id, and how many increments it stands for."""
        yield from self.full
        for (counter, minute), table in self.tables.items():
            extra = table.extra
            for key, amount in table.counts.items():
                calls = amount + extra.get(key, 0) if extra else amount
                yield (counter, key, minute, amount), calls


class _Taken:
    """A generation that no longer grows, handed out piece by piece.

    Attributes:
        left: rows without an id that were not handed out; 0 only when the last one was.
    """

    def __init__(self, rows: _Generation) -> None:
        self.generation = rows.oldest
        self.named = rows.named
        self._rows = rows.walk()
        self._ahead = next(self._rows, None)
        self._total = rows.size - rows.named_rows
        self._given = 0

    @property
    def left(self) -> int:
        return 0 if self._ahead is None else max(1, self._total - self._given)

    @property
    def named_rows(self) -> int:
        return self.named[-1][2] if self.named else 0

    def next(self, limit: int) -> list[tuple[Row, int]]:
        if self._ahead is None:
            return []
        piece = [self._ahead, *islice(self._rows, limit - 1)]
        self._ahead = next(self._rows, None)
        self._given += len(piece)
        return piece


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

    Rows belong to generations, numbered from 1: everything added so far is stored once
    :meth:`oldest_unsettled` is greater than :attr:`generation` was.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0
        self._current = _Generation(1, 1)
        self._taken: _Taken | None = None
        self._outside: dict[int, int] = {}
        self._outside_rows = 0
        self._room: int | None = None  # for further rows; None: to be counted

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

    def recount(self) -> None:
        """Forget how much room there was thought to be. To be called before adding rows."""
        self._room = None

    def _free(self) -> int:
        room = self._room
        if room is None:
            room = self._room = self.limit - self.held - self.reserved
        return room

    def _took(self, rows: int) -> None:
        self._room = self._free() - rows

    def reserve(self, rows: int) -> None:
        """Keep room for ``rows`` rows to come; less than none: give it back."""
        self._room = self._free() - rows
        self.reserved += rows

    def has_room(self, rows: int) -> bool:
        """Whether ``rows`` further rows would fit."""
        return self._free() >= rows

    # --- in ----------------------------------------------------------------------------------

    def add_ones(self, counter: str, minute: int, keys: Sequence[str]) -> int:
        """Add an increment of 1 for each of ``keys``; how many found no room."""
        rows = self._current
        table = rows.tables.get((counter, minute))
        if self._free() >= len(keys) and not (table is not None and table.large):
            if table is None:
                table = rows.tables[counter, minute] = _Table()
            before = len(table.counts)
            table.counts.update(keys)
            self._took(len(table.counts) - before)
            return 0
        counted = Counter(keys)
        if table is not None and table.large:
            return sum(
                self.add(counter, key, minute, count, count) for key, count in counted.items()
            )
        return self._add_while_there_is_room(counter, minute, counted)

    def _add_while_there_is_room(self, counter: str, minute: int, counted: Counter[str]) -> int:
        """The end of :meth:`add_ones` when not every key may find room."""
        rows = self._current
        room = self._free()
        table = rows.tables.get((counter, minute))
        if table is None:
            if room <= 0:
                return counted.total()
            table = rows.tables[counter, minute] = _Table()
        counts, dropped = table.counts, 0
        for key, count in counted.items():
            if key in counts:
                counts[key] += count
            elif room > 0:
                counts[key] = count
                room -= 1
            else:
                dropped += count
        self._room = room
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
            self._free() < len(keys)
            or not -SMALL <= least <= most <= SMALL
            or (table is not None and table.large)
        ):
            return sum(
                self.add(counter, key, minute, amount, 1)
                for key, amount in zip(keys, amounts, strict=True)
            )
        if table is None:
            table = rows.tables[counter, minute] = _Table()
        counts, extra = table.counts, table.extra
        before = len(counts)
        for key, amount in zip(keys, amounts, strict=True):
            counts[key] = counts.get(key, 0) + amount
            if amount != 1:
                extra[key] = extra.get(key, 0) + 1 - amount
        self._took(len(counts) - before)
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
        elif bounded and self._free() <= 0:
            return calls
        else:
            if table is None:
                table = rows.tables[counter, minute] = _Table()
            if have is not None:
                # The sum leaves 64 bits: this row is complete, and another one begins.
                row = (counter, key, minute, have)
                rows.full.append((row, have + table.extra.pop(key, 0)))
            self._took(1)
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
        if bounded and self._free() < len(rows):
            return len(rows)
        self._current.add_named(names, rows)
        self._took(len(rows))
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
            self._taken, self._current = _Taken(self._current), _Generation(number, number)
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
            names, rows, _ = taken.named.pop()
            piece = Piece(taken.generation, rows, len(rows), names)
        if not taken.left and not taken.named:
            self._taken = None
        self._room = None
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
        self._room = None
        for (counter, key, minute, amount), calls in pairs:
            # No bound: each of these rows was let in before, and merging makes them no more.
            self.add(counter, key, minute, amount, calls, bounded=False)
        self._room = None
        if taken.left:
            return True
        for names, rows, _ in taken.named:
            self._current.add_named(names, rows)
        self._taken = None
        return False

    def settle(self, generation: int, rows: int) -> None:
        """``rows`` rows of ``generation`` that were handed out are stored."""
        self._room = None
        self._outside_rows -= rows
        left = self._outside[generation] - rows
        if left:
            self._outside[generation] = left
        else:
            del self._outside[generation]

    def clear(self) -> None:
        """Forget everything."""
        self._room = None
        self._current = _Generation(self._current.number + 1, self._current.number + 1)
        self._taken = None
        self._outside.clear()
        self._outside_rows = 0
