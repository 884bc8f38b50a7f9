"""The look of a scheduler at what is due: plans runs, hands those that are due to RQ, and gives
back those whose process has fallen silent; which missed times are planned (``RECENT``), and log
lines. How often: ``schedules/options.py``.

Any number of schedulers do the same at once: what is due follows from the tables, and each
statement of :mod:`countersink.schedules.runs` has one winner. A run is written before it is handed
to RQ, and is handed over again whenever RQ does not have it: whatever is lost in between, or in
Redis later, is found by the next look. An attempt that RQ has twice starts once.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from countersink.runtime.log import Log
from countersink.runtime.retry import Outage
from countersink.schedules import runs
from countersink.schedules.cron import OFF, Cron, parse
from countersink.schedules.options import SchedulerOptions, Times
from countersink.schedules.report import ScheduleAction
from countersink.schedules.runner.rq import RunQueue
from countersink.schedules.runs import JobRow, OpenRun
from countersink.database.session import Session, rerun
from countersink.database.errors import StoreError
from countersink.database.sessions import KeptSession
from countersink.stream.errors import StreamError

RECENT: Final = timedelta(seconds=60)
"""How late each time of a job is planned; of earlier ones the first alone."""


class Planner:
    """Looks at the tables, as a scheduler does every few seconds. For one thread.

    Args:
        session: with short time-outs.
        queue: RQ's queue.
        options: the jobs and their times.
        log: where it says what it does.
    """

    def __init__(
        self, session: KeptSession, queue: RunQueue, options: SchedulerOptions, log: Log
    ) -> None:
        self._session = session
        self._queue = queue
        self._options = options
        self._log = log
        self._redis = Outage("Redis", log)
        self._configured: set[str] = set()
        self._silent: dict[OpenRun, float] = {}
        self._looked_at = 0.0

    def look(self) -> float:
        """Do all that is due; after how many seconds the next time of a job comes, at most
        ``look_every_s``.

        Raises:
            StoreError: MySQL did not do its part; look again.
        """
        try:
            session = self._session()
            jobs = runs.jobs(session)
            missing = self._options.jobs.keys() - (self._configured & jobs.keys())
            for name in missing:
                self._configure(session, name, self._options.jobs[name])
            wait_s = self._plan(session, runs.jobs(session) if missing else jobs)
            found = runs.open_runs(session)
            self._give_back(session, found)
        except StoreError:
            self._silent.clear()  # no run was seen to be silent while MySQL was
            raise
        try:
            self._hand_over(
                [run for run in found if run.state == "planned" and run.job in self._options.jobs]
            )
            self._redis.over()
        except StreamError as error:
            self._redis.failed(error)
        return wait_s

    def _configure(self, session: Session, name: str, times: Times) -> None:
        """Write when a job runs, once in the life of this process."""
        cron = times.cron
        text = OFF if cron is None else cron.text
        upcoming = None if cron is None else cron.after(runs.clock(session))
        before = rerun(
            lambda: runs.configure(
                session,
                name,
                cron=text,
                time_zone=times.time_zone,
                upcoming=upcoming,
            )
        )
        self._configured.add(name)
        if before is None or (before.cron, before.time_zone) != (text, times.time_zone):
            what = "a job is new, or its times changed"
            self._log(
                ScheduleAction.CONFIGURED, what, job=name, cron=text, time_zone=times.time_zone
            )

    def _plan(self, session: Session, jobs: Mapping[str, JobRow]) -> float:
        """Plan what is due; after how many seconds the next time comes."""
        now = runs.clock(session)
        wait = timedelta(seconds=self._options.look_every_s)
        for job in jobs.values():
            # Other jobs, and expressions unknown here, are for schedulers of other versions.
            cron = None
            if job.name in self._options.jobs and not job.paused:
                with suppress(ValueError):
                    cron = parse(job.cron, job.time_zone)
            if cron is None:
                continue
            next_at = self._plan_due(session, job, cron, now)
            if next_at is not None:
                wait = min(wait, next_at - now)
        return max(0.0, wait.total_seconds())

    def _plan_due(
        self, session: Session, job: JobRow, cron: Cron, now: datetime
    ) -> datetime | None:
        """The next time of a job once all that was due is planned."""
        while job.next_at is not None and job.next_at <= now:
            following = cron.after(max(job.next_at, now - RECENT))
            if not rerun(partial(runs.claim, session, job, following)):
                return now  # by another scheduler: look again
            if now - job.next_at > RECENT:
                what = "a missed run is planned now"
                self._log(ScheduleAction.MISSED, what, job=job.name, at=job.next_at)
            job = replace(job, next_at=following)
        upcoming = cron.after(now)
        if job.next_at is None or upcoming is None or job.next_at > upcoming:
            # New, or planned further ahead: the database's clock was set back, or ahead before.
            rerun(partial(runs.plan_next, session, job, upcoming))
            return upcoming
        return job.next_at

    def _give_back(self, session: Session, found: list[OpenRun]) -> None:
        """Give back running ones that this process has seen silent for long enough."""
        now = time.monotonic()
        if now - self._looked_at > 3 * self._options.look_every_s:
            self._silent.clear()  # this process was frozen, and so may they have been
        self._looked_at = now
        running = [run for run in found if run.state == "running"]
        self._silent = {run: self._silent.get(run, now) for run in running}
        for run, since in self._silent.items():
            left_behind = now - since >= self._options.silent_s
            if left_behind and rerun(partial(runs.give_back, session, run)):
                self._log(
                    ScheduleAction.REQUEUED,
                    "a run is to be started again: its process is gone",
                    level=logging.WARNING,
                    job=run.job,
                    at=run.planned_at,
                    attempt=run.attempts,
                )

    def _hand_over(self, due: list[OpenRun]) -> None:
        """Give RQ the runs that it does not have."""
        if not due and self._redis.lasted_s is None:
            return
        waiting = self._queue.waiting()
        for run in due:
            attempt = run.attempts + 1
            if not self._queue.in_hand(run.job, run.planned_at, attempt, waiting):
                limit_s = self._options.jobs[run.job].limit_s
                self._queue.enqueue(run.job, run.planned_at, attempt, limit_s)
