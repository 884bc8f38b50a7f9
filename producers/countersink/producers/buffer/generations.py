"""Generations: the rows accepted between two flushes (``Generation``), a generation that is being
handed out (``FrozenGeneration``), and estimates of the memory of rows in bytes."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from sys import getsizeof
from typing import Final, cast

from countersink.producers.batch import NamedEvent, Names
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import MAX_HASHES
from countersink.stream.entry import MAX_ROW_BYTES, PlainRow, Row

# Maxima of memory in bytes, measured on CPython 3.11 to 3.14 (a test compares them with the memory
# of a process).
ROW_BYTES: Final = 224
"""A row without its key: its share of its table (at most 90, during a resize) and of the table
`extra`, and its amounts.
"""
TABLE_BYTES: Final = 800
"""An empty table, with its item in the dictionary of tables."""
NAMED_BYTES: Final = 512
"""An entry with an id of the application, without the names and the rows."""
HANDED_OUT_BYTES: Final = 160
"""A row that was handed out: encoded, in a parcel."""
MEMBERS_BYTES: Final = 400
"""The members of a row, without their hashes."""
HASH_MEMORY: Final = 192
"""A hash, and its share of a set that was just resized."""
ROOM_BYTES: Final = TABLE_BYTES + ROW_BYTES + 350
"""A row with a table of its own and a key of 255 bytes of ASCII. Room is reserved by this figure:
one chunk of larger rows may exceed the limit on memory."""

# Counter's loop in C works on a plain dictionary, too.
count_all = cast(Callable[[dict[RowKey, int], Sequence[RowKey]], None], Counter.update)
"""Add 1 to each of the keys."""

Named = tuple[Names, list[Row]]
"""The texts that an entry's id is hashed from, and the rows of the entry."""


Digest = bytes
"""The hash of a member."""

_ASCII_BYTES: Final = getsizeof("")
"""Bytes of an ASCII text besides its characters."""


def rows_bytes(keys: Sequence[RowKey]) -> int:
    """Bytes of memory of rows with these keys."""
    try:
        text = "".join(cast(Sequence[str], keys))
    except TypeError:  # some keys are dimensions
        return len(keys) * ROW_BYTES + sum(map(key_size, keys))
    if text.isascii():  # three times as fast as the sum below
        return len(keys) * (ROW_BYTES + _ASCII_BYTES) + len(text)
    return len(keys) * ROW_BYTES + sum(map(getsizeof, keys))


def key_size(key: RowKey) -> int:
    """Bytes of memory of a row's key; of dimensions: with all their texts, shared ones as well."""
    if isinstance(key, str):
        return getsizeof(key)
    size = getsizeof(key)
    for pair in key:
        size += getsizeof(pair) + getsizeof(pair[0]) + getsizeof(pair[1])
    return size


def named_bytes(names: Names, rows: Sequence[NamedEvent]) -> int:
    """Bytes of memory of an entry with an id of the application."""
    members = HASH_MEMORY * sum([len(row) == 6 for row in rows])
    return NAMED_BYTES + sum(map(getsizeof, names)) + rows_bytes([row[1] for row in rows]) + members


class MinuteTable:
    """The rows of one counter and one minute.

    Adding 1, the usual increment, is one call into C: `count_all`.

    Attributes:
        counts: key → amount.
        extra: key → number of increments minus amount; missing: 0. Adding 1 does not change it.
        large: whether an amount is beyond ±``LARGE``, so that each addition must be checked.
    """

    __slots__ = ("counts", "extra", "large")

    def __init__(self) -> None:
        # Not a Counter, which the garbage collector would traverse: each row may need a table.
        self.counts: dict[RowKey, int] = {}
        self.extra: dict[RowKey, int] = {}
        self.large = False


class MembersTable:
    """The sightings of one counter and one minute, with members hashed with one salt.

    Attributes:
        calls: key → number of sightings.
        hashes: key → hashes of the different members.
    """

    __slots__ = ("calls", "hashes")

    def __init__(self) -> None:
        self.calls: dict[RowKey, int] = {}
        self.hashes: defaultdict[RowKey, set[Digest]] = defaultdict(set)


@dataclass(slots=True)
class Generation:
    """The rows accepted between two flushes.

    Attributes:
        oldest: the oldest generation of its rows; less than ``number`` after sightings that waited
            for a salt were added.
        tables: (counter, minute) → rows.
        full: rows whose next sum exceeds 64 bits, with their numbers of increments.
        named: rows with an id of the application.
        members: (counter, minute, number of a salt) → sightings.
        table_rows: number of rows in the tables, with members or without. This figure and the next
            two are kept because there may be very many tables.
        named_rows: number of rows in ``named``.
        bytes: memory of all rows.
    """

    number: int
    oldest: int
    tables: dict[tuple[str, int], MinuteTable] = field(default_factory=dict)
    full: list[tuple[PlainRow, int]] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    members: dict[tuple[str, int, int], MembersTable] = field(default_factory=dict)
    table_rows: int = 0
    named_rows: int = 0
    bytes: int = 0

    @property
    def size(self) -> int:
        """Number of all rows; not 0 if an interrupted call has added rows without counting them."""
        rows = self.table_rows + len(self.full) + self.named_rows
        return rows or int(bool(self.tables or self.members))

    def table(self, counter: str, minute: int) -> MinuteTable:
        """Create a table."""
        table = self.tables[counter, minute] = MinuteTable()
        self.bytes += TABLE_BYTES
        return table

    def count_ones(self, table: MinuteTable, keys: Sequence[RowKey]) -> None:
        """Add 1 to each of ``keys``."""
        counts = table.counts
        if len(keys) < 8:  # faster than `count_all`
            for key in keys:
                have = counts.get(key)
                if have is None:
                    self.table_rows += 1
                    self.bytes += ROW_BYTES + key_size(key)
                    have = 0
                counts[key] = have + 1
            return
        before = len(counts)
        count_all(counts, keys)
        if len(counts) > before:
            self.count_new_rows(counts, len(counts) - before)

    def count_new_rows(self, counts: dict[RowKey, int], new: int) -> None:
        """Add the last ``new`` keys of ``counts`` to the figures."""
        self.table_rows += new
        self.bytes += rows_bytes(list(islice(reversed(counts), new)))

    def add_named(self, names: Names, rows: list[Row]) -> None:
        """Add rows with an id of the application: an entry of their own."""
        self.named.append((names, rows))
        self.named_rows += len(rows)
        self.bytes += named_bytes(names, rows)

    def members_table(self, counter: str, minute: int, number: int) -> MembersTable:
        """The table of a counter, a minute and a salt; created if missing."""
        place = counter, minute, number
        table = self.members.get(place)
        if table is None:
            table = self.members[place] = MembersTable()
            self.bytes += TABLE_BYTES
        return table

    def count_sightings(
        self, table: MembersTable, keys: Sequence[RowKey], hashes: Iterable[Digest]
    ) -> None:
        """Add a sighting of the member with ``hashes[i]`` to ``keys[i]``; a few calls into C."""
        rows = len(table.calls)
        count_all(table.calls, keys)
        if len(table.calls) > rows:
            self.count_new_rows(table.calls, len(table.calls) - rows)
            self.bytes += (len(table.calls) - rows) * MEMBERS_BYTES
        hashes_of = table.hashes.__getitem__
        changed = set(keys)
        before = sum(map(len, map(hashes_of, changed)))
        deque(map(set.add, map(hashes_of, keys), hashes), maxlen=0)
        self.bytes += (sum(map(len, map(hashes_of, changed))) - before) * HASH_MEMORY

    def walk(self) -> Iterator[tuple[Row, int]]:
        """All rows without an id of the application, with their numbers of increments. Deletes each
        table after its last row.
        """
        yield from self.full
        tables = list(self.tables.items())
        tables.reverse()
        self.tables.clear()
        while tables:
            (counter, minute), table = tables.pop()
            extra = table.extra
            for key, amount in table.counts.items():
                calls = amount + extra.get(key, 0) if extra else amount
                yield (counter, key, minute, amount), calls
        while self.members:
            (counter, minute, number), seen = self.members.popitem()
            for key, calls in seen.calls.items():
                yield from _member_rows((counter, key, minute), number, seen.hashes[key], calls)


def _member_rows(
    place: tuple[str, RowKey, int], number: int, members: set[Digest], calls: int
) -> Iterator[tuple[Row, int]]:
    """The rows of a key and its members; the first row has all sightings as its amount."""
    hashes = list(members)
    for i in range(0, len(hashes), MAX_HASHES):
        yield (*place, calls, number, b"".join(hashes[i : i + MAX_HASHES])), calls
        calls = 0


def _weight(row: Row) -> int:
    """The row's size in the entry, in units of ``MAX_ROW_BYTES``, at least 1."""
    return 1 if len(row) == 4 else 2 + len(row[5]) * 4 // (3 * MAX_ROW_BYTES)


class FrozenGeneration:
    """A generation that no longer grows and is handed out in pieces.

    Attributes:
        left: number of rows without an id of the application that were not handed out; 0 only after
            the last row. Too small where a row with many members is handed out as several rows.
        named: rows with an id that were not handed out, in the order in which they were added: of
            equal ids the first counts.
        named_rows: number of rows in ``named``.
        bytes: memory of the generation; constant until the end, since tables are freed as a whole.
    """

    def __init__(self, rows: Generation) -> None:
        self.generation = rows.oldest
        self.named = deque(rows.named)
        self.named_rows = rows.named_rows
        self.bytes = rows.bytes
        self._weighed = bool(rows.members)
        self._total = rows.size - rows.named_rows
        self._rows = rows.walk()
        self._ahead = next(self._rows, None)
        self._given = 0

    @property
    def left(self) -> int:
        return 0 if self._ahead is None else max(1, self._total - self._given)

    def next_named(self) -> Named:
        names, rows = self.named.popleft()
        self.named_rows -= len(rows)
        return names, rows

    def next(self, limit: int) -> list[tuple[Row, int]]:
        if self._ahead is None:
            return []
        if self._weighed:
            piece = []
            while self._ahead is not None and limit > 0:
                piece.append(self._ahead)
                limit -= _weight(self._ahead[0])
                self._ahead = next(self._rows, None)
        else:
            piece = [self._ahead, *islice(self._rows, limit - 1)]
            self._ahead = next(self._rows, None)
        self._given += len(piece)
        return piece


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Rows of one generation, taken out of the buffer.

    Attributes:
        generation: number of the generation.
        rows: the rows.
        increments: number of increments folded into them.
        names: the texts that the id of their entry is hashed from; empty: no id of the application.
    """

    generation: int
    rows: list[Row]
    increments: int
    names: Names = ()


def rows_at(events: Iterable[NamedEvent], now: int) -> list[Row]:
    """The rows of events; events without a minute get the minute ``now``."""
    rows: list[Row] = []
    for event in events:
        if len(event) == 6:
            rows.append(event)
        else:
            counter, key, at, amount = event
            rows.append((counter, key, now if at is None else at, amount))
    return rows
