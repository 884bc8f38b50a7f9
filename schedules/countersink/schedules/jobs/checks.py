"""The jobs ``verify`` and ``alarms``. ``verify`` compares counters with the ledger, and tracked
tables with their counters. Reasons for an alarm are an entry that has waited too long in the queue,
a Redis that does not answer, entries that Redis lost in the last ``LOST_DAYS`` days, too many dead
letters, and jobs without success for ``UNSUCCESSFUL_HOURS`` hours. See ``options.py`` for the
limits.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

from countersink.counting.apply import dead, queue_losses
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.runtime.texts import plural
from countersink.schedules.errors import Alarm, RunStopped, TablesDiffer
from countersink.schedules.jobs import Context, JobOutcome
from countersink.store.verify import open_session, verify
from countersink.stream.connection import connect, earliest_us
from countersink.stream.errors import StreamError
from countersink.stream.names import stream_keys
from countersink.stream.progress import first_arrived, samples

SHOWN: Final = 10
"""Number of differences in the message of a failed run, at most. ``countersink verify`` shows
all."""
UNSUCCESSFUL_HOURS: Final = 24
"""Hours without a successful run of a job after which there is an alarm."""
LOST_DAYS: Final = 1
"""Days after a loss of entries in Redis for which it is an alarm. ``countersink doctor`` shows it
for longer."""
_READ_S: Final = 30.0


def verification(context: Context) -> JobOutcome:
    """Compare all that ``countersink verify`` compares: counters with the ledger, tracked tables
    with their counters, also breakdowns, sketches and records of backfills. Nothing is repaired.
    The result has the number of compared counters and, if there are any, of tracked tables.

    Raises:
        TablesDiffer: differences were found, also if the run was stopped before the end.
        RunStopped: the run was stopped before all was compared, and no difference was found.
        StoreError: the database failed.
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
        verified = plural(done.counters, "counter")
        raise RunStopped(f"stopped after {verified}, without a difference so far")
    tracked = f" and {plural(done.tables, 'tracked table')}" if done.tables else ""
    detail = f"no difference in {plural(done.counters, 'counter')}{tracked}"
    return JobOutcome(rows=done.rows, detail=detail)


def alarms(context: Context) -> JobOutcome:
    """Look for new losses of entries in Redis, and record them in MySQL, as workers do. Then check
    for all reasons of an alarm that the module's docstring lists, and raise one alarm that names
    those that were found. If there are none, return a result that says so.

    Raises:
        Alarm: there are reasons for an alarm: a person has to look.
        StoreError: the database failed.
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
            # The streams first: their entries have arrived before this time.
            arrived = first_arrived(client, stream_keys(client))
            waited = 0.0 if arrived is None else earliest_us(client) / 1e6 - arrived / 1000
            # Here as well as in workers, none of which may be running.
            queue_losses.watch(session, partial(samples, client))
    except StreamError as error:
        yield f"{error}: the age of the queue and entries lost by Redis are unknown"
    if waited > limit:
        yield (
            f"the oldest entry has waited in the queue for {waited:,.0f} s, and the limit is"
            f" {limit:,.0f} s: see countersink info, and start more workers if they are busy"
        )
    for loss in queue_losses.recent(session, LOST_DAYS):
        if loss.probable:
            yield f"Redis has lost {loss}: see countersink doctor"


def _dead(session: Session, limit: int) -> Iterator[str]:
    by_reason = Counter(dead.count(session)) + Counter(dead.not_kept_by_reason(session))
    if by_reason.total() > limit:
        reasons = ", ".join(f"{name} {number:,}" for name, number in sorted(by_reason.items()))
        yield (
            f"dead letters have {plural(by_reason.total(), 'row')} ({reasons}), and the limit is"
            f" {limit:,}: see countersink dead list, then retry or drop them"
        )


def _jobs(session: Session) -> Iterator[str]:
    """Yield a sentence of the alarm for each job that had no success for ``UNSUCCESSFUL_HOURS``
    hours. Such a job has a run that was planned longer ago than that, and neither this run nor a
    later one was successful: they failed, were skipped, never began, or have not ended. Jobs that
    are paused or off are left out, and ``alarms`` itself."""
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
            " see countersink runs for the reason"
        )
