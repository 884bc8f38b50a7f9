"""Adding cells to a slot, and their sums to the ledger, in a transaction the caller began."""

from collections.abc import Mapping, Sequence
from typing import Final

from countersink.store import cells as sql
from countersink.store.amounts import Amounts, Cell
from countersink.store.connection import Session
from countersink.store.errors import BadData

FIRST_SLOT: Final = 512
SLOTS: Final = 128
"""Backfills and their undoing add to the slots from :data:`FIRST_SLOT` on."""

_INSERT: Final = "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES "
_LEDGER_ROWS: Final = 500


class BadCells(BadData):
    """Cells that the server will not take; roll back. Without them the others will do.

    Attributes:
        cells: all such cells of the amounts, each with the server's reason.
    """

    def __init__(self, cells: Sequence[tuple[Cell, BadData]]) -> None:
        (counter, _, key, _), error = cells[0]
        super().__init__(f"{counter}, {key!r}: {error}", code=error.code, reason=error.reason)
        self.cells = tuple(cells)


class CellWriter:
    """Writes cells into one slot; for one transaction, or several."""

    def __init__(self, session: Session, slot: int) -> None:
        self._session = session
        self._clause = session.dialect.upsert_add("counter_slot", "amount")
        self._room = sql.room(session)
        self._tail = f"', {slot:d}, "
        self._heads: dict[tuple[str, int], str] = {}
        self.slot = slot

    def write(self, cells: Sequence[Cell]) -> None:
        """Upsert cells by one statement, as many as :func:`cells.per_statement` says at most.

        Raises:
            BadData: the server will not take one of them; the statement has done nothing then.
            StoreError: as any statement.
        """
        try:
            heads = self._heads
            for counter, bucket, _, _ in cells:
                if (counter, bucket) not in heads:
                    heads[counter, bucket] = sql.head(self._session, counter, bucket)
            tail = self._tail
            values = [
                f"{heads[counter, bucket]}{key.encode().hex()}{tail}{amount:d})"
                for counter, bucket, key, amount in cells
            ]
        except UnicodeEncodeError as error:
            raise BadData(
                f"not to be written as UTF-8: {error}", reason="wrong_encoding"
            ) from error
        except (ValueError, OverflowError) as error:
            raise BadData(str(error), reason="out_of_range") from error
        statement = f"{_INSERT}{', '.join(values)}{self._clause}"
        if 4 * len(statement) > self._room and len(statement.encode()) > self._room:
            raise BadData("the row does not fit max_allowed_packet", reason="too_long")
        self._session.execute(statement)


def write_ledger(session: Session, slot: int, sums: Mapping[str, int]) -> None:
    """Add to the ledger what was added to each counter, one row per counter."""
    clause = session.dialect.upsert_add("counter_ledger", "amount")
    ordered = sorted(sums.items())
    size = sql.per_statement(session, _LEDGER_ROWS)
    for start in range(0, len(ordered), size):
        args: list[object] = []
        part = ordered[start : start + size]
        for counter, amount in part:
            args += counter, slot, amount
        values = ", ".join(["(%s, %s, %s)"] * len(part))
        session.execute(
            f"INSERT INTO counter_ledger (counter, slot, amount) VALUES {values}{clause}", args
        )


def slot_of(session: Session) -> int:
    """Where a backfill on this connection adds, so that hardly two wait for each other."""
    ((number,),) = session.query("SELECT CONNECTION_ID()")
    return FIRST_SLOT + int(number) % SLOTS


def add(session: Session, slot: int, amounts: Amounts) -> None:
    """Add ``amounts`` to a slot, in primary-key order, and to the ledger.

    Raises:
        BadCells: the server will not take some of the cells: roll back.
        StoreError: as any statement.
    """
    writer = CellWriter(session, slot)
    bad: list[tuple[Cell, BadData]] = []
    for cells in amounts.chunks(sql.per_statement(session)):
        _write(writer, cells, bad)
    if bad:
        raise BadCells(bad)
    write_ledger(session, slot, amounts.sums())


def _write(writer: CellWriter, cells: Sequence[Cell], bad: list[tuple[Cell, BadData]]) -> None:
    """Write ``cells``; where they fail, their halves, until those that fail are known."""
    try:
        writer.write(cells)
    except BadData as error:
        if len(cells) == 1:
            bad.append((cells[0], error))
            return
        middle = len(cells) // 2
        _write(writer, cells[:middle], bad)
        _write(writer, cells[middle:], bad)
