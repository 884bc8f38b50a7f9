"""What the sources of a reconcile say, in all, before anything is corrected."""

from countersink.store.amounts import Amounts
from countersink.store.connection import Session


class TruthTarget:
    """Where the chunks of a reconcile go: added up beside the counter, whose totals stay as they
    are.

    Args:
        run: its number.
        counter: whose truth it is.

    Attributes:
        truth_of: the run: its sources are known apart from those that were added.
    """

    def __init__(self, run: int, counter: str) -> None:
        self.truth_of = run
        self._counter = counter

    def add(self, session: Session, amounts: Amounts, source: int, start_at: int) -> None:
        """Add a chunk in the open transaction, which holds the share lock of control.

        Raises:
            BackfillError: the counter's policies are not those by which the first chunk was read.
            StoreError: as any query.
        """
        raise NotImplementedError


def discard(session: Session, run: int) -> None:
    """Forget what the sources of a run said; outside a transaction, in steps."""
    raise NotImplementedError
