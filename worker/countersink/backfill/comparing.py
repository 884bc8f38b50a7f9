"""What a reconcile would correct; for dry runs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from countersink.backfill import runs
from countersink.backfill.choosing import Chosen, choose
from countersink.backfill.correcting import ROWS, Correcting, Difference
from countersink.backfill.keeping import connect_for
from countersink.backfill.listing import Drift
from countersink.backfill.options import Options, Progress
from countersink.store.buckets import label_time
from countersink.store.connection import Session

LISTED: Final = 10_000
"""Differences that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What would be corrected.

    Attributes:
        corrections, amount, notices, finished: as what was corrected, in
            :class:`countersink.backfill.reconcile.Corrected`.
        drift: the first of the differences, :data:`LISTED` at most.
    """

    corrections: int
    amount: int
    notices: tuple[str, ...] = ()
    finished: bool = True
    drift: tuple[Drift, ...] = ()


def compare(
    mysql_url: str,
    run: int,
    options: Options,
    t0: int,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Compared:
    """What correcting would do, in one snapshot; for dry runs.

    Raises:
        BackfillError, StoreError: as :func:`countersink.backfill.reconcile.correct`.
    """
    corrections = amount = 0
    drift: list[Drift] = []
    finished = True
    with connect_for(mysql_url)() as session, session.transaction(snapshot=True):
        runs.require_running(session, run)  # nobody has cleared away what it read
        chosen = choose(session, run, options, t0)
        work = Correcting(run, chosen.view, t0, options.delete_missing)
        for label, found in _differences(session, work, chosen.each(on_progress)):
            corrections += len(found)
            amount += sum(one.should_be - one.had for one in found)
            drift += [_drift(chosen, label, one) for one in found[: LISTED - len(drift)]]
            if stop():
                finished = False
                break
    return Compared(
        corrections=corrections,
        amount=amount,
        notices=chosen.all_notices(corrections, "give --from and --to"),
        finished=finished,
        drift=tuple(drift),
    )


def _differences(
    session: Session, work: Correcting, labels: Iterable[int]
) -> Iterator[tuple[int, list[Difference]]]:
    """What differs, range by range."""
    for label in labels:
        after: bytes | None = None
        while (keys := work.next_range(session, label, after, ROWS)) is not None:
            yield label, list(work.differences(session, keys))
            after = keys.last


def _drift(chosen: Chosen, label: int, one: Difference) -> Drift:
    return Drift(
        day=chosen.view.day(label),
        bucket=label_time(label),
        key=one.key.decode(errors="replace"),
        had=one.had,
        should_be=one.should_be,
    )
