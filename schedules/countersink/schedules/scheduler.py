"""The scheduler process: every few seconds and at each planned time it plans the runs that are due,
hands them to RQ, and gives back runs whose process no longer shows signs of life; waiting for
servers that are away, which missed times are planned (``RECENT``), exit status, log lines. How
often: ``schedules/options.py``.

APScheduler wakes it at planned times, so that runs begin at once. It decides nothing: its clock is
the host's, and the database says what is due.

Any number of schedulers do the same at once: what is due follows from the tables, and each
statement of :mod:`countersink.schedules.runs` has one winner. A run is written before it is handed
to RQ, and is handed over again whenever RQ does not have it: whatever is lost in between, or in
Redis later, is found by the next look. An attempt that RQ has twice starts once.
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
    """Schedule until told to stop (SIGTERM, SIGINT or ``stop``); the exit status.

    Servers that are away are waited for.

    Args:
        options: the settings.
        stop: to stop it from another thread.
        vitals: written while it runs, for whoever watches it.

    Returns:
        0; 1 when the tables are too new for this program, or after a bug.

    Raises:
        Misconfigured, StreamMisconfigured: one of the URLs cannot be used.
    """
    Settings.parse(options.mysql_url)
    name = process_name()
    log, stop = Log(LOGGER, process=name), stop or Stop()
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    adopt(log, "apscheduler")
    alarm = _Alarm()
    with (
        connect_queue(options.redis_url, client_name="countersink-scheduler") as client,
        stop_by_signals(
            stop, log, options.stop_within_s, doing="ending in good order", asked=alarm.wake
        ),
    ):
        vitals = vitals or ProcessVitals()
        log(ScheduleAction.STARTED, "a scheduler starts", pid=os.getpid())
        session = brief_session(options.mysql_url)
        planner = Planner(session, RunQueue(client, vitals), options, log)
        outage, status = Outage("MySQL", log), DONE
        while not stop.requested:
            try:
                alarm.ring_in(planner.look())
                outage.over()
                if vitals.looked is None:
                    log(ScheduleAction.READY, "planning")
                vitals.step("planning", time.time())
            except StoreError as error:
                if isinstance(error, SchemaMismatch) and error.newer:
                    log(ScheduleAction.SCHEMA_TOO_NEW, error_text(error), level=logging.ERROR)
                    status = FAILED
                    break
                outage.failed(error)
                vitals.step("waiting", vitals.looked)
            except Exception as error:
                what = "an unexpected error ends the scheduler"
                log(ScheduleAction.CRASHED, what, level=logging.CRITICAL, bug=error)
                status = FAILED
                break
            alarm.rings(options.look_every_s)
        alarm.close()
        session.close()
        log(ScheduleAction.STOPPED, "a scheduler ends")
    return status


class _Alarm:
    """Wakes the process at a planned time."""

    def __init__(self) -> None:
        self._awake = threading.Event()
        # However late: a host that was frozen looks at once.
        self._timer = BackgroundScheduler(timezone=UTC, job_defaults={"misfire_grace_time": None})
        self._timer.start()

    def ring_in(self, seconds: float) -> None:
        """Wake after so many seconds, and at no other planned time."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self._timer.add_job(self.wake, "date", run_date=at, id="next", replace_existing=True)

    def wake(self) -> None:
        """Wake now; from any thread."""
        self._awake.set()

    def rings(self, seconds: float) -> None:
        """Wait until then, for so long at most."""
        self._awake.wait(seconds)
        self._awake.clear()

    def close(self) -> None:
        """Wake nobody any more."""
        self._timer.shutdown(wait=False)


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
