"""Which rows of the queue a read is about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date

from countersink.store.policies import Policies
from countersink.store.ranges import Ranges, check_days
from countersink.store.reconciled import accepted
from countersink.store.views import View
from countersink.stream.decode import Decoded

Cell = tuple[str, int, str]
"""(counter, label of the bucket, key): what a total is kept for."""


@dataclass(frozen=True, slots=True)
class Queued:
    """One entry that was in a stream, without what the worker will not count either: bad rows, and
    those that are in what their bucket was set to.

    Attributes:
        at: Unix ms of the first attempt to send.
        counters: the wanted counters it has rows of, whatever the keys and days.
        cells: its wanted rows, added up.
    """

    at: int
    counters: frozenset[str]
    cells: dict[Cell, int]


def _anybody(name: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rows a read is about; None means all.

    Attributes:
        counter: one counter's name.
        keys: these keys only.
        start, end: days, both inclusive.
        time_zone: whose days; None for each counter's own.
        visible: where all counters are asked for, tells which of them may be seen.

    Raises:
        TypeError: a day is no ``datetime.date``.
        ValueError: the range ends before it begins.
    """

    counter: str | None = None
    keys: Sequence[str] | None = None
    start: date | None = None
    end: date | None = None
    time_zone: str | None = None
    visible: Callable[[str], bool] = field(default=_anybody, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        check_days(self.start, self.end)


class Folding:
    """Adds up the wanted rows of entries in the buckets that workers would count them in.

    Args:
        wanted: which rows.
        policies: which buckets.

    Raises:
        ValueError: the wanted time zone is none.
    """

    def __init__(self, wanted: Wanted, policies: Policies) -> None:
        self.policies = policies
        self._wanted = wanted
        self._keys = None if wanted.keys is None else frozenset(wanted.keys)
        self._ranges: dict[str, Ranges] = {}
        self._labels: dict[tuple[str, int], int | None] = {}
        # Most entries have the cells of those before them: one object for all of these.
        self._cells: dict[Cell, Cell] = {}
        self._counters: dict[frozenset[str], frozenset[str]] = {}

    def fold(self, entry: Decoded) -> Queued:
        """The wanted rows of an entry, added up by cell."""
        counters: set[str] = set()
        cells: dict[Cell, int] = {}
        before = self.policies.marked_before
        when = accepted(bytes.fromhex(entry.id), entry.at) if before else 0
        for _, counter, key, minute, amount in entry.rows:
            if self._wanted.counter is not None and counter != self._wanted.counter:
                continue
            if when < before and self.policies.mark(counter, minute, when) is not None:
                continue
            counters.add(counter)
            if self._keys is not None and key not in self._keys:
                continue
            label = self._label(counter, minute)
            if label is not None:
                cell: Cell = counter, label, key
                cell = self._cells.setdefault(cell, cell)
                cells[cell] = cells.get(cell, 0) + amount
        named = frozenset(counters)
        return Queued(entry.at, self._counters.setdefault(named, named), cells)

    def wants(self, cell: Cell) -> bool:
        """Whether a cell that another read has folded is wanted."""
        counter, label, key = cell
        return (
            self._wanted.counter in (None, counter)
            and (self._keys is None or key in self._keys)
            and self._inside(counter, label)
        )

    def _label(self, counter: str, minute: int) -> int | None:
        """The label of the bucket of a minute; None where it is not wanted."""
        if (counter, minute) not in self._labels:
            label = self.policies.bucket(counter, minute)
            self._labels[counter, minute] = label if self._inside(counter, label) else None
        return self._labels[counter, minute]

    def _inside(self, counter: str, label: int) -> bool:
        ranges = self._of(counter)
        return ranges is None or any(label in one for one in ranges)

    def _of(self, counter: str) -> Ranges:
        if counter not in self._ranges:
            wanted = self._wanted
            view = View(counter, self.policies.of(counter), wanted.time_zone)
            self._ranges[counter] = view.ranges(wanted.start, wanted.end)
        return self._ranges[counter]
