"""Reconciling: totals are set to what sources say that are the whole truth for their days.

In three steps. :func:`begin` notes the time and waits until all that was in the streams by then is
counted. Then the sources are read into ``backfill_truth``, by a :class:`TruthTarget`, which counts
nothing. :func:`correct` marks the buckets, so that what was accepted before and arrives afterwards
goes to the dead letters, and adds to each key what it lacks, or has too much.

It can be killed anywhere: whoever runs it again reads the sources and corrects anew, and what was
right already stays as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.backfill import correcting, streams, truth
from countersink.backfill.choosing import Chosen, check_days, choose, rolled_up
from countersink.backfill.comparing import Compared, compare
from countersink.backfill.correcting import Correcting, RolledUpMeanwhile
from countersink.backfill.keeping import Keeper, connect_for
from countersink.backfill.options import BackfillError, Options, Progress, SourceReport
from countersink.backfill.retracting import TakenBack, undo
from countersink.backfill.truth import TruthTarget
from countersink.store import reconciled
from countersink.store.connection import Session
from countersink.store.control import Control, bump, exclusive
from countersink.store.rerun import rerun
from countersink.stream.connection import connect as connect_redis

__all__ = [
    "Compared",
    "Corrected",
    "Stopped",
    "TakenBack",
    "TruthTarget",
    "begin",
    "check_days",
    "compare",
    "correct",
    "undo",
    "unreliable",
]

_MARKS_AT_ONCE: Final = 5000
"""Marks of one transaction, during which nobody counts."""
_REFUSED_NAMED: Final = 5


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
    if redis_url is None:
        raise BackfillError(
            "reconciling has to know what is still on its way: say where the queue is, by"
            " --redis-url"
        )

    def look(left: streams.Ends) -> bool:
        on_progress(Progress(doing="waiting"))
        return not stop()

    with connect_redis(redis_url) as client:
        # The time first: what arrives after it and before the ends are read is waited for as well.
        t0 = streams.now_ms(client)
        left = streams.drain(client, streams.ends(client), seconds=options.wait_s, look=look)
    if left and stop():
        raise Stopped
    if left:
        raise BackfillError(
            f"{', '.join(left)}: what was there when this began is not counted after"
            f" {options.wait_s:g} s, and correcting now would count it twice: a worker must be"
            " running (`countersink worker`); give it more time by --wait"
        )
    return t0


def unreliable(options: Options, reports: Sequence[SourceReport]) -> str:
    """Why sources that were read are not the whole truth, as lines of them were rejected; or ''."""
    rejected = sum(one.rejected for one in reports)
    if rejected and not sum(one.counted for one in reports):
        return (
            f"{rejected:,} lines were rejected, and none counted: look at why, and whether"
            " --input-format and the other options are those of these sources"
        )
    for one in reports:
        # Lines that the filters left out were read all the same.
        if one.rejected and not (one.counted or one.filtered):
            return (
                f"of {one.source} all {one.rejected:,} lines were rejected: look at why, whether"
                " --input-format and the other options are right for it, or leave it out"
            )
    if rejected and options.delete_missing and options.max_rejects is None:
        return (
            f"{rejected:,} lines were rejected, and --delete-missing would take away what they"
            f" count: look at why; --max-rejects {rejected} does it all the same"
        )
    return ""


def correct(
    mysql_url: str,
    run: int,
    options: Options,
    t0: int,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Corrected:
    """Set the totals to what a run's sources say; all of them have been read, without a gap.

    Raises:
        BackfillError: it is a tracked table's counter; its policies have changed since the sources
            were read; the run was ended or undone by somebody; the days given cut a bucket.
        Conflict: another transaction held rows all the time. What was corrected is corrected.
        StoreError: MySQL did not do its part. What was corrected is corrected.
    """
    finished = True
    gone: list[int] = []
    connect = connect_for(mysql_url)
    with Keeper(connect) as keeper:
        keeper.run(partial(_hold_counter, counter=options.counter))
        chosen = keeper.run(partial(choose, run=run, options=options, t0=t0))
        # All marks before the first sum: what was accepted before and is counted is in the sum.
        for start in range(0, len(chosen.labels), _MARKS_AT_ONCE):
            part = chosen.labels[start : start + _MARKS_AT_ONCE]
            keeper.run(partial(_mark, run=run, counter=options.counter, t0=t0, labels=part))
    # On a session of its own, which waits for locks as correcting does, not as marking has.
    with Keeper(connect) as keeper:
        work = Correcting(run, chosen.view, t0, options.delete_missing)
        for label in chosen.each(on_progress):
            try:
                finished = correcting.correct_bucket(keeper, work, label, stop=stop)
            except RolledUpMeanwhile:
                gone.append(label)
            if not finished:
                break
        corrections, amount, rejected = keeper.run(partial(_corrected, run=run))
        if finished:
            keeper.run(partial(truth.discard, run=run))
    advice = "undo this and give --from and --to"
    notices = (*chosen.all_notices(corrections, advice), *_also(chosen, work, gone))
    if rejected:
        notices += (
            f"{rejected:,} lines were rejected: what they may have counted is in no total now",
        )
    return Corrected(corrections=corrections, amount=amount, notices=notices, finished=finished)


def _hold_counter(session: Session, counter: str) -> None:
    """Make the row that corrections of the counter hold one after the other."""
    insert = "INSERT IGNORE INTO backfill_counter (counter) VALUES (%s)"
    rerun(partial(session.execute, insert, (counter,)))


def _mark(session: Session, run: int, counter: str, t0: int, labels: Sequence[int]) -> None:
    """Mark buckets: what was accepted before ``t0`` is not counted in them from now on."""

    def work(control: Control) -> None:
        correcting.require_running(session, run)
        reconciled.mark(session, counter, run, t0, labels)
        bump(session)

    exclusive(session, work)


def _corrected(session: Session, run: int) -> tuple[int, int, int]:
    """What was corrected, as it was committed, and how many lines were rejected before."""
    ((corrections, amount, rejected),) = session.query(
        "SELECT corrections, amount, rejected FROM backfill_run WHERE id = %s", (run,)
    )
    return int(corrections), int(amount), int(rejected)


def _also(chosen: Chosen, work: Correcting, gone: Sequence[int]) -> Iterator[str]:
    """What was found out while correcting."""
    if gone:
        yield rolled_up(chosen.days(gone))
    if work.refused:
        some = list(work.refused.items())[:_REFUSED_NAMED]
        named = "; ".join(
            f"{key.decode(errors='replace')!r} of {chosen.view.day(bucket)}: {why}"
            for (bucket, key), why in some
        )
        yield f"{len(work.refused):,} keys could not be set, such as {named}"
