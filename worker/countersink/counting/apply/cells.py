"""Writes cells: ``CellWriter`` adds amounts to ``counter_slot`` in one slot, and posts their sums
to the ledger; ``add`` also adds members (visitors, say) to sketches; ``upsert`` adds rows of
entries.

The caller begins the transaction, and has validated each row. (A value that the server refuses
makes the whole transaction fail.) ``run_again`` repeats a transaction that failed for one of two
reasons. If rows of ``counter_keys`` were missing, it inserts them first. If members were refused,
it leaves out the rows that contain them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter, mul
from types import MappingProxyType
from typing import Any, Final, TypeVar
from zlib import crc32

from countersink.counting.apply import key_caps
from countersink.counting.apply.amounts import Amounts, Cell, Incoming, merged
from countersink.counting.apply.key_caps import Capped
from countersink.counting.counters.catalog import Catalog
from countersink.counting.errors import RefusedMembers, RowsMissing
from countersink.counting.ledger import BucketSums, post
from countersink.counting.visitors.rows import CellPlace, unite
from countersink.database import sql
from countersink.database.session import Session
from countersink.runtime.dead_letter import RowRefusal
from countersink.runtime.limits import text_bytes

_INSERT: Final = (
    "INSERT INTO counter_slot (counter, bucket, counter_key, width, slot, amount) VALUES "
)
_BUCKET: Final = itemgetter(0, 1)
NO_MEMBERS: Final[Mapping[CellPlace, Sequence[bytes]]] = MappingProxyType({})

Result = TypeVar("Result")


class CellWriter:
    """Writes cells into ``slot``, and posts their sums to the ledger, within one transaction: the
    open one of ``session``.
    """

    def __init__(self, session: Session, slot: int) -> None:
        self._session = session
        self._clause = session.dialect.upsert_add("counter_slot", "amount")
        self._literals: dict[tuple[str, int], tuple[str, str]] = {}
        self._written = BucketSums()
        self.slot = slot

    def write(self, cells: Sequence[Cell]) -> None:
        """Add the amounts of some cells by one statement.

        Args:
            cells: at least one and at most :data:`countersink.database.sql.CELLS_PER_STATEMENT`
                cells, in the order of :meth:`Amounts.chunks`.

        Raises:
            StoreError: the statement failed.
        """
        values: list[str] = []
        if _BUCKET(cells[0]) == _BUCKET(cells[-1]):
            self._add_bucket(cells, values)
        else:
            for _, group in groupby(cells, _BUCKET):
                self._add_bucket(list(group), values)
        self._session.execute(f"{_INSERT}{', '.join(values)}{self._clause}")

    def post(self) -> None:
        """Post the sums of all written cells to the ledger, one row for each bucket of a counter.
        Call this once, after the last :meth:`write`.
        """
        post(self._session, self.slot, self._written)

    def _add_bucket(self, cells: Sequence[Cell], values: list[str]) -> None:
        """Append the SQL literals of one bucket's cells to ``values``, and remember their sum and
        checksum for the ledger.
        """
        counter, bucket, key, amount = cells[0]
        head, tail = self._around(counter, bucket)
        if len(cells) == 1:
            (encoded,) = _encoded([key])
            values.append(f"{head}{encoded.hex()}{tail}{amount:d})")
            self._written.add_row(counter, bucket, encoded, amount)
            return
        keys = _encoded([key for _, _, key, _ in cells])
        amounts = [amount for _, _, _, amount in cells]
        values += [
            f"{head}{key.hex()}{tail}{amount:d})" for key, amount in zip(keys, amounts, strict=True)
        ]
        # Calling add_row for each key costs five times as much.
        crcs = [*map(crc32, keys)]
        weighted = sum(map(mul, map(mul, crcs, crcs), amounts))
        self._written.add(counter, bucket, sum(amounts), weighted)

    def _around(self, counter: str, bucket: int) -> tuple[str, str]:
        """Return the SQL text before and the text after the hex digits of a key, in the VALUES of a
        cell of this bucket. The amount follows the second text.
        """
        found = self._literals.get((counter, bucket))
        if found is None:
            head = sql.head(self._session.literal, counter, bucket)
            found = head, f"', {sql.width_number(bucket):d}, {self.slot:d}, "
            self._literals[counter, bucket] = found
        return found


def slot_of(session: Session) -> int:
    """Return the slot to which a backfill or its undo adds on this connection. It is computed from
    the connection's id, so two backfills at the same time rarely have the same slot.
    """
    return sql.BACKFILL_SLOTS.start + session.connection_id % len(sql.BACKFILL_SLOTS)


def add(
    session: Session,
    slot: int,
    amounts: Amounts,
    members: Mapping[CellPlace, Sequence[bytes]] = NO_MEMBERS,
    upserted: Callable[[], object] = lambda: None,
) -> None:
    """Add amounts to the cells of a slot, in the order of :meth:`Amounts.chunks`, and to the
    ledger. Add members to the sketches of the cells.

    Args:
        session: in a transaction.
        slot: the writer's slot.
        amounts: the amounts by cell.
        members: by cell, the hashes (8 bytes each) of visitors or other members (``seen()``). Each
            of these cells must be in ``amounts``.
        upserted: called before the ledger is written; for tests.

    Raises:
        RefusedMembers: some members cannot be added to sketches; the error names their cells. Roll
            back.
        StoreError: a statement failed.
    """
    writer = CellWriter(session, slot)
    for cells in amounts.chunks(sql.CELLS_PER_STATEMENT):
        writer.write(cells)
    if members:
        unite(session, slot, members)
    upserted()
    writer.post()


RowName = tuple[bytes, int]
"""(entry id, position of the row in the entry)."""


def upsert(
    session: Session,
    slot: int,
    entries: Sequence[Incoming],
    catalog: Catalog,
    upserted: Callable[[], object] = lambda: None,
) -> tuple[Amounts, Capped]:
    """Add the rows of entries, with their members, to the cells of a slot, in the caller's
    transaction. Cells of breakdowns are included. New keys beyond a counter's cap are counted in
    the key ``__overflow__``.

    Args:
        session: in a transaction.
        slot: the writer's slot.
        entries: the entries to count, without the rows that
            :mod:`countersink.counting.apply.refusals` refuses.
        catalog: the catalog in force.
        upserted: called before the ledger is written; for tests.

    Returns:
        The amounts by cell, and which keys are new or had no room.

    Raises:
        RowsMissing: a counter with a cap has new keys on a day that has no row in ``counter_keys``.
            Roll back; see :func:`run_again`.
        RefusedMembers: some members cannot be added to sketches. Roll back; see :func:`run_again`.
            The error names the rows with these members (:data:`RowName`), not the cells: a row that
            is left out is left out of all its cells.
        StoreError: a statement failed, or (UnknownZone) this machine does not know the time zone of
            a counter.
    """
    amounts = merged(entries, catalog)
    capped = key_caps.cap(session, amounts, catalog) if catalog.capped else Capped()
    members: dict[CellPlace, list[bytes]] = {}
    rows_of: dict[CellPlace, list[RowName]] = {}
    for entry in entries:
        for position, counter, key, minute, _ in entry.rows if entry.seen else ():
            if position in entry.seen:
                for name, bucket, cell_key in catalog.cells(counter, key, minute):
                    place = name, bucket, capped.key(name, bucket, cell_key)
                    members.setdefault(place, []).append(entry.seen[position].hashes)
                    rows_of.setdefault(place, []).append((entry.id, position))
    try:
        add(session, slot, amounts, members, upserted)
    except RefusedMembers as error:
        refused = {row: why for place, why in error.refused.items() for row in rows_of[place]}
        raise RefusedMembers(refused) from error
    return amounts, capped


def run_again(session: Session, attempt: Callable[[Mapping[Any, RowRefusal]], Result]) -> Result:
    """Run ``attempt`` until it raises neither RowsMissing nor RefusedMembers, and return its
    result. After RowsMissing, insert the missing rows of ``counter_keys`` first. After
    RefusedMembers, leave the refused rows out.

    Args:
        session: outside a transaction; missing rows are inserted by it.
        attempt: runs one transaction, and rolls it back if it fails. Its argument has the rows to
            leave out, each with the reason. A row is named there in the same way as ``attempt``
            names it in RefusedMembers.

    Raises:
        RefusedMembers: ``attempt`` refused members again, and all of them are in rows that it was
            told to leave out.
        Any other error of ``attempt``.
    """
    left_out: dict[Any, RowRefusal] = {}
    while True:
        try:
            return attempt(left_out)
        except RowsMissing as error:
            key_caps.make_rows(session, error.places)
        except RefusedMembers as error:
            if error.refused.keys() <= left_out.keys():
                raise
            left_out |= error.refused


def _encoded(keys: Sequence[str]) -> list[bytes]:
    try:
        return [key.encode() for key in keys]
    except UnicodeEncodeError:  # a reconcile may set stored keys that are not UTF-8
        return [*map(text_bytes, keys)]
