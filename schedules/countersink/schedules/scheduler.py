"""The scheduler process: every few seconds and at each planned time it plans due runs, hands them
to RQ, and gives back runs without signs of life; which missed times are planned (``RECENT``), waits
while servers are away, exit status, log lines. See ``options.py`` for the intervals.

APScheduler wakes it at planned times, so that runs begin at once. It decides nothing: its clock is
the host's, and the database's clock determines the due times.

Any number of schedulers may run: the tables determine the due runs, and each statement of
:mod:`countersink.schedules.runs` succeeds in one of them. A run is written before it is handed to
RQ, and is handed over again whenever RQ does not have it: the next pass finds all that was lost in
between, or in Redis later. An attempt that RQ has twice starts once.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from apscheduler.schedulers.background import BackgroundScheduler

from countersink.database.errors import SchemaMismatch, StoreError
from countersink.database.session import Session, rerun
from countersink.database.sessions import KeptSession, brief_session
from countersink.database.url import Settings
from countersink.runtime.log import Log, error_text
from countersink.runtime.process import Stop, process_name, stop_by_signals
from countersink.runtime.retry import Outage
from countersink.schedules import runs
from countersink.schedules.options import OFF, Cron, SchedulerOptions, Times, parse
from countersink.schedules.report import (
    LOGGER,
    ProcessVitals,
    ScheduleAction,
    adopt,
)
from countersink.schedules.rq_worker import RunQueue, connect_queue
from countersink.schedules.runs import JobRow, OpenRun
from countersink.stream.errors import StreamError

DONE: Final = 0
FAILED: Final = 1


def run(
    options: SchedulerOptions, *, stop: Stop | None = None, vitals: ProcessVitals | None = None
) -> int:
    """Schedule until stopped (SIGTERM, SIGINT or ``stop``); servers that are away are waited for.

    Args:
        options: of the scheduler.
        stop: to stop it from another thread.
        vitals: updated while it runs.

    Returns:
        Exit status 0; 1 when the tables are too new for this program, or after a bug.

    Raises:
        Misconfigured, StreamMisconfigured: one of the URLs cannot be used.
    """
    Settings.parse(options.mysql_url)
    name = process_name()
    log, stop = Log(LOGGER, process=name), stop or Stop()
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    adopt(log, "apscheduler")
    timer = _WakeTimer()
    with (
        connect_queue(options.redis_url, client_name="countersink-scheduler") as client,
        stop_by_signals(
            stop, log, options.stop_within_s, doing="ending in good order", asked=timer.wake
        ),
    ):
        vitals = vitals or ProcessVitals()
        log(ScheduleAction.STARTED, "a scheduler starts", pid=os.getpid())
        session = brief_session(options.mysql_url)
        planner = Planner(session, RunQueue(client, vitals), options, log)
        outage, status = Outage("MySQL", log), DONE
        while not stop.requested:
            try:
                timer.wake_in(planner.plan_once())
                outage.over()
                if vitals.last_pass is None:
                    log(ScheduleAction.READY, "planning")
                vitals.step("planning", time.time())
            except StoreError as error:
                if isinstance(error, SchemaMismatch) and error.newer:
                    log(ScheduleAction.SCHEMA_TOO_NEW, error_text(error), level=logging.ERROR)
                    status = FAILED
                    break
                outage.failed(error)
                vitals.step("waiting", vitals.last_pass)
            except Exception as error:
                message = "an unexpected error ends the scheduler"
                log(ScheduleAction.CRASHED, message, level=logging.CRITICAL, bug=error)
                status = FAILED
                break
            timer.wait(options.look_every_s)
        timer.close()
        session.close()
        log(ScheduleAction.STOPPED, "a scheduler ends")
    return status


class _WakeTimer:
    """Timer that wakes the process at a planned time."""

    def __init__(self) -> None:
        self._awake = threading.Event()
        # However late: after a freeze of the host, a pass starts at once.
        self._timer = BackgroundScheduler(timezone=UTC, job_defaults={"misfire_grace_time": None})
        self._timer.start()

    def wake_in(self, seconds: float) -> None:
        """Wake after so many seconds; replaces the planned time before."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self._timer.add_job(self.wake, "date", run_date=at, id="next", replace_existing=True)

    def wake(self) -> None:
        """Wake now; from any thread."""
        self._awake.set()

    def wait(self, seconds: float) -> None:
        """Wait for the planned time, at most so many seconds."""
        self._awake.wait(seconds)
        self._awake.clear()

    def close(self) -> None:
        """Stop the timer."""
        self._timer.shutdown(wait=False)


RECENT: Final = timedelta(seconds=60)
"""Greatest delay at which each time of a job is planned; of earlier times only the first."""


class Planner:
    """Plans, gives back and hands over runs, in passes of a few seconds' distance. For one thread.

    Args:
        session: with short time-outs.
        queue: RQ's queue.
        options: jobs and their times.
        log: of its actions.
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
        self._last_pass = 0.0

    def plan_once(self) -> float:
        """One pass; returns the seconds until the next planned time, at most ``look_every_s``.

        Raises:
            StoreError: the database failed; call again.
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
            self._silent.clear()  # while MySQL is away, silence proves nothing
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
        """Write the times of a job, once in the life of this process."""
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
            message = "a job is new, or its times changed"
            self._log(
                ScheduleAction.CONFIGURED, message, job=name, cron=text, time_zone=times.time_zone
            )

    def _plan(self, session: Session, jobs: Mapping[str, JobRow]) -> float:
        """Plan due runs; returns the seconds until the next planned time."""
        now = runs.clock(session)
        wait = timedelta(seconds=self._options.look_every_s)
        for job in jobs.values():
            # Unknown jobs and expressions belong to schedulers of other versions.
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
        """Plan all due times of a job; returns its next time."""
        while job.next_at is not None and job.next_at <= now:
            following = cron.after(max(job.next_at, now - RECENT))
            if not rerun(partial(runs.claim, session, job, following)):
                return now  # another scheduler did: read again
            if now - job.next_at > RECENT:
                message = "a missed run is planned now"
                self._log(ScheduleAction.MISSED, message, job=job.name, at=job.next_at)
            job = replace(job, next_at=following)
        upcoming = cron.after(now)
        if job.next_at is None or upcoming is None or job.next_at > upcoming:
            # New, or too far ahead: the database's clock was set back, or was ahead before.
            rerun(partial(runs.plan_next, session, job, upcoming))
            return upcoming
        return job.next_at

    def _give_back(self, session: Session, found: list[OpenRun]) -> None:
        """Give back runs that this process has seen running without a sign of life for
        ``silent_s``.
        """
        now = time.monotonic()
        if now - self._last_pass > 3 * self._options.look_every_s:
            self._silent.clear()  # this process was frozen, and perhaps the runs, too
        self._last_pass = now
        running = [run for run in found if run.state == "running"]
        self._silent = {run: self._silent.get(run, now) for run in running}
        for run, since in self._silent.items():
            left_behind = now - since >= self._options.silent_s
            if left_behind and rerun(partial(runs.give_back, session, run)):
                self._log(
                    ScheduleAction.REQUEUED,
                    "a run is to be started again: its process gives no sign of life",
                    level=logging.WARNING,
                    job=run.job,
                    at=run.planned_at,
                    attempt=run.attempts,
                )

    def _hand_over(self, due: list[OpenRun]) -> None:
        """Enqueue the due runs that RQ does not have."""
        if not due and self._redis.lasted_s is None:
            return
        waiting = self._queue.waiting()
        for run in due:
            attempt = run.attempts + 1
            if not self._queue.has_attempt(run.job, run.planned_at, attempt, waiting):
                limit_s = self._options.jobs[run.job].limit_s
                self._queue.enqueue(run.job, run.planned_at, attempt, limit_s)
