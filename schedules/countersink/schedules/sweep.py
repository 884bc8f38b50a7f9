"""Looking for runs that got lost: planned but not in RQ's hands, left behind, or to be tried again.

Everything is in MySQL, so this heals whatever happens to Redis: a run whose enqueue failed or was
cut off by the planner's death, a queue that was flushed, a process that was killed. An attempt that
is enqueued once too often starts nothing, so there is nothing to be careful about.
"""

import logging
from functools import partial

from countersink.schedules import plan_sql
from countersink.schedules.history import failing
from countersink.schedules.logs import Action, Log
from countersink.schedules.options import SchedulerOptions
from countersink.schedules.patience import Outage
from countersink.schedules.plan_sql import Stray
from countersink.schedules.planning import Planner
from countersink.schedules.queue import Runs
from countersink.schedules.tables import Kept
from countersink.store.connection import Session

_NO_LIMIT_S = 3600
"""Time limit of a run whose job is not configured any more."""


class Sweep:
    """The sweep of the scheduler in charge. For one thread.

    Args:
        session: the planner's connection.
        planner: for its clock, and for what is fenced.
        runs: RQ's queue.
        options: the settings.
        log: where it says what it found.
        redis_outage: over, when Redis did its part.
    """

    def __init__(
        self,
        session: Kept,
        planner: Planner,
        runs: Runs,
        options: SchedulerOptions,
        log: Log,
        redis_outage: Outage,
    ) -> None:
        self._session = session
        self._planner = planner
        self._runs = runs
        self._options = options
        self._log = log
        self._redis = redis_outage

    def __call__(self) -> None:
        """Look once.

        Raises:
            Deposed: another is in charge.
            StoreError, StreamError: a server is away; look again later.
        """
        self._planner.read_clock()  # somebody may have set it
        found = plan_sql.strays(self._session(), self._options.attempts)
        if not found and self._redis.lasted_s is None:
            return
        waiting = self._runs.waiting()
        for stray in found:
            if self._is_due(stray):
                self._again(stray, waiting)
        self._redis.over()

    def _is_due(self, stray: Stray) -> bool:
        if stray.alive:
            return False
        if stray.state == "failed":
            # Doubled with every attempt.
            pause = self._options.retry_after_s * 2.0 ** (stray.attempts - 1)
            return self._is_active(stray.job) and stray.over_s >= pause
        return True

    def _is_active(self, job: str) -> bool:
        times = self._options.jobs.get(job)
        return times is not None and times.cron is not None

    def _again(self, stray: Stray, waiting: set[str]) -> None:
        inactive = stray.job not in self._options.jobs
        if stray.state == "running" and (stray.attempts >= self._options.attempts or inactive):
            self._give_up(stray)
            return
        attempt = stray.attempts + 1
        if self._runs.in_hand(stray.job, stray.planned_at, attempt, waiting):
            return
        times = self._options.jobs.get(stray.job)
        limit_s = _NO_LIMIT_S if times is None else times.limit_s
        self._runs.enqueue(stray.job, stray.planned_at, attempt, limit_s)
        why = {
            "planned": "RQ does not have it",
            "running": "its process is gone",
            "failed": "it failed and is tried again",
        }[stray.state]
        self._log(
            Action.REQUEUED,
            f"a run is enqueued again: {why}",
            job=stray.job,
            at=stray.planned_at,
            attempt=attempt,
        )

    def _give_up(self, stray: Stray) -> None:
        text = f"its process ended in the midst of it, {stray.attempts} times in all"
        if not self._planner.fenced(partial(_give_up, stray, text)):
            return
        self._log(
            Action.RUN_FAILED, text, level=logging.WARNING, job=stray.job, at=stray.planned_at
        )
        for job in failing(self._session(), stray.job):
            self._log(
                Action.FAILING,
                "a job failed three times in a row or more: see countersink runs",
                level=logging.ERROR,
                job=job.job,
                times=job.times,
                error=job.error,
            )


def _give_up(stray: Stray, text: str, session: Session) -> bool:
    return plan_sql.give_up(session, stray, text)
