"""The scheduler process: looks every few seconds and at each planned time, waits for servers that
are away, exit status, log lines.

APScheduler wakes it at planned times, so that runs begin at once. It decides nothing: its clock is
the host's, and what is due is the database's to say
(:mod:`countersink.schedules.scheduler.planner`).
"""

import logging
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from apscheduler.schedulers.background import BackgroundScheduler

from countersink.runtime.log import Log, error_text
from countersink.runtime.process import Stop, process_name, stop_by_signals
from countersink.runtime.retry import Outage
from countersink.schedules.options import SchedulerOptions
from countersink.schedules.report import (
    LOGGER,
    ProcessVitals,
    ScheduleAction,
    adopt,
)
from countersink.schedules.runner.rq import RunQueue, connect_queue
from countersink.schedules.scheduler.planner import Planner
from countersink.database.errors import SchemaMismatch, StoreError
from countersink.database.sessions import brief_session
from countersink.database.url import Settings

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
