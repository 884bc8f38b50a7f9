"""``--mode reconcile``: waits for the queue, then sets totals to the sums of the sources.

A reconcile has three steps. :func:`begin` reads Redis's clock, and waits until all entries that
were in the streams at that time are counted. Then the sources are read into
``backfill_correction``, by a :class:`TruthTarget`, which changes no total. :func:`correct` marks
the days, and adds to each cell the difference between the sources and the total. Because of the
marks, rows of these days become dead letters if their entry was accepted before the time read by
:func:`begin`, but is delivered after the marks.

The process can be killed at any time. The next run reads the sources and corrects again; cells that
are right already do not change.
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
from countersink.backfill.reconcile.scope import DayBuckets, choose, each_day, left_out, truth_days
from countersink.backfill.rejects import lines_were
from countersink.counting.apply.guards import Control, bump, exclusive
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.catalog import mark_days
from countersink.database.session import Session
from countersink.database.sessions import KeptSession
from countersink.database.sql import parts
from countersink.stream.connection import connect as connect_redis
from countersink.stream.connection import ends, latest_us
from countersink.stream.names import stream_keys
from countersink.stream.progress import order

POLL_S: Final = 0.05
"""Seconds between two checks of the streams. A check makes one small read per stream."""

Ends = dict[str, str]
"""Key of a stream → id of its last entry, without empty streams."""
_MARKS_AT_ONCE: Final = 5000
"""Number of days that one transaction marks. No process can count during this transaction."""


def begin(
    redis_url: str | None,
    options: BackfillOptions,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> int | None:
    """Read Redis's clock, and wait until all entries that were in the streams at that time are
    counted.

    Args:
        redis_url: URL of the queue, without which a reconcile is refused.
        options: options of the run.
        on_progress: called at each check of the streams that finds such entries.
        stop: called at each of these checks; waiting ends early once it returns true.

    Returns:
        The time read from Redis's clock, in Unix ms: ``t0`` of :func:`correct`. None if ``stop``
            returned true.

    Raises:
        BackfillError: there is no ``redis_url``, or entries are left after ``options.wait_s``.
        StreamError: Redis failed.
    """
    if redis_url is None:
        raise BackfillError(
            "a reconcile must wait for the increments in the queue: give the queue's URL by"
            " --redis-url"
        )

    with connect_redis(redis_url) as client:
        # The time before the ends: entries that arrive in between are waited for as well. In a
        # cluster the latest of all clocks: an event of the sources whose entry seems to be accepted
        # after t0 would be counted twice, while a needless dead letter can be retried.
        t0 = latest_us(client) // 1000
        waiting = _stream_ends(client)
        deadline = time.monotonic() + options.wait_s
        while waiting := _unfinished(client, waiting):
            on_progress(Progress(doing="waiting"))
            if stop():
                return None
            if time.monotonic() >= deadline:
                raise BackfillError(
                    f"{', '.join(waiting)}: entries from before this run are not counted after"
                    f" {options.wait_s:g} s, and correcting now would count them twice: run a"
                    " worker (`countersink worker`), or wait longer by --wait"
                )
            time.sleep(POLL_S)
    return t0


# A worker removes an entry from its stream once its transaction is committed. So all old entries
# are counted when no stream has an entry up to its last entry at t0.


def _stream_ends(client: redis.Redis) -> Ends:
    """Return the id of the last entry of each stream that has entries.

    Raises:
        StreamError: Redis failed.
    """
    return {stream: bounds[1] for stream in stream_keys(client) if (bounds := ends(client, stream))}


def _unfinished(client: redis.Redis, upto: Ends) -> Ends:
    """Return the items of ``upto`` whose stream still has an entry up to the item's id.

    Raises:
        StreamError: Redis failed.
    """
    return {
        stream: end
        for stream, end in upto.items()
        if (bounds := ends(client, stream)) and order(bounds[0]) <= order(end)
    }


def unreliable(options: BackfillOptions, reports: Sequence[SourceReport]) -> str:
    """Return an error text if totals must not be set to the sums of the sources, or '' if they may
    be set. They must not be set if all lines of a source were rejected. With ``delete_missing``,
    they also must not be set if no line was counted, or if a line was rejected and the user gave no
    ``--max-rejects``. ``reports`` are the reports of the sources, all read completely.
    """
    rejected = sum(one.rejected for one in reports)
    for one in reports:
        if one.outcome == "rejected":
            return (
                f"all lines of {one.source} were rejected ({one.rejected:,}): check --input-format"
                " and the other options, or leave this source out"
            )
    if rejected and options.delete_missing and options.max_rejects is None:
        return (
            f"{lines_were(rejected)} rejected, and --delete-missing would delete what rejected"
            f" lines count: find out why; --max-rejects {rejected} reconciles without them"
        )
    if options.delete_missing and not any(one.counted for one in reports):
        return (
            "no line of the sources counts, and --delete-missing would set all keys to 0: check"
            " that the sources are complete, and check --where and the other options"
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
    """Set the totals of the days from ``--from`` to ``--to`` to the sums of the sources, which must
    all have been read completely, and return what was corrected. Days that cannot be set are left
    out, with a notice. Without ``delete_missing``, keys that no source has stay unchanged.

    Args:
        mysql_url: URL of the database.
        run: number of the run.
        options: options of the run.
        resolution: width of the buckets in which the run has summed up its sources.
        t0: time from :func:`begin`; entries accepted before it are no longer counted in the days.
        on_progress: called before each day that is corrected.
        on_notice: called with each notice about days that are left out from the beginning, before
            any total is changed. The result has these notices as well, and later ones.
        stop: called before each range of keys; correcting ends early once it returns true.

    Raises:
        TrackedCounter: the counter is the row count of a tracked table.
        BackfillError: the counter has breakdowns; the run has ended; or, without
            ``delete_missing``, some days have counts in the overflow key, which the sources have
            under other keys.
        Conflict: another transaction holds rows; corrections made so far stay.
        StoreError: MySQL failed; corrections made so far stay.
    """
    finished = True
    rolled_up: dict[str, list[date]] = {}
    connect = connect_for(mysql_url)
    with KeptSession(connect, stop, attempts=1) as keeper:
        buckets = keeper.run(DayBuckets.read, options.counter, resolution)
        days, notices = keeper.run(choose, buckets, options, t0)
        for notice in notices:
            on_notice(notice)
        # All marks before the first sum: old entries are either in the sum or dead letters.
        for part in parts(days, _MARKS_AT_ONCE):
            keeper.run(_mark, run, options.counter, t0, part)
    # A new session: marking has changed how long this one waits for locks.
    with KeptSession(connect, stop, attempts=1) as keeper:
        work = Correction(run, options.counter, resolution, options.delete_missing)
        if not options.delete_missing:
            days = keeper.run(truth_days, run, days)
        for day in each_day(days, on_progress):
            try:
                finished = correction.correct_day(keeper, work, day, stop=stop)
            except RolledUpMeanwhile as why:
                rolled_up.setdefault(str(why), []).append(day)
            if not finished:
                break
        corrections, amount, rejected = keeper.run(_corrected, run)
    notices += left_out(rolled_up)
    if rejected:
        notices.append(f"{lines_were(rejected)} rejected: the totals are without rejected lines")
    return Corrected(corrections=corrections, amount=amount, notices=notices, finished=finished)


def _mark(session: Session, run: int, counter: str, t0: int, days: Sequence[date]) -> None:
    """Mark days as set by a run, in ``reconciled_day``. From now on, entries accepted before ``t0``
    are not counted in them. The time of a mark that this run has made before stays.

    Raises:
        RunEnded: the run is not running any more.
    """

    def work(control: Control) -> None:
        require_running(session, run)
        mark_days(session, counter, run, t0, days)
        bump(session)

    exclusive(session, work)


def _corrected(session: Session, run: int) -> tuple[int, int, int]:
    """Return the number of a run's committed corrections, the sum of their amounts, and the number
    of the run's rejected lines.
    """
    ((corrections, amount, rejected),) = session.query(
        "SELECT corrections, amount, rejected FROM backfill_run WHERE id = %s", (run,)
    )
    return int(corrections), int(amount), int(rejected)
