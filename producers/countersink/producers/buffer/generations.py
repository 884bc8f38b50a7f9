"""Rows that were accepted between two flushes (a generation), the bytes that a row is estimated to
take."""

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

# What things cost in memory at most, measured on CPython 3.11 to 3.14 (a test holds them against
# what the process really takes).
ROW_BYTES: Final = 224
"""A row without its key: its share of the table (90 in the midst of a resize, which is the worst),
of the table of `extra`, and its amounts.
"""
TABLE_BYTES: Final = 800
"""An empty table, with its place among the others."""
NAMED_BYTES: Final = 512
"""An entry with names of the app's own, without them and its rows."""
OUTSIDE_BYTES: Final = 160
"""A row that was handed out: encoded, in a parcel."""
MEMBERS_BYTES: Final = 400
"""The members of a row, without their hashes."""
HASH_MEMORY: Final = 192
"""A hash: its bytes, and its share of a set that was just resized."""
ROOM_BYTES: Final = TABLE_BYTES + ROW_BYTES + 350
"""A row with a table of its own and a key of 255 bytes of ASCII: room for rows is reckoned by this
before they are made, so that memory may be passed by what one chunk of larger ones takes."""

# The loop in C that Counter has works on a plain dictionary as well.
count_all = cast(Callable[[dict[RowKey, int], Sequence[RowKey]], None], Counter.update)
"""Add 1 to each of the keys."""

Named = tuple[Names, list[Row]]
"""The app's own names, and the rows that travel under them."""


Digest = bytes
"""The hash of a member."""

_ASCII_BYTES: Final = getsizeof("")
"""A text of ASCII besides its characters."""


def rows_bytes(keys: Sequence[RowKey]) -> int:
    """What rows with these keys take."""
    try:
        text = "".join(cast(Sequence[str], keys))
    except TypeError:  # not each is a text
        return len(keys) * ROW_BYTES + sum(map(key_size, keys))
    if text.isascii():  # a third of the price
        return len(keys) * (ROW_BYTES + _ASCII_BYTES) + len(text)
    return len(keys) * ROW_BYTES + sum(map(getsizeof, keys))


def key_size(key: RowKey) -> int:
    """What a row's key takes; of dimensions, as if no other row had the same texts."""
    if isinstance(key, str):
        return getsizeof(key)
    size = getsizeof(key)
    for pair in key:
        size += getsizeof(pair) + getsizeof(pair[0]) + getsizeof(pair[1])
    return size


def named_bytes(names: Names, rows: Sequence[NamedEvent]) -> int:
    """What an entry of ``rows`` under ``names`` takes."""
    members = HASH_MEMORY * sum([len(row) == 6 for row in rows])
    return NAMED_BYTES + sum(map(getsizeof, names)) + rows_bytes([row[1] for row in rows]) + members


class MinuteTable:
    """One counter's rows of one minute.

    Counting by 1, which is nearly all there is to do, is one call into C: `count_all`.

    Attributes:
        counts: key → amount.
        extra: key → increments minus amount; missing: 0. Counting by 1 does not change it.
        large: an amount is beyond ±``LARGE``, so that every addition has to be checked.
    """

    __slots__ = ("counts", "extra", "large")

    def __init__(self) -> None:
        # No Counter, which the garbage collector looks through: there may be a table for each row.
        self.counts: dict[RowKey, int] = {}
        self.extra: dict[RowKey, int] = {}
        self.large = False


class MembersTable:
    """One counter's sightings of one minute, whose members were hashed with one salt.

    As counting by 1, :meth:`Generation.count_sightings` is a few calls into C.

    Attributes:
        calls: key → how many sightings there were.
        hashes: key → the hashes of the different members.
    """

    __slots__ = ("calls", "hashes")

    def __init__(self) -> None:
        self.calls: dict[RowKey, int] = {}
        self.hashes: defaultdict[RowKey, set[Digest]] = defaultdict(set)


@dataclass(slots=True)
class Generation:
    """The rows that were accepted between two flushes.

    Attributes:
        members: (counter, minute, number of a salt) → sightings.
        cells: rows in the tables, those with members included. A figure, since there may be very
            many tables; so are
        named_rows: rows that have names; and
        bytes: what all rows take in memory.
    """

    number: int
    oldest: int  # of the generations whose rows are in here; smaller than `number` after a return
    tables: dict[tuple[str, int], MinuteTable] = field(default_factory=dict)
    full: list[tuple[PlainRow, int]] = field(default_factory=list)  # whose next sum left 64 bits
    named: list[Named] = field(default_factory=list)
    members: dict[tuple[str, int, int], MembersTable] = field(default_factory=dict)
    cells: int = 0
    named_rows: int = 0
    bytes: int = 0

    @property
    def size(self) -> int:
        """Rows, of all kinds; not 0 where the figures lack some, as adding was interrupted."""
        rows = self.cells + len(self.full) + self.named_rows
        return rows or int(bool(self.tables or self.members))

    def table(self, counter: str, minute: int) -> MinuteTable:
        """A new table."""
        table = self.tables[counter, minute] = MinuteTable()
        self.bytes += TABLE_BYTES
        return table

    def count_ones(self, table: MinuteTable, keys: Sequence[RowKey]) -> None:
        """Add 1 to each of ``keys``."""
        counts = table.counts
        if len(keys) < 8:  # which costs less than the call
            for key in keys:
                have = counts.get(key)
                if have is None:
                    self.cells += 1
                    self.bytes += ROW_BYTES + key_size(key)
                    have = 0
                counts[key] = have + 1
            return
        before = len(counts)
        count_all(counts, keys)
        if len(counts) > before:
            self.grown(counts, len(counts) - before)

    def grown(self, counts: dict[RowKey, int], new: int) -> None:
        """``counts`` has got as many new rows: the last ones."""
        self.cells += new
        self.bytes += rows_bytes(list(islice(reversed(counts), new)))

    def add_named(self, names: Names, rows: list[Row]) -> None:
        """Add rows that travel in an entry of their own."""
        self.named.append((names, rows))
        self.named_rows += len(rows)
        self.bytes += named_bytes(names, rows)

    def members_table(self, counter: str, minute: int, number: int) -> MembersTable:
        """The table of a counter, a minute and a salt, if need be a new one."""
        place = counter, minute, number
        table = self.members.get(place)
        if table is None:
            table = self.members[place] = MembersTable()
            self.bytes += TABLE_BYTES
        return table

    def count_sightings(
        self, table: MembersTable, keys: Sequence[RowKey], hashes: Iterable[Digest]
    ) -> None:
        """Add one sighting of each member to the key that stands in its place."""
        rows = len(table.calls)
        count_all(table.calls, keys)
        if len(table.calls) > rows:
            self.grown(table.calls, len(table.calls) - rows)
            self.bytes += (len(table.calls) - rows) * MEMBERS_BYTES
        of = table.hashes.__getitem__
        touched = set(keys)
        before = sum(map(len, map(of, touched)))
        deque(map(set.add, map(of, keys), hashes), maxlen=0)
        self.bytes += (sum(map(len, map(of, touched))) - before) * HASH_MEMORY

    def walk(self) -> Iterator[tuple[Row, int]]:
        """Each row without an id, and how many increments it stands for. The tables leave memory
        one by one.
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
    """The rows of a key: the sightings go with the first."""
    hashes = list(members)
    for at in range(0, len(hashes), MAX_HASHES):
        yield (*place, calls, number, b"".join(hashes[at : at + MAX_HASHES])), calls
        calls = 0


def _weight(row: Row) -> int:
    """As how many rows it is reckoned in a piece: each has ``MAX_ROW_BYTES`` on the wire."""
    return 1 if len(row) == 4 else 2 + len(row[5]) * 4 // (3 * MAX_ROW_BYTES)


class Taken:
    """A generation that no longer grows, handed out piece by piece.

    Attributes:
        left: rows without an id that were not handed out; 0 only when the last one was.
        named: those with names that were not handed out, in the order in which they came: of two
            that have the same the first is to count.
        named_rows: how many rows these are.
        bytes: what it takes in memory. All of it until its end, since a table leaves as a whole.

    A row with many members is handed out as several, and ``left`` may then be too small.
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
        generation: which.
        rows: the rows.
        increments: the increments folded into them.
        names: the app's own: these rows travel in an entry of their own. Empty: none.
    """

    generation: int
    rows: list[Row]
    increments: int
    names: Names = ()


def rows_at(events: Iterable[NamedEvent], now: int) -> list[Row]:
    """The rows of events; ``now``: the minute of those that have none."""
    rows: list[Row] = []
    for event in events:
        if len(event) == 6:
            rows.append(event)
        else:
            counter, key, at, amount = event
            rows.append((counter, key, now if at is None else at, amount))
    return rows
