"""Generations: the rows accepted between two flushes (``Generation``), a generation whose rows are
being handed out to be sent (``FrozenGeneration``), and estimates of the memory that rows take, in
bytes.
"""

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
"""Bytes that a row takes without its key: for its amounts, and for its share of two dictionaries,
``counts`` (at most 90, during a resize) and ``extra``."""
TABLE_BYTES: Final = 800
"""Bytes that an empty :class:`MinuteTable` or :class:`MembersTable` takes, with its item in the
dictionary of tables."""
NAMED_BYTES: Final = 512
"""Bytes that an entry with an id of the application takes, without the id and without its rows."""
HANDED_OUT_BYTES: Final = 160
"""Bytes that a row takes after it was handed out: encoded, in a parcel."""
MEMBERS_BYTES: Final = 400
"""Bytes that the set of a row's members takes, without their hashes."""
HASH_MEMORY: Final = 192
"""Bytes that the hash of a member takes, with its share of a set that was just resized."""
ROOM_BYTES: Final = TABLE_BYTES + ROW_BYTES + 350
"""Bytes that a row takes that has a table of its own and a key of 255 bytes of ASCII. Room is
reserved by this figure, so one chunk of larger rows may exceed the limit on memory."""

# Counter's loop in C works on a plain dictionary, too.
count_all = cast(Callable[[dict[RowKey, int], Sequence[RowKey]], None], Counter.update)
"""Function that adds 1 to the amount of each key."""

Named = tuple[Names, list[Row]]
"""The texts that are hashed to an entry's id, and the rows of the entry."""


Digest = bytes
"""The hash of a member."""

_ASCII_BYTES: Final = getsizeof("")
"""Bytes of memory that an ASCII text takes besides its characters."""


def rows_bytes(keys: Sequence[RowKey]) -> int:
    """Return the most bytes of memory that rows with these keys take, without their tables."""
    try:
        text = "".join(cast(Sequence[str], keys))
    except TypeError:  # some keys are dimensions
        return len(keys) * ROW_BYTES + sum(map(key_size, keys))
    if text.isascii():  # three times as fast as the sum below
        return len(keys) * (ROW_BYTES + _ASCII_BYTES) + len(text)
    return len(keys) * ROW_BYTES + sum(map(getsizeof, keys))


def key_size(key: RowKey) -> int:
    """Return the number of bytes of memory that a row's key takes. Dimensions count with all their
    texts, even if other rows share these texts.
    """
    if isinstance(key, str):
        return getsizeof(key)
    size = getsizeof(key)
    for pair in key:
        size += getsizeof(pair) + getsizeof(pair[0]) + getsizeof(pair[1])
    return size


def named_bytes(names: Names, rows: Sequence[NamedEvent]) -> int:
    """Return the most bytes of memory that an entry with an id of the application takes."""
    members = HASH_MEMORY * sum([len(row) == 6 for row in rows])
    return NAMED_BYTES + sum(map(getsizeof, names)) + rows_bytes([row[1] for row in rows]) + members


class MinuteTable:
    """The rows of one counter in one minute.

    The usual increment adds 1. Many such increments are added by one call of ``count_all``, which
    is C code.

    Attributes:
        counts: maps each key to its amount.
        extra: maps a key to the number of its increments minus its amount. A missing key stands for
            0, so increments by 1 need not change it.
        large: whether an amount is beyond ±``LARGE``, so that every sum must be checked for
            overflow.
    """

    __slots__ = ("counts", "extra", "large")

    def __init__(self) -> None:
        # Not a Counter, which the garbage collector would traverse: each row may need a table.
        self.counts: dict[RowKey, int] = {}
        self.extra: dict[RowKey, int] = {}
        self.large = False


class MembersTable:
    """The sightings of one counter in one minute, with members that are hashed with the same salt.

    Attributes:
        calls: maps each key to the number of its sightings.
        hashes: maps each key to the hashes of its different members.
    """

    __slots__ = ("calls", "hashes")

    def __init__(self) -> None:
        self.calls: dict[RowKey, int] = {}
        self.hashes: defaultdict[RowKey, set[Digest]] = defaultdict(set)


@dataclass(slots=True)
class Generation:
    """The rows accepted between two flushes.

    Attributes:
        number: the number of the generation.
        oldest: number of the generation in which the oldest of these rows was accepted. It may be
            less than ``number``, because sightings that waited for a salt keep the generation in
            which they were accepted.
        tables: maps (counter, minute) to the rows.
        full: rows to which nothing is added any more, because the sum would exceed 64 bits; each
            with the number of its increments.
        named: entries to which the application gave an id.
        members: maps (counter, minute, number of a salt) to the sightings.
        table_rows: number of rows in ``tables`` and ``members``. This number and the next two are
            kept up to date, because adding them up would take long where there are very many
            tables.
        named_rows: number of rows in ``named``.
        bytes: bytes of memory that all rows take.
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
        """Number of all rows. If a call was interrupted before it had counted its new rows, this
        number is too small, but not 0.
        """
        rows = self.table_rows + len(self.full) + self.named_rows
        return rows or int(bool(self.tables or self.members))

    def table(self, counter: str, minute: int) -> MinuteTable:
        """Create the table of a counter and a minute and return it. There must be no such table
        yet.
        """
        table = self.tables[counter, minute] = MinuteTable()
        self.bytes += TABLE_BYTES
        return table

    def count_ones(self, table: MinuteTable, keys: Sequence[RowKey]) -> None:
        """Add 1 to the amount of each of ``keys`` in ``table``."""
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
        """Add the last ``new`` keys of ``counts``, which were just added to a table, to the figures
        ``table_rows`` and ``bytes``.
        """
        self.table_rows += new
        self.bytes += rows_bytes(list(islice(reversed(counts), new)))

    def add_named(self, names: Names, rows: list[Row]) -> None:
        """Add an entry with an id of the application. ``names`` are the texts hashed to its id."""
        self.named.append((names, rows))
        self.named_rows += len(rows)
        self.bytes += named_bytes(names, rows)

    def members_table(self, counter: str, minute: int, number: int) -> MembersTable:
        """Return the table with the sightings of a counter, a minute and the salt ``number``.
        Create it if it is missing.
        """
        place = counter, minute, number
        table = self.members.get(place)
        if table is None:
            table = self.members[place] = MembersTable()
            self.bytes += TABLE_BYTES
        return table

    def count_sightings(
        self, table: MembersTable, keys: Sequence[RowKey], hashes: Iterable[Digest]
    ) -> None:
        """For each i, add a sighting under ``keys[i]`` of the member whose hash is ``hashes[i]``,
        by a few calls into C.
        """
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
        """Yield all rows without an id of the application, each with the number of its increments.
        Empties ``tables`` and ``members``; each table is freed after its last row.
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
    """Yield the rows of one key that has members, each with its number of sightings. Many members
    need several rows: the first row counts all sightings, the others count 0.

    Args:
        place: (counter, key, minute).
        number: the number of the salt.
        members: the hashes of the different members.
        calls: the number of sightings.
    """
    hashes = list(members)
    for i in range(0, len(hashes), MAX_HASHES):
        yield (*place, calls, number, b"".join(hashes[i : i + MAX_HASHES])), calls
        calls = 0


def _weight(row: Row) -> int:
    """Return how much space a row takes in an entry, in units of ``MAX_ROW_BYTES``; at least 1."""
    return 1 if len(row) == 4 else 2 + len(row[5]) * 4 // (3 * MAX_ROW_BYTES)


class FrozenGeneration:
    """A generation that no longer grows and whose rows are handed out in pieces.

    Attributes:
        generation: number of the generation in which the oldest row was accepted.
        left: number of rows without an id of the application that were not handed out yet, or
            fewer: a row with many members is handed out as several rows, and each takes 1 off.
            ``left`` becomes 0 only with the last of all rows.
        named: entries with an id of the application that were not handed out yet, in the order in
            which they were added. The order matters because only the first of several equal ids is
            counted.
        named_rows: number of rows in ``named``.
        bytes: bytes of memory that the generation took at first. They count in full until its last
            row was handed out.
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
    """Rows of one generation that were taken out of the buffer.

    Attributes:
        generation: number of the generation that the rows belong to.
        rows: the rows.
        increments: number of increments folded into them.
        names: the texts that are hashed to the id of their entry; empty where the application gave
            no id.
    """

    generation: int
    rows: list[Row]
    increments: int
    names: Names = ()


def rows_at(events: Iterable[NamedEvent], now: int) -> list[Row]:
    """Turn events into rows. An event without a minute gets ``now``, the present minute."""
    rows: list[Row] = []
    for event in events:
        if len(event) == 6:
            rows.append(event)
        else:
            counter, key, at, amount = event
            rows.append((counter, key, now if at is None else at, amount))
    return rows
