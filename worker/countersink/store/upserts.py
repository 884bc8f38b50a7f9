"""Adding rows to a slot, with what the server will never take set apart."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence

from countersink.store import cells as sql
from countersink.store import key_caps, overflow
from countersink.store.adding import CellWriter, write_ledger
from countersink.store.amounts import Cell
from countersink.store.connection import Session
from countersink.store.dead import DeadRow
from countersink.store.errors import BadData
from countersink.store.key_caps import Capped
from countersink.store.merge import Incoming, Merged, Row
from countersink.store.overflow import OVERFLOW, Place
from countersink.store.policies import Policies

_Fate = tuple[Incoming, Row, BadData]


class Upserts:
    """The rows of some entries on their way into a slot, in a transaction the caller began.

    Attributes:
        merged: the rows as cells.
        dead: the rows that were refused, in arrival order of their cells.
        overflown: rows of new keys that there was no room for; known after :meth:`apply_ledger`.
    """

    def __init__(
        self, session: Session, slot: int, entries: Sequence[Incoming], policies: Policies
    ) -> None:
        self._session = session
        self._entries = entries
        self._policies = policies
        self._writer = CellWriter(session, slot)
        self._by_cell: dict[tuple[str, int, str], list[tuple[Incoming, Row]]] | None = None
        self._failed: list[_Fate] = []
        self._lost_cells = 0
        self._capped = Capped()
        self.merged = Merged(entries, policies)
        self.overflown = 0

    @property
    def dead(self) -> list[DeadRow]:
        """The refused rows as dead rows."""
        return [dead_row(entry, row, error) for entry, row, error in self._failed]

    @property
    def rows(self) -> int:
        """How many rows were counted."""
        return self.merged.rows - len(self._failed)

    @property
    def cells(self) -> int:
        """How many cells were written."""
        return self.merged.cells - self._lost_cells

    def apply(self) -> None:
        """Upsert every cell, in primary-key order; new keys beyond a counter's cap as one.

        Raises:
            RowsMissing: roll back; see :mod:`countersink.store.key_caps`.
            StoreError: anything but BadData, which ends in :attr:`dead`.
        """
        self._capped = key_caps.cap(self._session, self.merged, self._policies)
        size = sql.per_statement(self._session)
        for cells in self.merged.chunks(size):
            self._upsert(cells)

    def apply_ledger(self) -> None:
        """Add to the ledger what :meth:`apply` applied, one row per counter, and write down what
        had no room.
        """
        sums = self.merged.sums()
        if self._failed:
            self._correct(sums)
        write_ledger(self._session, self._writer.slot, sums)
        if self._capped.moved:
            rows = self._overflown_rows()
            self.overflown = sum(rows.values())
            overflow.write(self._session, self._writer.slot, rows)

    def remember(self) -> None:
        """Note which keys are there now; to be called once the transaction is committed."""
        for place, keys in self._capped.made.items():
            self._policies.made.add(*place, keys)

    def _overflown_rows(self) -> dict[Place, int]:
        """How many rows have gone to another key than theirs, by the day."""
        moved, days = self._capped.moved, self._capped.days
        counters = {counter for counter, _ in moved}
        refused = {(id(entry), row[0]) for entry, row, _ in self._failed}
        found: Counter[Place] = Counter()
        for entry in self._entries:
            for row in entry.rows:
                position, counter, key, minute, _ = row
                if counter in counters:
                    cell = counter, self._policies.bucket(counter, minute)
                    if key in moved.get(cell, ()) and (id(entry), position) not in refused:
                        found[counter, days[cell]] += 1
        return found

    def _correct(self, sums: dict[str, int]) -> None:
        """Take the refused rows out of the sums, and counters out of which nothing was applied."""
        rows = Counter(row[1] for entry in self._entries for row in entry.rows)
        for _, (_, counter, _, _, amount), _ in self._failed:
            sums[counter] -= amount
            rows[counter] -= 1
        for counter in list(sums):
            if rows[counter] == 0:
                del sums[counter]

    def _upsert(self, cells: Sequence[Cell]) -> None:
        """Upsert ``cells``; where they fail, their halves.

        A failing multi-row statement leaves nothing of itself behind, so what was done before stays
        done.
        """
        try:
            self._writer.write(cells)
        except BadData as error:
            if len(cells) > 1:
                middle = len(cells) // 2
                self._upsert(cells[:middle])
                self._upsert(cells[middle:])
            else:
                self._row_by_row(cells[0], error)

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
                    _, counter, key, minute, _ = row
                    bucket = self._policies.bucket(counter, minute)
                    if key in self._capped.moved.get((counter, bucket), ()):
                        key = OVERFLOW
                    self._by_cell[counter, bucket, key].append((entry, row))
        return self._by_cell[cell]


def dead_row(entry: Incoming, row: Row, error: BadData) -> DeadRow:
    """The dead row for a refused row."""
    position, counter, key, minute, amount = row
    payload = json.dumps([counter, key, minute, amount], separators=(",", ":")).encode()
    return DeadRow(entry.id, position, entry.stream, entry.at, error.reason, str(error), payload)
