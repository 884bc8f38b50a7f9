"""``--mode reconcile``: its steps from waiting for the queue to correcting totals, and the errors
when the wait took too long or rejected lines make sources unreliable.

In three steps. :func:`begin` notes the time and waits until all that was in the streams by then is
counted. Then the sources are read into ``backfill_correction``, by a :class:`TruthTarget`, which
counts nothing. :func:`correct` marks the days, so that what was accepted before and arrives
afterwards goes to the dead letters, and adds to each key what it lacks, or has too much.

It can be killed anywhere: whoever runs it again reads the sources and corrects anew, and what was
right already stays as it is.
"""

import time
from collections.abc import Callable, Sequence
from datetime import date
from typing import Final

import redis

from countersink.backfill.errors import BackfillError, RolledUpMeanwhile
from countersink.backfill.history import require_running
from countersink.backfill.options import BackfillOptions, Progress, SourceReport
from countersink.backfill.reconcile import correction
from countersink.backfill.reconcile.correction import Corrected, Correction, connect_for
from countersink.backfill.reconcile.scope import DayBuckets, choose, each_day, left_out
from countersink.counting.apply.control import Control, bump, exclusive
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.catalog import mark_days
from countersink.database.session import Session
from countersink.database.sessions import KeptSession
from countersink.database.sql import parts
from countersink.stream.connection import connect as connect_redis
from countersink.stream.connection import latest_us
from countersink.stream.entry import ends
from countersink.stream.names import stream_keys
from countersink.stream.progress import order

POLL_S: Final = 0.05
"""Seconds between two looks; each costs Redis one small read per stream."""

Ends = dict[str, str]
"""By the stream's key the id of its last entry; without the empty ones."""
_MARKS_AT_ONCE: Final = 5000
"""Marks of one transaction, during which nobody counts."""


def begin(
    redis_url: str | None,
    options: BackfillOptions,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> int | None:
    """Note the time and wait until all that was in the streams by then is counted.

    Returns:
        Unix ms on Redis's clock: ``t0`` for :func:`correct`; None: it was told to stop.

    Raises:
        BackfillError: no Redis was given; or nobody has counted it in ``options.wait_s``.
        StreamError: Redis did not do its part.
    """
    if redis_url is None:
        raise BackfillError(
            "reconciling has to know what is still on its way: say where the queue is, by"
            " --redis-url"
        )

    with connect_redis(redis_url) as client:
        # The time first: what arrives after it and before the ends are read is waited for as well.
        # Of a cluster the latest of its clocks: what counts as accepted afterwards, and is in the
        # sources, would be counted twice; a dead letter too many can be retried.
        t0 = latest_us(client) // 1000
        left = _stream_ends(client)
        deadline = time.monotonic() + options.wait_s
        while left := _left(client, left):
            on_progress(Progress(doing="waiting"))
            if stop():
                return None
            if time.monotonic() >= deadline:
                raise BackfillError(
                    f"{', '.join(left)}: what was there when this began is not counted after"
                    f" {options.wait_s:g} s, and correcting now would count it twice: a worker must"
                    " be running (`countersink worker`); give it more time by --wait"
                )
            time.sleep(POLL_S)
    return t0


# A worker removes an entry from its stream once its transaction is committed. So nothing of what
# was there is left to be counted when no stream holds an entry up to what was its last one then.


def _stream_ends(client: redis.Redis) -> Ends:
    """Where every stream ends now.

    Raises:
        StreamError: Redis did not do its part.
    """
    return {stream: there[1] for stream in stream_keys(client) if (there := ends(client, stream))}


def _left(client: redis.Redis, upto: Ends) -> Ends:
    """The streams that still hold an entry up to their end of then.

    Raises:
        StreamError: Redis did not do its part.
    """
    return {
        stream: end
        for stream, end in upto.items()
        if (there := ends(client, stream)) and order(there[0]) <= order(end)
    }


def unreliable(options: BackfillOptions, reports: Sequence[SourceReport]) -> str:
    """Why sources that were read are not the whole truth, as lines of them were rejected, or there
    are none; or ''.
    """
    rejected = sum(one.rejected for one in reports)
    counted = any(one.counted for one in reports)
    for one in reports:
        if one.outcome == "rejected":
            return (
                f"of {one.source} all {one.rejected:,} lines were rejected: look at why, whether"
                " --input-format and the other options are right for it, or leave it out"
            )
    if rejected and options.delete_missing and options.max_rejects is None:
        return (
            f"{rejected:,} lines were rejected, and --delete-missing would take away what they"
            f" count: look at why; --max-rejects {rejected} does it all the same"
        )
    if options.delete_missing and not counted:
        return (
            "no line of the sources counts, and --delete-missing would take away all that was"
            " counted: look whether they were written whole, and at --where and the other options"
        )
    return ""


def correct(
    mysql_url: str,
    run: int,
    options: BackfillOptions,
    resolution: Resolution,
    t0: int,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_notice: Callable[[str], object] = lambda notice: None,
    stop: Callable[[], bool] = lambda: False,
) -> Corrected:
    """Set the totals to what a run's sources say; all of them have been read, without a gap.

    Args:
        resolution: of the buckets that the sources were read in.
        on_notice: told which days are left out, before any total is changed.

    Raises:
        BackfillError: it is a tracked table's counter; the run was ended or undone by somebody.
        Conflict: another transaction held rows all the time. What was corrected is corrected.
        StoreError: MySQL did not do its part. What was corrected is corrected.
    """
    finished = True
    gone: dict[str, list[date]] = {}
    connect = connect_for(mysql_url)
    with KeptSession(connect, stop, attempts=1) as keeper:
        buckets = keeper.run(DayBuckets.read, options.counter, resolution)
        days, notices = keeper.run(choose, buckets, options, t0)
        for notice in notices:
            on_notice(notice)
        # All marks before the first sum: what was accepted before and is counted is in the sum.
        for part in parts(days, _MARKS_AT_ONCE):
            keeper.run(_mark, run, options.counter, t0, part)
    # On a session of its own, which waits for locks as correcting does, not as marking has.
    with KeptSession(connect, stop, attempts=1) as keeper:
        work = Correction(run, options.counter, resolution, options.delete_missing)
        if not options.delete_missing:
            days = keeper.run(correction.said_of, run, days)
        for day in each_day(days, on_progress):
            try:
                finished = correction.correct_day(keeper, work, day, stop=stop)
            except RolledUpMeanwhile as why:
                gone.setdefault(str(why), []).append(day)
            if not finished:
                break
        corrections, amount, rejected = keeper.run(_corrected, run)
    notices += left_out(gone)
    if rejected:
        notices.append(
            f"{rejected:,} lines were rejected: what they may have counted is in no total now"
        )
    return Corrected(corrections=corrections, amount=amount, notices=notices, finished=finished)


def _mark(session: Session, run: int, counter: str, t0: int, days: Sequence[date]) -> None:
    """Mark days: what was accepted before ``t0`` is not counted in them from now on."""

    def work(control: Control) -> None:
        require_running(session, run)
        mark_days(session, counter, run, t0, days)
        bump(session)

    exclusive(session, work)


def _corrected(session: Session, run: int) -> tuple[int, int, int]:
    """What was corrected, as it was committed, and how many lines were rejected before."""
    ((corrections, amount, rejected),) = session.query(
        "SELECT corrections, amount, rejected FROM backfill_run WHERE id = %s", (run,)
    )
    return int(corrections), int(amount), int(rejected)
