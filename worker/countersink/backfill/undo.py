"""Taking a run back: exactly what it added, whatever has happened to the counter since."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What became of it.

    Attributes:
        run: its number.
        counter, mode: of the run.
        state: ``undone``, or ``undoing`` where it was told to stop: run again, it goes on.
        chunks: that were taken back now: pieces of sources; of a reconcile, ranges of corrections.
        cells: (key, bucket) that were changed.
        amount: what was added to the totals by taking it back: mostly negative.
    """

    run: int
    counter: str
    mode: str
    state: str
    chunks: int
    cells: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoProgress:
    """How far it is.

    Attributes:
        done: chunks that were taken back.
        of: that there were to be taken back when it began.
    """

    done: int
    of: int


def undo(
    mysql_url: str,
    run: int,
    *,
    on_progress: Callable[[UndoProgress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Undone:
    """Take back what a run added, or set.

    Raises:
        BackfillError: there is no such run, or it was undone already, or its counter was deleted.
        StoreError: MySQL did not do its part; what was taken back is taken back, and calling it
            again goes on.
    """
    raise NotImplementedError
