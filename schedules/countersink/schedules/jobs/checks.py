"""The jobs ``verify`` and ``alarms``: what raises an alarm (age of the queue, entries that Redis
has lost in the last ``LOST_DAYS``, dead rows, jobs without success for ``UNSUCCESSFUL_HOURS``),
with the sentences; limits are in ``schedules/options.py``.

``verify`` also holds tracked tables against their counters. ``alarms`` looks at how long the queue
has waited and what it has lost, at the dead rows, and at jobs that have not succeeded for long;
what else there is to know is in ``countersink info``, ``runs`` and ``doctor``.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

from countersink.counting.apply import dead, queue_losses
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.schedules.errors import Alarm, RunStopped, TablesDiffer
from countersink.schedules.jobs import Context, JobOutcome
from countersink.store.verify import open_session, verify
from countersink.stream.connection import connect, earliest_us
from countersink.stream.errors import StreamError
from countersink.stream.names import stream_keys
from countersink.stream.progress import first_arrived, samples

SHOWN: Final = 10
"""Differences that a failed run names; ``countersink verify`` shows all."""
UNSUCCESSFUL_HOURS: Final = 24
"""A job none of whose runs was done for so long is an alarm."""
LOST_DAYS: Final = 1
"""Days for which a loss of entries in Redis is an alarm; ``countersink doctor`` shows it longer."""
_READ_S: Final = 30.0


def verification(context: Context) -> JobOutcome:
    """Verify all counters and tracked tables; it repairs nothing.

    Raises:
        TablesDiffer: something is wrong.
        RunStopped: it was to stop before it had looked at everything, and found nothing wrong so
            far.
        StoreError: MySQL did not do its part.
    """
    with open_session(context.mysql_url) as session:
        done = verify(session, stop=context.stop)
    if not done.agrees:
        found = [f"{one.counter}: {one.detail}" for one in done.differences]
        found += [
            f"{one.tracked.counter} ({one.tracked.name}): {one.detail}"
            for one in done.row_differences
        ]
        shown = "; ".join(found[:SHOWN])
        more = len(found) - SHOWN
        raise TablesDiffer(
            f"{shown}{f'; and {more:,} more' if more > 0 else ''}: see countersink verify"
        )
    if not done.finished:
        raise RunStopped(f"stopped when {done.counters:,} counters were verified, which agree")
    tracked = f", {done.tables:,} tracked tables with their counters" if done.tables else ""
    return JobOutcome(
        rows=done.rows, detail=f"{done.counters:,} counters agree with the ledger{tracked}"
    )


def alarms(context: Context) -> JobOutcome:
    """Look at everything, then say all of it at once.

    Raises:
        Alarm: something needs a person.
        StoreError: MySQL did not do its part.
    """
    with open_tables(context.mysql_url, read_timeout=_READ_S) as session:
        said = list(_queue(context, session))
        said += _dead(session, context.options.alarm_dead)
        said += _jobs(session)
    if said:
        raise Alarm("; ".join(said))
    return JobOutcome(rows=0, detail="nothing to report")


def _queue(context: Context, session: Session) -> Iterator[str]:
    limit = context.options.alarm_lag_s
    waited = 0.0
    try:
        with connect(context.redis_url, client_name="countersink-alarms") as client:
            # The streams first: what they hold has arrived before this time.
            arrived = first_arrived(client, stream_keys(client))
            waited = 0.0 if arrived is None else earliest_us(client) / 1e6 - arrived / 1000
            # here, too, as no worker may run
            queue_losses.watch(session, partial(samples, client))
    except StreamError as error:
        yield f"{error}, so how long the queue has waited and what Redis lost is not known"
    if waited > limit:
        yield (
            f"the oldest entry has waited in the queue for {waited:,.0f} s, and the limit is"
            f" {limit:,.0f} s: look at countersink info, and start more workers if they are busy"
        )
    for loss in queue_losses.recent(session, LOST_DAYS):
        yield f"Redis has lost {loss}: see countersink doctor"


def _dead(session: Session, limit: int) -> Iterator[str]:
    by_reason = Counter(dead.count(session)) + Counter(dead.not_kept_by_reason(session))
    if by_reason.total() > limit:
        reasons = ", ".join(f"{name} {number:,}" for name, number in sorted(by_reason.items()))
        yield (
            f"{by_reason.total():,} rows are dead ({reasons}), and the limit is {limit:,}:"
            " countersink dead list, then retry or drop them"
        )


def _jobs(session: Session) -> Iterator[str]:
    """Jobs without a run that was done since one that was planned long ago, whatever became of it:
    it may have failed, been skipped, or never begun.
    """
    found = session.query(
        "SELECT name, MIN(run.planned_at) AS since FROM job JOIN job_run AS run ON run.job = name"
        " LEFT JOIN (SELECT job, MAX(planned_at) AS at FROM job_run WHERE state = 'done'"
        " GROUP BY job) AS done ON done.job = name"
        " WHERE cron <> 'off' AND NOT paused AND name <> 'alarms'"
        " AND (at IS NULL OR run.planned_at > at)"
        " GROUP BY name HAVING since < UTC_TIMESTAMP() - INTERVAL %s HOUR ORDER BY name",
        (UNSUCCESSFUL_HOURS,),
    )
    for name, since in found:
        yield (
            f"{name} has not succeeded since before {since.isoformat(timespec='minutes')}Z:"
            " countersink runs says why"
        )
