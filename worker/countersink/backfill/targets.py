"""Where the amounts of a chunk go."""

from typing import Protocol

from countersink.backfill import journal
from countersink.store import adding
from countersink.store.amounts import Amounts
from countersink.store.connection import Session


class Target(Protocol):
    """Takes chunks, each in the transaction that also writes down that it was taken.

    Attributes:
        truth_of: what ``backfill_source.truth_of`` is for its sources.
    """

    @property
    def truth_of(self) -> int: ...

    def add(self, session: Session, amounts: Amounts, source: int, start_at: int) -> None:
        """Take the amounts of the chunk of ``source`` that begins at ``start_at``.

        Args:
            session: in a transaction that holds the share lock of control.

        Raises:
            BadCells: some of the amounts can never be taken; the transaction is to be undone.
            StoreError: as any statement.
        """
        ...


class CounterTarget:
    """The counter itself: its totals, its ledger, and the journal by which it is taken back."""

    truth_of = 0

    def __init__(self) -> None:
        self._slots: tuple[Session, int] | None = None

    def add(self, session: Session, amounts: Amounts, source: int, start_at: int) -> None:
        """As :meth:`Target.add`."""
        if self._slots is None or self._slots[0] is not session:
            self._slots = session, adding.slot_of(session)
        adding.add(session, self._slots[1], amounts)
        journal.write(session, source, start_at, amounts)
