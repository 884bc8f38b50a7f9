"""Reconciling: totals are set to what sources say that are the whole truth for their days.

In three steps. :func:`begin` notes the time and waits until all that was in the streams by then is
counted. Then the sources are read into ``backfill_truth``, by a :class:`TruthTarget`, which counts
nothing. :func:`correct` marks the buckets, so that what was accepted before and arrives afterwards
goes to the dead letters, and adds to each key what it lacks, or has too much.

It can be killed anywhere: whoever runs it again reads the sources and corrects anew, and what was
right already stays as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from countersink.backfill.listing import Drift
from countersink.backfill.options import Options, Progress
from countersink.backfill.truth import TruthTarget
from countersink.store.connection import Connect

__all__ = ["Compared", "Corrected", "TakenBack", "TruthTarget", "begin", "compare", "correct"]


class Stopped(Exception):
    """Told to stop before all that was in the streams was counted; nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """What was corrected.

    Attributes:
        corrections: (key, bucket) that differed; they are in ``backfill_drift``.
        amount: what was added to the totals in all.
        notices: for people, a sentence each: what was left out, and why.
        finished: False where it was told to stop.
    """

    corrections: int
    amount: int
    notices: tuple[str, ...] = ()
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What would be corrected.

    Attributes:
        corrections, amount, notices, finished: as in :class:`Corrected`.
        drift: the first of the differences, :data:`LISTED` at most.
    """

    corrections: int
    amount: int
    notices: tuple[str, ...] = ()
    finished: bool = True
    drift: tuple[Drift, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """What was taken back of a reconcile.

    Attributes:
        ranges: transactions that took something back.
        cells: (key, bucket) that were changed.
        amount: what was added to the totals by it.
        finished: False where it was told to stop.
    """

    ranges: int
    cells: int
    amount: int
    finished: bool = True


def begin(
    redis_url: str | None,
    options: Options,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Note the time and wait until all that was in the streams by then is counted.

    Returns:
        Unix ms on Redis's clock: ``t0`` for :func:`correct`.

    Raises:
        BackfillError: no Redis was given; or nobody has counted it in ``options.wait_s``.
        Stopped: told to.
        StreamError: Redis did not do its part.
    """
    raise NotImplementedError


def correct(
    mysql_url: str,
    run: int,
    options: Options,
    t0: int,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Corrected:
    """Set the totals to what a run's sources say; all of them have been read.

    Raises:
        BackfillError: it is a tracked table's counter; its policies have changed since the sources
            were read; the run was ended or undone by somebody; a total would leave 64 bits.
        StoreError: MySQL did not do its part. What was corrected is corrected.
    """
    raise NotImplementedError


def compare(
    mysql_url: str,
    run: int,
    options: Options,
    t0: int,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Compared:
    """What :func:`correct` would do; for dry runs.

    Raises:
        As :func:`correct`.
    """
    raise NotImplementedError


def undo(
    connect: Connect,
    run: int,
    *,
    on_progress: Callable[[int, int], object] = lambda done, of: None,
    stop: Callable[[], bool] = lambda: False,
) -> TakenBack:
    """Take the corrections of a run back, then its marks, then its truth; not its sources.

    The caller has put the run into the state ``undoing``, so that nothing of it is committed any
    more. It can be killed, and run again.

    Args:
        connect: makes sessions at READ COMMITTED.
        run: its number.
        on_progress: is given how many ranges of corrections were taken back now, and of how many.
        stop: true once it should end.

    Raises:
        BackfillError: the counter is now that of a tracked table; a total would leave 64 bits.
        StoreError: MySQL did not do its part. What was taken back is taken back.
    """
    raise NotImplementedError
