"""The scheduler process. Every few seconds, and at each planned time, it plans the runs that are
due, hands them to RQ, and gives back runs whose processes write no heartbeats (so that they can be
started again). This module also determines which missed times are planned (``RECENT``), how the
process waits while servers are away, its exit status and its log lines. See ``options.py`` for the
intervals.

APScheduler wakes the process at planned times, so that runs begin at once. It does not decide which
runs are due: it goes by the host's clock, and due times go by the database's clock.

Any number of schedulers may run. The tables say which runs are due, and each statement of
:mod:`countersink.schedules.runs` succeeds in only one of them. A run is written to the tables
before it is handed to RQ. In each pass, all due runs that RQ does not have are handed to it again,
so that a crash in between, or the loss of Redis, does not matter. If RQ has an attempt twice, it
starts once.
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
    """Plan runs until a stop is requested (by SIGTERM, SIGINT or ``stop``). While MySQL is away,
    the scheduler waits for it. While Redis is away, it plans runs, and hands them to RQ later.

    Args:
        options: the options of the scheduler.
        stop: the request to stop, with which another thread can end the process; None if only
            signals can.
        vitals: the state and numbers for metrics, which are updated during the call; None if they
            are not needed.

    Returns:
        The exit status: 0 after a stop; 1 if the tables are too new for this program, or after an
        unexpected error.

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
    """A timer that ends the wait of the scheduler's main thread at a planned time."""

    def __init__(self) -> None:
        self._awake = threading.Event()
        # However late: after a freeze of the host, a pass starts at once.
        self._timer = BackgroundScheduler(timezone=UTC, job_defaults={"misfire_grace_time": None})
        self._timer.start()

    def wake_in(self, seconds: float) -> None:
        """Set the timer: it calls :meth:`wake` after this number of seconds, once. This replaces a
        time that was set before."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self._timer.add_job(self.wake, "date", run_date=at, id="next", replace_existing=True)

    def wake(self) -> None:
        """End the main thread's :meth:`wait` now. If it does not wait now, its next wait returns at
        once. Any thread may call this."""
        self._awake.set()

    def wait(self, seconds: float) -> None:
        """Wait until the timer or a thread calls :meth:`wake`, for at most this number of seconds.
        Return at once if it was called since the last wait."""
        self._awake.wait(seconds)
        self._awake.clear()

    def close(self) -> None:
        """Stop the timer."""
        self._timer.shutdown(wait=False)


RECENT: Final = timedelta(seconds=60)
"""Greatest delay with which every planned time of a job still gets a run. Of the times that are
longer ago, only the first gets one."""


class Planner:
    """Plans due runs, gives back runs whose processes are silent, and puts runs into RQ's queue.
    Each call of :meth:`plan_once` is one pass; the caller waits between passes. For use in one
    thread.

    Args:
        session: returns a session with short time-outs, and opens it again after a loss.
        queue: RQ's queue.
        options: the options of the scheduler, with the jobs and their times.
        log: the log for its actions.
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
        """Plan due runs, give back silent ones, and put due runs into RQ's queue, once. Returns the
        seconds until the next planned time, at most ``look_every_s``. If Redis fails, that is
        logged, and the due runs are put into the queue in a later pass.

        Raises:
            StoreError: the database failed; call this again.
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
        """Write the times of a job to its row, which is made if it is missing. The caller does this
        once for each job in the life of this process, and again if the row is gone.
        """
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
        """Plan the due runs of ``jobs``. Return the seconds until the next planned time, at most
        ``look_every_s``. Jobs that are paused, off, or not in the options are left out, and those
        whose cron expression or time zone is not valid here."""
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
        """Plan the due runs of one job. Returns the job's next time; None if there is none. Returns
        ``now`` if the job was changed or paused meanwhile, so that it must be read again.

        Of the times that are longer ago than ``RECENT``, only the first gets a run. If the job has
        no next time, or a later one than ``cron`` says, the time that ``cron`` says is written.

        Args:
            session: a session outside a transaction.
            job: the job's row, as it was read.
            cron: the cron expression in that row.
            now: the time of the database.
        """
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
        """Let the silent runs in ``found`` be started again: running ones of which this process has
        seen no new heartbeat for ``silent_s`` seconds. After a long gap between two passes, it
        counts these seconds anew, since the process may have been frozen."""
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
        """Put the next attempt of each due run into RQ's queue, unless RQ has it already, waiting
        or started. Raises StreamError."""
        if not due and self._redis.lasted_s is None:
            return
        waiting = self._queue.waiting()
        for run in due:
            attempt = run.attempts + 1
            if not self._queue.has_attempt(run.job, run.planned_at, attempt, waiting):
                limit_s = self._options.jobs[run.job].limit_s
                self._queue.enqueue(run.job, run.planned_at, attempt, limit_s)
