"""Lost and failed runs: when each is enqueued again, after which pause, when it is given up, and
the reasons logged; attempts and ``retry_after_s`` are in ``schedules/options.py``.

Everything is in MySQL, so this heals whatever happens to Redis: a run whose enqueue failed or was
cut off by the planner's death, a queue that was flushed, a process that was killed. An attempt that
is enqueued once too often starts nothing, so there is nothing to be careful about.
"""

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from countersink.schedules.history import TEXT, failing
from countersink.schedules.report import ScheduleAction, say_failing
from countersink.schedules.scheduler.planner import RunPlanner
from countersink.store.connection import Session
from countersink.store.sql import NOW_MS

_NO_LIMIT_S: Final = 3600
"""Time limit of a run whose job is not configured any more."""
_RETRY_DAYS: Final = 2
"""Days after which nobody tries a failed run again."""
_WHY: Final = {
    "planned": "RQ does not have it",
    "running": "its process is gone",
    "failed": "it failed and is tried again",
}


@dataclass(frozen=True, slots=True)
class Stray:
    """A run that is planned, running or failed, and may have to be enqueued again.

    Attributes:
        job: its name.
        planned_at: when it was to run; naive UTC.
        state: ``planned``, ``running`` or ``failed``.
        attempts: how often it was started.
        alive: whether a process is at it.
        over_s: seconds since it failed; 0 if it did not.
    """

    job: str
    planned_at: datetime
    state: str
    attempts: int
    alive: int
    over_s: int


class Sweep:
    """Looks for runs that got lost: planned but not in RQ's hands, left behind, or to be tried
    again. For one thread.

    Args:
        planner: for its connections and its clock, and for what is fenced.
    """

    def __init__(self, planner: RunPlanner) -> None:
        self._planner = planner
        self._runs = planner.runs
        self._options = planner.options
        self._log = planner.log

    def __call__(self) -> None:
        """Look once.

        Raises:
            Deposed: another is in charge.
            StoreError, StreamError: a server is away; look again later.
        """
        planner = self._planner
        planner.read_clock()  # somebody may have set it
        found = _strays(planner.session(), self._options.attempts)
        if not found and planner.redis_outage.lasted_s is None:
            return
        waiting = self._runs.waiting()
        for stray in found:
            if self._is_due(stray):
                self._again(stray, waiting)
        planner.redis_outage.over()

    def _is_due(self, stray: Stray) -> bool:
        if stray.alive:
            return False
        if stray.state == "failed":
            # Doubled with every attempt.
            pause = self._options.retry_after_s * 2.0 ** (stray.attempts - 1)
            times = self._options.jobs.get(stray.job)
            return times is not None and times.cron is not None and stray.over_s >= pause
        return True

    def _again(self, stray: Stray, waiting: set[str]) -> None:
        times = self._options.jobs.get(stray.job)
        tried = stray.attempts >= self._options.attempts or times is None
        if stray.state == "running" and tried:
            self._give_up(stray)
            return
        attempt = stray.attempts + 1
        if self._runs.in_hand(stray.job, stray.planned_at, attempt, waiting):
            return
        limit_s = _NO_LIMIT_S if times is None else times.limit_s
        self._runs.enqueue(stray.job, stray.planned_at, attempt, limit_s)
        self._log(
            ScheduleAction.REQUEUED,
            f"a run is enqueued again: {_WHY[stray.state]}",
            job=stray.job,
            at=stray.planned_at,
            attempt=attempt,
        )

    def _give_up(self, stray: Stray) -> None:
        """End a run whose process is gone as failed, unless somebody took it over meanwhile."""
        text = f"its process ended in the midst of it, {stray.attempts} times in all"

        def give_up(session: Session) -> int:
            return session.execute(
                "UPDATE job_run SET state = 'failed', ended_at = UTC_TIMESTAMP(3), error = %s"
                " WHERE job = %s AND planned_at = %s AND state = 'running' AND attempts = %s",
                (text[:TEXT], stray.job, stray.planned_at, stray.attempts),
            )

        if self._planner.fenced(give_up) != 1:
            return
        self._log(
            ScheduleAction.RUN_FAILED,
            text,
            level=logging.WARNING,
            job=stray.job,
            at=stray.planned_at,
        )
        for job in failing(self._planner.session(), stray.job):
            say_failing(self._log, job.job, job.times, job.error)


def _strays(session: Session, attempts: int) -> list[Stray]:
    """Runs that are planned, or running, or failed with less than ``attempts`` attempts and no
    later run of their job; the earliest first, at most 1,000 of each kind. Not those that failed
    for what they found, which have a detail: it does not pass by itself.
    """
    going = session.query(
        "SELECT r.job, r.planned_at, r.state, r.attempts,"
        f" COALESCE(l.holder = r.holder AND l.expires_at > {NOW_MS}, 0), 0"
        " FROM job_run r LEFT JOIN lease l ON l.name = CONCAT('job:', r.job)"
        " WHERE r.state IN ('planned', 'running') ORDER BY r.planned_at LIMIT 1000"
    )
    failed = session.query(
        "SELECT r.job, r.planned_at, r.state, r.attempts, 0,"
        " COALESCE(TIMESTAMPDIFF(SECOND, r.ended_at, UTC_TIMESTAMP(3)), 0)"
        " FROM job_run r WHERE r.state = 'failed' AND r.attempts < %s AND r.detail IS NULL"
        " AND r.planned_at > UTC_TIMESTAMP() - INTERVAL %s DAY"
        " AND NOT EXISTS (SELECT 1 FROM job_run n"
        # not what a wrong clock has dated ahead
        " WHERE n.job = r.job AND n.planned_at > r.planned_at"
        " AND n.planned_at <= UTC_TIMESTAMP() + INTERVAL 1 MINUTE)"
        " ORDER BY r.planned_at LIMIT 1000",
        (attempts, _RETRY_DAYS),
    )
    return [Stray(*row) for row in (*going, *failed)]
