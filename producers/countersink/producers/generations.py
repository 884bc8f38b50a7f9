"""The rows that were accepted between two takings, growing and then handed out."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from countersink.producers.increments import Names
from countersink.stream.entry import Row

Named = tuple[Names, list[Row], int]
"""The app's own names, the rows that travel under them, and how many rows there are in the list up
to and including these: counted so that their sum can be told without adding it up, and cannot part
from them."""


@dataclass(slots=True)
class Table:
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
class Generation:
    """The rows that were accepted between two takings."""

    number: int
    oldest: int  # of the generations whose rows are in here; smaller than `number` after a return
    tables: dict[tuple[str, int], Table] = field(default_factory=dict)
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


class Taken:
    """A generation that no longer grows, handed out piece by piece.

    Attributes:
        left: rows without an id that were not handed out; 0 only when the last one was.
        named: those with names that were not handed out, in the order in which they came: of two
            that have the same the first is to count.
    """

    def __init__(self, rows: Generation) -> None:
        self.generation = rows.oldest
        self.named = deque(rows.named)
        self._named_given = 0
        self._rows = rows.walk()
        self._ahead = next(self._rows, None)
        self._total = rows.size - rows.named_rows
        self._given = 0

    @property
    def left(self) -> int:
        return 0 if self._ahead is None else max(1, self._total - self._given)

    @property
    def named_rows(self) -> int:
        return self.named[-1][2] - self._named_given if self.named else 0

    def next_named(self) -> tuple[Names, list[Row]]:
        names, rows, self._named_given = self.named.popleft()
        return names, rows

    def next(self, limit: int) -> list[tuple[Row, int]]:
        if self._ahead is None:
            return []
        piece = [self._ahead, *islice(self._rows, limit - 1)]
        self._ahead = next(self._rows, None)
        self._given += len(piece)
        return piece
