"""The statement that adds amounts to ``counter_slot``, its size and the slots of backfills; rows of
a failed statement that become dead letters are found here by halving, with their detail.

In a transaction that the caller began. What the server will never take is set apart.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter, mul
from types import MappingProxyType
from typing import Final
from zlib import crc32

from countersink.runtime.dead_letter import DeadReason
from countersink.runtime.limits import is_name
from countersink.runtime.members import hashes_text
from countersink.store import sql
from countersink.store.apply import key_caps
from countersink.store.apply.amounts import Amounts, Cell, Incoming, Merged, Row
from countersink.store.apply.dead import DeadRow
from countersink.store.apply.key_caps import OVERFLOW, Capped
from countersink.store.connection import Session
from countersink.store.counters.policies import Policies
from countersink.store.errors import BadCells, BadData
from countersink.store.ledger.postings import BucketSum, BucketSums, key_weight, post
from countersink.store.visitors.rows import CellPlace, unite

FIRST_SLOT: Final = 512
SLOTS: Final = 128
"""Backfills and their undoing add to the slots from :data:`FIRST_SLOT` on."""

_INSERT: Final = "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES "
_BUCKET: Final = itemgetter(0, 1)
NO_MEMBERS: Final[Mapping[CellPlace, Sequence[bytes]]] = MappingProxyType({})


class CellWriter:
    """Writes cells into one slot, and posts what it wrote; for one transaction."""

    def __init__(self, session: Session, slot: int) -> None:
        self._session = session
        self._clause = session.dialect.upsert_add("counter_slot", "amount")
        self._room = sql.room(session)
        self._tail = f"', {slot:d}, "
        self._heads: dict[tuple[str, int], str] = {}
        self._written = BucketSums()
        self.slot = slot

    def write(self, cells: Sequence[Cell]) -> None:
        """Upsert cells by one statement, as many as :func:`countersink.store.sql.per_statement`
        says at most.

        Raises:
            BadData: the server will not take one of them; the statement has done nothing then.
            StoreError: as any statement.
        """
        try:
            values: list[str] = []
            sums: list[BucketSum] = []
            if _BUCKET(cells[0]) == _BUCKET(cells[-1]):
                sums.append(self._add_bucket(cells, values))
            else:
                for _, group in groupby(cells, _BUCKET):
                    sums.append(self._add_bucket(list(group), values))
        except UnicodeEncodeError as error:
            raise BadData(
                f"not to be written as UTF-8: {error}", reason=DeadReason.WRONG_ENCODING
            ) from error
        except (ValueError, OverflowError) as error:
            raise BadData(str(error), reason=DeadReason.OUT_OF_RANGE) from error
        statement = f"{_INSERT}{', '.join(values)}{self._clause}"
        if 4 * len(statement) > self._room and len(statement.encode()) > self._room:
            raise BadData("the row does not fit max_allowed_packet", reason=DeadReason.TOO_LONG)
        self._session.execute(statement)
        for one in sums:
            self._written.add(*one)

    def write_good(self, cells: Sequence[Cell], refused: Callable[[Cell, BadData], object]) -> None:
        """Upsert cells; where they fail, their halves, until those that fail are known.

        A failing multi-row statement leaves nothing of itself behind, so what was done before stays
        done.

        Args:
            cells: as for :meth:`write`.
            refused: told of each cell that the server will not take.
        """
        try:
            self.write(cells)
        except BadData as error:
            if len(cells) == 1:
                refused(cells[0], error)
                return
            middle = len(cells) // 2
            self.write_good(cells[:middle], refused)
            self.write_good(cells[middle:], refused)

    def post(self) -> None:
        """Post what was written, one row of the ledger per counter."""
        post(self._session, self.slot, self._written.postings().items())

    def _add_bucket(self, cells: Sequence[Cell], values: list[str]) -> BucketSum:
        """Add the literals of one bucket's cells; what they add up to."""
        counter, bucket, key, amount = cells[0]
        head, tail = self._head(counter, bucket), self._tail
        if len(cells) == 1:
            encoded = key.encode()
            values.append(f"{head}{encoded.hex()}{tail}{amount:d})")
            return counter, bucket, amount, amount * key_weight(encoded)
        keys = [key.encode() for _, _, key, _ in cells]
        amounts = [amount for _, _, _, amount in cells]
        values += [
            f"{head}{key.hex()}{tail}{amount:d})" for key, amount in zip(keys, amounts, strict=True)
        ]
        # A key's weight is a square plus one: key_weight, called for each, would cost five times
        # as much.
        crcs = [*map(crc32, keys)]
        total = sum(amounts)
        return counter, bucket, total, sum(map(mul, map(mul, crcs, crcs), amounts)) + total

    def _head(self, counter: str, bucket: int) -> str:
        head = self._heads.get((counter, bucket))
        if head is None:
            head = self._heads[counter, bucket] = sql.head(self._session, counter, bucket)
        return head


def slot_of(session: Session) -> int:
    """Where a backfill on this connection adds, so that hardly two wait for each other."""
    ((number,),) = session.query("SELECT CONNECTION_ID()")
    return FIRST_SLOT + int(number) % SLOTS


def add(
    session: Session,
    slot: int,
    amounts: Amounts,
    members: Mapping[CellPlace, Sequence[bytes]] = NO_MEMBERS,
) -> None:
    """Add ``amounts`` to a slot, in primary-key order, and to the ledger; and unite ``members``,
    hashes of 8 bytes, with those of these cells.

    Raises:
        BadCells: some of the cells cannot be written: roll back.
        StoreError: as any statement.
    """
    writer = CellWriter(session, slot)
    bad: list[tuple[Cell, BadData]] = []
    for cells in amounts.chunks(sql.per_statement(session)):
        writer.write_good(cells, lambda cell, error: bad.append((cell, error)))
    if not bad:
        for place, error in unite(session, slot, members).items():
            counter, bucket, key = place
            bad.append(((*place, amounts.of(counter)[bucket][key]), error))
    if bad:
        raise BadCells(bad)
    writer.post()


_Fate = tuple[Incoming, Row, BadData]
_SAVEPOINT: Final = "countersink_cells"


class Upserts:
    """The rows of some entries on their way into a slot, in a transaction the caller began.

    Attributes:
        merged: the rows as cells.
        dead: the rows that were refused, in arrival order of their cells.
    """

    def __init__(
        self, session: Session, slot: int, entries: Sequence[Incoming], policies: Policies
    ) -> None:
        self._session = session
        self._policies = policies
        self._slot = slot
        self._refused: list[_Fate] = []
        self._begin(entries)

    def _begin(self, entries: Sequence[Incoming]) -> None:
        """Begin with what is to be counted, of which nothing is written."""
        self._entries = entries
        self._writer = CellWriter(self._session, self._slot)
        self._by_cell: dict[tuple[str, int, str], list[tuple[Incoming, Row]]] | None = None
        self._failed: list[_Fate] = []
        self._lost_cells = 0
        self._capped = Capped()
        self.merged = Merged(entries, self._policies)

    @property
    def dead(self) -> list[DeadRow]:
        """The refused rows as dead rows."""
        return [dead_row(entry, row, error) for entry, row, error in self._refused + self._failed]

    @property
    def overflown(self) -> int:
        """How many new keys there was no room for, those of each bucket."""
        return self._capped.keys

    @property
    def rows(self) -> int:
        """How many rows were counted."""
        return self.merged.rows - len(self._failed)  # those taken out before are not in it

    @property
    def cells(self) -> int:
        """How many cells were written."""
        return self.merged.cells - self._lost_cells

    def apply(self) -> None:
        """Upsert every cell, in primary-key order; new keys beyond a counter's cap as one.

        A row that breakdowns count as well is counted in all its cells or in none, and with its
        members or not at all. So where one of them cannot be, everything is taken back and begun
        again without that row.

        Raises:
            RowsMissing: roll back; see :mod:`countersink.store.apply.key_caps`.
            StoreError: anything but BadData, which ends in :attr:`dead`.
        """
        if not self.merged.fanned_out and not any(entry.seen for entry in self._entries):
            self._write()
            return
        while True:
            self._session.execute(f"SAVEPOINT {_SAVEPOINT}")
            self._write()
            if not self._failed:
                self._session.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
                return
            self._session.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            # Each once: it may have failed in several cells.
            gone = {(id(fate[0]), fate[1][0]): fate for fate in self._failed}
            self._refused += gone.values()
            self._begin([_without(entry, gone) for entry in self._entries])

    def _write(self) -> None:
        self._capped = key_caps.cap(self._session, self.merged, self._policies)
        size = sql.per_statement(self._session)
        for cells in self.merged.chunks(size):
            self._writer.write_good(cells, self._row_by_row)
        if not self._failed:
            self._unite()

    def _unite(self) -> None:
        """Unite the members of the rows with those of the cells, which are locked by now."""
        members: dict[CellPlace, list[bytes]] = {}
        for entry in self._entries:
            for row in entry.rows if entry.seen else ():
                if row[0] in entry.seen:
                    for place in self._places(row):
                        members.setdefault(place, []).append(entry.seen[row[0]].hashes)
        for place, error in unite(self._session, self._writer.slot, members).items():
            self._failed += [
                (entry, row, error) for entry, row in self._rows_of(place) if row[0] in entry.seen
            ]

    def apply_ledger(self) -> None:
        """Add to the ledger what :meth:`apply` applied, one row per counter."""
        self._writer.post()

    def remember(self) -> None:
        """Note which keys are there now; to be called once the transaction is committed."""
        for place, keys in self._capped.made.items():
            self._policies.made.add(*place, keys)

    def _row_by_row(self, cell: Cell, error: BadData) -> None:
        counter, bucket, key, _ = cell
        rows = self._rows_of((counter, bucket, key))
        failed = [(*rows[0], error)] if len(rows) == 1 else []
        for entry, row in rows if len(rows) > 1 else ():
            try:
                self._writer.write([(counter, bucket, key, row[4])])
            except BadData as refused:
                failed.append((entry, row, refused))
        self._failed += failed
        self._lost_cells += len(failed) == len(rows)

    def _rows_of(self, cell: tuple[str, int, str]) -> list[tuple[Incoming, Row]]:
        if self._by_cell is None:
            self._by_cell = defaultdict(list)
            for entry in self._entries:
                for row in entry.rows:
                    for place in self._places(row):
                        self._by_cell[place].append((entry, row))
        return self._by_cell[cell]

    def _places(self, row: Row) -> Iterator[CellPlace]:
        """The cells that a row goes to."""
        _, counter, key, minute, _ = row
        for name, bucket, own in self._policies.cells(counter, key, minute):
            over = own in self._capped.moved.get((name, bucket), ())
            yield name, bucket, OVERFLOW if over else own


def _without(entry: Incoming, gone: Container[tuple[int, int]]) -> Incoming:
    """An entry without those of its rows that are named by it and their positions."""
    left = [row for row in entry.rows if (id(entry), row[0]) not in gone]
    return entry if len(left) == len(entry.rows) else replace(entry, rows=left)


def dead_row(entry: Incoming, row: Row, error: BadData) -> DeadRow:
    """The dead row for a refused row."""
    position, counter, key, minute, amount = row
    items = [counter, key if isinstance(key, str) else dict(key), minute, amount]
    if position in entry.seen:
        seen = entry.seen[position]
        items += [seen.number, hashes_text(seen.hashes)]
    payload = json.dumps(items, separators=(",", ":")).encode()
    return DeadRow(
        entry.id,
        position,
        entry.stream,
        entry.at,
        error.reason,
        str(error),
        payload,
        counter=counter if is_name(counter) else "",
    )
