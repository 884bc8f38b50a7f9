"""The scheduler process: one of any number is in charge, and plans; the others stand by.

APScheduler tells when a job is due; what is planned then follows from the tables.
"""

import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from countersink.schedules.cron import Cron
from countersink.schedules.figures import TIMEOUT_S, Figures
from countersink.schedules.leadership import Leadership, process_name
from countersink.schedules.logs import Action, Log, adopt, error_text
from countersink.schedules.options import SchedulerOptions
from countersink.schedules.patience import Outage, passes
from countersink.schedules.plan_sql import Deposed
from countersink.schedules.planning import Planner
from countersink.schedules.queue import Runs, connect_queue
from countersink.schedules.stopping import Stop, signals
from countersink.schedules.sweep import Sweep
from countersink.schedules.tables import Kept
from countersink.store.errors import SchemaMismatch, StoreError
from countersink.store.settings import Settings
from countersink.stream.connection import connect
from countersink.stream.errors import StreamError

DONE: Final = 0
FAILED: Final = 1


def run(options: SchedulerOptions, *, stop: Stop | None = None) -> int:
    """Schedule until told to stop (SIGTERM, SIGINT or ``stop``); the exit status.

    Servers that are away are waited for.

    Returns:
        0; 1 when the tables are too new for this program, or after a bug.

    Raises:
        Misconfigured, StreamMisconfigured: one of the URLs cannot be used.
    """
    Settings.parse(options.mysql_url)
    name = process_name()
    log, stop = Log(name), stop or Stop()
    # A thread that looks at every second needs no word in the log for each late look.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    adopt(log, "apscheduler")
    client = connect_queue(options.redis_url, client_name="countersink-scheduler")
    hasty = connect(options.redis_url, socket_timeout=TIMEOUT_S)
    try:
        with signals(stop, log, options.stop_within_s):
            figures = Figures(hasty, "scheduler", name)
            return _Process(options, name, log, stop, Runs(client), figures).run()
    finally:
        client.close()
        hasty.close()


class _Due(BaseTrigger):  # type: ignore[misc] # APScheduler is checked as if untyped
    """A cron expression as APScheduler's trigger."""

    def __init__(self, cron: Cron) -> None:
        self._cron = cron

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        """The first time after ``now``: what was due before is found in the tables."""
        return self._cron.after(now if previous is None else max(previous, now))


class _Process:
    """The parts of a scheduler, put together."""

    def __init__(
        self,
        options: SchedulerOptions,
        name: str,
        log: Log,
        stop: Stop,
        runs: Runs,
        figures: Figures,
    ) -> None:
        self._options = options
        self._name = name
        self._log = log
        self._stop = stop
        self._runs = runs
        self._figures = figures
        self._lease_session = Kept(options.mysql_url)
        self._leadership = Leadership(self._lease_session, name, options.lease_s)
        self._outage = Outage("MySQL", log)
        self._reign: _Reign | None = None
        self._said_standby = False

    def run(self) -> int:
        """Lead or stand by, until stopped."""
        self._log(Action.STARTED, "a scheduler starts", pid=os.getpid())
        status = DONE
        try:
            while not self._stop.requested:
                self._figures.publish(self._look())
                self._stop.wait(self._options.renew_every_s)
        except SchemaMismatch as error:
            self._log(Action.SCHEMA_TOO_NEW, error_text(error), level=logging.ERROR)
            status = FAILED
        except Exception as error:
            self._log(
                Action.CRASHED,
                "an unexpected error ends the scheduler",
                level=logging.CRITICAL,
                bug=error,
            )
            status = FAILED
        self._depose("it stops")
        try:
            self._leadership.resign()
        except StoreError:
            pass  # the lease runs out
        self._lease_session.close()
        self._figures.withdraw()
        self._log(Action.STOPPED, "a scheduler ends")
        return status

    def _look(self) -> str:
        """Renew the lease, or try to get it; the state to show."""
        try:
            self._leadership.step()
            self._outage.over()
        except StoreError as error:
            if not passes(error):
                raise
            self._outage.failed(error)
            self._leadership.expire()
            if self._leadership.token is None:
                self._depose("MySQL does not serve")
            return "waiting"
        token = self._leadership.token
        if self._reign is not None and self._reign.token != token:
            self._depose("its lease ran out")
        if token is None:
            if not self._said_standby:
                self._said_standby = True
                self._log(Action.STANDBY, "another scheduler is in charge: standing by")
            return "standby"
        if self._reign is None:
            self._said_standby = False
            self._log(Action.LEADING, "in charge", token=token)
            self._reign = _Reign(
                self._options, self._name, token, self._runs, self._log, self._outage
            )
            self._reign.start()
        return "leading"

    def _depose(self, why: str) -> None:
        if self._reign is not None:
            self._reign.end()
            self._reign = None
            self._said_standby = True
            self._log(Action.STANDBY, f"not in charge any more: {why}")


class _Reign:
    """What is done under one fencing token: all of it on one thread, by APScheduler."""

    def __init__(
        self,
        options: SchedulerOptions,
        name: str,
        token: int,
        runs: Runs,
        log: Log,
        mysql_outage: Outage,
    ) -> None:
        self.token = token
        self._options = options
        self._log = log
        self._redis = Outage("Redis", log)
        self._mysql = mysql_outage
        self._session = Kept(options.mysql_url)
        self._planner = Planner(self._session, runs, options, name, token, log, self._redis)
        self._sweep = Sweep(self._session, self._planner, runs, options, log)
        self._settled = False
        self._ended = threading.Event()
        self._clock = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={
                # However late: the callback looks at the tables for what is due, and a run that
                # APScheduler drops (by default after 1 s) would wait for the next sweep.
                "misfire_grace_time": None,
                # One call for several times that were missed: it plans each of them.
                "coalesce": True,
                # A second call at the same time would find nothing left to plan.
                "max_instances": 1,
            },
        )

    def start(self) -> None:
        """Begin to plan."""
        every = self._options.sweep_every_s
        self._clock.add_job(
            self._guarded,
            "interval",
            args=(self._look_after,),
            seconds=every,
            next_run_time=datetime.now(UTC),
            id="sweep",
        )
        for name, times in self._options.jobs.items():
            if times.cron is not None:
                self._clock.add_job(
                    self._guarded,
                    _Due(times.cron),
                    args=(partial(self._plan, name),),
                    id=f"job:{name}",
                )
        self._clock.start()

    def end(self) -> None:
        """Plan nothing more. What is under way may go on for a moment: it is fenced."""
        self._ended.set()
        self._clock.shutdown(wait=False)

    def _look_after(self) -> None:
        if not self._settled:
            self._planner.take_over()
            self._settled = True
        self._sweep()

    def _plan(self, name: str) -> None:
        if self._settled:  # else the first look plans what was missed
            self._planner.plan_due(name)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._ended.is_set():
            return
        try:
            work()
            self._mysql.over()
        except Deposed:
            return  # the lease's own thread finds out, and says so
        except StreamError as error:
            self._redis.failed(error)
        except StoreError as error:
            self._mysql.failed(error)
            self._look_again_soon()
        except Exception as error:
            self._log(
                Action.CRASHED,
                "an unexpected error in planning: trying again",
                level=logging.ERROR,
                bug=error,
            )
        finally:
            if self._ended.is_set():
                self._session.close()

    def _look_again_soon(self) -> None:
        """After an error of MySQL do not wait for the next sweep."""
        if not self._ended.is_set():
            soon = min(self._options.renew_every_s, self._options.sweep_every_s)
            self._clock.modify_job(
                "sweep", next_run_time=datetime.now(UTC) + timedelta(seconds=soon)
            )
