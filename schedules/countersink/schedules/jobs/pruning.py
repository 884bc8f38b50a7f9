"""The job ``prune``: guards, runs, records of keys and dead letters that nothing needs any more.

A guard may go once no entry that it stands for can be taken for new: the watermark that
``guards.prune`` moves stays at or below the time of everything that still waits in a stream. So the
streams are looked at first, then the watermark moves. What is replayed later than ``ledger_days``
after it was first sent cannot be told from what was counted: it goes to the dead letters as
``too_old``.
"""

from functools import partial
from typing import Final

from countersink.counting.apply import dead, guards, key_caps
from countersink.database.session import LOCK_WAIT, Session, rerun
from countersink.database.sessions import open_tables
from countersink.runtime.pace import Pace
from countersink.schedules.errors import RunStopped
from countersink.schedules.jobs import Context, JobOutcome
from countersink.stream import progress
from countersink.stream.connection import connect, earliest_us
from countersink.stream.errors import Interrupted, StreamError
from countersink.stream.names import stream_keys

CHUNK: Final = 1000
"""Runs deleted per transaction."""
_READ_S: Final = 60.0
_DAY_MS: Final = 86_400_000
_MOST_DAYS: Final = 36_500


def prune(context: Context) -> JobOutcome:
    """Prune what ``ledger_days``, ``runs_days`` and ``dead_days`` allow.

    Raises:
        StreamError: Redis did not answer; nothing was pruned.
        RunStopped: it was to stop; nothing was pruned.
        Refused: the clocks of MySQL and Redis differ by minutes; nothing was pruned.
        StoreError: MySQL did not do its part.
    """
    now_ms, not_above_ms = _queue(context)
    pace = Pace(context.options.compact_share, context.stop)
    with open_tables(context.mysql_url, read_timeout=_READ_S, lock_wait=LOCK_WAIT) as session:
        pruned = guards.prune(
            session,
            keep_ms=round(min(context.options.ledger_days, _MOST_DAYS) * _DAY_MS),
            now_ms=now_ms,
            not_above_ms=not_above_ms,
            stop=context.stop,
            rest=pace.rest,
        )
        runs, no_more_runs = delete_runs(session, context.options.runs_days, pace)
        records, no_more_records = key_caps.prune(session, stop=context.stop, rest=pace.rest)
        dead_days = min(context.options.dead_days, _MOST_DAYS)
        letters, no_more_letters = dead.prune(session, dead_days, stop=context.stop, rest=pace.rest)
    finished = pruned.finished and no_more_runs and no_more_records and no_more_letters
    done = f"{pruned.deleted:,} guard rows and {runs:,} runs deleted"
    if records:
        done += f", {records:,} records of how many keys days have"
    if letters:
        done += f", {letters:,} dead letters"
    return JobOutcome(
        rows=pruned.deleted + runs + records + letters,
        detail=done if finished else f"{done}; stopped early, the next run goes on",
        finished=finished,
    )


def _queue(context: Context) -> tuple[int, int | None]:
    """Redis's clock, and the time of the oldest entry in any stream, in Unix ms."""
    try:
        with connect(context.redis_url, client_name="countersink-prune") as client:
            # First: what is sent while we look is sent later than this.
            now = earliest_us(client)
            waiting = progress.first_sent(client, stream_keys(client), stop=context.stop)
    except Interrupted as error:
        raise RunStopped("stopped while looking at the queue; nothing was pruned") from error
    except StreamError as error:
        raise type(error)(
            f"{error}; nothing was pruned, since what waits there is not known"
        ) from error
    return now // 1000, waiting


def delete_runs(
    session: Session, days: float, pace: Pace, *, chunk: int = CHUNK
) -> tuple[int, bool]:
    """Delete runs that were planned more than ``days`` ago and have ended; how many, and whether
    these were all.

    Raises:
        StoreError: as any statement.
    """
    deleted, seconds = 0, round(min(days, _MOST_DAYS) * 86_400)
    delete = (
        "DELETE FROM job_run WHERE state IN ('done', 'failed', 'skipped')"
        " AND planned_at < UTC_TIMESTAMP() - INTERVAL %s SECOND ORDER BY planned_at LIMIT %s"
    )
    while True:
        gone = rerun(partial(session.execute, delete, (seconds, chunk)))
        deleted += gone
        if gone < chunk or pace.stopped:
            return deleted, gone < chunk
        pace.rest()
