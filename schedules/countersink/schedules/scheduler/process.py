"""The scheduler process: leader or standby, gives up the lease when it cannot reach Redis, exit
status, log lines.

The thread that renews the lease does nothing else; what is done while it is held, and by which
clock, see :mod:`countersink.schedules.scheduler.leader`.
"""

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from countersink.runtime.log import Log, error_text
from countersink.runtime.process import Stop, process_name, stop_by_signals
from countersink.runtime.retry import Outage
from countersink.schedules.options import SchedulerOptions
from countersink.schedules.report import (
    LOGGER,
    ProcessHeartbeat,
    ProcessVitals,
    ScheduleAction,
    adopt,
)
from countersink.schedules.runner.rq import RunQueue, connect_queue
from countersink.schedules.scheduler.leader import Leadership, Term, idle_seconds
from countersink.schedules.scheduler.planner import RunPlanner
from countersink.store.errors import SchemaMismatch, StoreError
from countersink.store.sessions import KeptSession, lease_session, passes
from countersink.store.settings import Settings
from countersink.stream.connection import connect
from countersink.stream.progress import TIMEOUT_S

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
    # A thread that looks at every second needs no word in the log for each late look.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    adopt(log, "apscheduler")
    with (
        connect_queue(options.redis_url, client_name="countersink-scheduler") as client,
        connect(options.redis_url, socket_timeout=TIMEOUT_S) as hasty,
        stop_by_signals(stop, log, options.stop_within_s, doing="ending in good order"),
    ):
        vitals = vitals or ProcessVitals()
        figures = ProcessHeartbeat(hasty, "scheduler", name, vitals)
        return _Process(options, name, log, stop, RunQueue(client, vitals), figures).run()


@dataclass
class _Process:
    """The parts of a scheduler, put together."""

    _options: SchedulerOptions
    _name: str
    _log: Log
    _stop: Stop
    _runs: RunQueue
    _figures: ProcessHeartbeat

    def __post_init__(self) -> None:
        self._lease_session = self._connected()
        self._leadership = Leadership(self._lease_session, self._name, self._options.lease_s)
        self._outage = Outage("MySQL", self._log)
        self._planning_log = Log(LOGGER, process=self._name)
        self._redis_outage = Outage("Redis", self._planning_log)
        self._term: Term | None = None
        self._stay_until = 0.0
        self._said_standby = False

    def run(self) -> int:
        """Lead or stand by, until stopped."""
        self._log(ScheduleAction.STARTED, "a scheduler starts", pid=os.getpid())
        status = DONE
        try:
            while not self._stop.requested:
                state = self._look()
                looked = None if self._term is None else self._term.looked
                self._figures.publish(state, looked=looked)
                self._stop.wait(self._options.renew_every_s)
        except SchemaMismatch as error:
            self._log(ScheduleAction.SCHEMA_TOO_NEW, error_text(error), level=logging.ERROR)
            status = FAILED
        except Exception as error:
            self._log(
                ScheduleAction.CRASHED,
                "an unexpected error ends the scheduler",
                level=logging.CRITICAL,
                bug=error,
            )
            status = FAILED
        self._end_term("it stops")
        self._planning_log.mute()
        with suppress(StoreError):  # the lease runs out
            self._leadership.resign()
        self._lease_session.close()
        self._figures.withdraw()
        self._log(ScheduleAction.STOPPED, "a scheduler ends")
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
                self._end_term("MySQL does not serve")
            return "waiting"
        token = self._leadership.token
        if self._term is not None and self._term.token != token:
            self._end_term("its lease ran out")
        if token is None:
            if not self._said_standby:
                self._said_standby = True
                self._log(ScheduleAction.STANDBY, "another scheduler is in charge: standing by")
            return "standby"
        if self._term is None:
            self._said_standby = False
            self._log(ScheduleAction.LEADING, "in charge", token=token)
            planner = RunPlanner(
                self._connected(),
                self._runs,
                self._options,
                self._name,
                token,
                self._planning_log,
                self._redis_outage,
            )
            self._term = Term(planner)
            self._term.start()
        elif self._term.cut_off_s >= self._options.lease_s:
            self._make_room()
        return "standby" if self._term is None else "leading"

    def _connected(self) -> KeptSession:
        options = self._options
        return lease_session(options.mysql_url, idle_seconds=idle_seconds(options.lease_s))

    def _make_room(self) -> None:
        """Let another be in charge, who may reach the jobs' Redis: without it no run begins.

        If nobody takes over in twice the time of the lease, it goes on, for 20 times that long at
        least: others may be cut off too.
        """
        if time.monotonic() < self._stay_until:
            return
        stand_back_s = 2 * self._options.lease_s
        self._end_term("it cannot reach the jobs' Redis, and another scheduler may")
        self._stay_until = time.monotonic() + stand_back_s + 20 * self._options.lease_s
        try:
            self._leadership.resign(stand_back_s)
        except StoreError as error:
            self._outage.failed(error)  # the lease runs out

    def _end_term(self, why: str) -> None:
        if self._term is not None:
            self._term.end()
            self._term = None
            self._said_standby = True
            self._log(ScheduleAction.STANDBY, f"not in charge any more: {why}")
