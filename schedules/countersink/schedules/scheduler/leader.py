"""The leader's thread: how often it looks for due jobs (``LOOK_EVERY_S``) and ends its term, and
taking and renewing the leader's lease; lengths of lease and sweep: ``schedules/options.py``.

That thread looks at every job at least once a second, by a clock that nobody sets, and asks MySQL
only where something is due; so no clock of the host can keep it from planning, or from its sweep.
APScheduler wakes it at the planned times: runs are then planned at once, and not up to a second
late. It decides nothing: what is due follows from the tables.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from countersink.runtime.retry import Outage
from countersink.schedules.cron import Cron
from countersink.schedules.errors import Deposed
from countersink.schedules.history import LEASE
from countersink.schedules.report import ScheduleAction
from countersink.schedules.scheduler.planner import RunPlanner
from countersink.schedules.scheduler.sweep import Sweep
from countersink.store import lease
from countersink.store.errors import Conflict, StoreError
from countersink.store.sessions import KeptSession
from countersink.stream.errors import StreamError

LOOK_EVERY_S: Final = 1.0
"""Seconds between two looks at what is due, at most."""
END_WITHIN_S: Final = 2.0
"""Seconds that the thread has to end what is at hand; then its connection is broken."""
_BREAK_WITHIN_S: Final = 1.0


class Term:
    """The planning thread of the scheduler in charge, from :meth:`start` to :meth:`end`.

    Args:
        planner: what it plans with. Its outage of RQ's Redis may begin in one term, and end in the
            next one.

    Attributes:
        token: of the lease.
        looked: when it last looked after all runs, on :func:`time.time`; at first when it began.
    """

    def __init__(self, planner: RunPlanner) -> None:
        self.token = planner.token
        self.looked = time.time()
        self._planner = planner
        self._options = planner.options
        self._log = planner.log
        self._redis = planner.redis_outage
        self._mysql = Outage("MySQL", planner.log)
        self._sweep = Sweep(planner)
        self._ended = threading.Event()
        self._awake = threading.Event()
        self._settled = False
        self._swept = False
        self._sweep_at = 0.0
        self._alarm = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={
                # However late: by default a call that is late by a second is dropped.
                "misfire_grace_time": None,
                # One call for several times that were missed: whoever wakes plans each of them.
                "coalesce": True,
                "max_instances": 1,
            },
        )
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)

    def start(self) -> None:
        """Begin to plan."""
        self._thread.start()

    def end(self) -> None:
        """Plan nothing more. What cannot be ended in a few seconds is fenced."""
        self._ended.set()
        self._awake.set()
        self._thread.join(END_WITHIN_S)
        if self._thread.is_alive():
            self._planner.session.abort()
            self._thread.join(_BREAK_WITHIN_S)

    @property
    def cut_off_s(self) -> float:
        """For how many seconds RQ's Redis was seen not to serve; 0 if it does, or was not asked."""
        return (self._redis.lasted_s or 0.0) if self._swept else 0.0

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._look()
                self._awake.wait(LOOK_EVERY_S)
                self._awake.clear()
        finally:
            if self._alarm.running:
                self._alarm.shutdown(wait=False)
            self._planner.session.close()

    def _look(self) -> None:
        if not self._settled:
            self._guarded(self._settle)
        if not self._settled:
            return
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + self._options.sweep_every_s
            self._guarded(self._look_after_runs)
        for name in self._options.jobs:
            if self._planner.is_due(name):
                self._guarded(partial(self._planner.plan_due, name))

    def _look_after_runs(self) -> None:
        try:
            self._sweep()
        finally:
            self._swept = True
        self.looked = time.time()

    def _settle(self) -> None:
        self._planner.take_over()
        self._settled = True
        for name, times in self._options.jobs.items():
            if times.cron is not None:
                trigger = _Due(times.cron, self._planner.now)
                self._alarm.add_job(self._awake.set, trigger, id=name)
        self._alarm.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        """``work``, which asks MySQL, if this term goes on; and what is said if it fails."""
        if self._ended.is_set():
            return
        try:
            work()
            self._mysql.over()
        except Deposed:
            self._ended.wait(LOOK_EVERY_S)  # the lease's own thread finds out, and says so
        except StreamError as error:
            self._redis.failed(error)
            self._look_again_soon()
        except StoreError as error:
            self._mysql.failed(error)
            self._look_again_soon()
        except Exception as error:
            self._log(
                ScheduleAction.CRASHED,
                "an unexpected error in planning: trying again",
                level=logging.ERROR,
                bug=error,
            )
            self._ended.wait(self._options.renew_every_s)

    def _look_again_soon(self) -> None:
        """After an error do not wait for the next sweep."""
        soon = min(self._options.renew_every_s, self._options.sweep_every_s)
        self._sweep_at = min(self._sweep_at, time.monotonic() + soon)


class _Due(BaseTrigger):  # type: ignore[misc] # APScheduler is checked as if untyped
    """A cron expression on the database's clock, as APScheduler's trigger on this host's."""

    def __init__(self, cron: Cron, clock: Callable[[], datetime]) -> None:
        self._cron = cron
        self._clock = clock

    def get_next_fire_time(self, _: datetime | None, now: datetime) -> datetime | None:
        """When this host's clock will show that the database's shows the next time."""
        there = self._clock()
        upcoming = self._cron.after(there)
        return None if upcoming is None else now + (upcoming - there)


def idle_seconds(lease_s: float) -> int:
    """After how many idle seconds MySQL ends the sessions of a scheduler with such a lease.

    Well before the lease runs out: one that was frozen in a transaction has the lease's row locked,
    and nobody could take over while it does. More than a busy host needs between two statements.
    """
    return max(3, math.ceil(lease_s / 2))


class Leadership:
    """The leader's lease: taking, renewing and giving it back. For one thread.

    It says who *should* plan. Whoever was paused may believe in a lease that ran out: so what is
    planned is checked against the lease's row in the same transaction, see
    :mod:`countersink.schedules.scheduler.planner`.

    Attributes:
        token: the fencing token while in charge, else None.
    """

    def __init__(self, session: KeptSession, holder: str, lease_s: float) -> None:
        self._session = session
        self._holder = holder
        self._lease_s = lease_s
        self._until = 0.0
        self._not_before = 0.0
        self.token: int | None = None

    def step(self) -> None:
        """Renew the lease, or take it if nobody holds it; ``token`` says what came of it.

        Raises:
            StoreError: MySQL did not answer; in charge until the lease has surely run out.
        """
        begun = time.monotonic()
        if self.token is not None:
            # Where it was frozen, or cut off, for long, somebody else may have been in charge.
            held = begun < self._until
            if held and lease.renew(self._session(), LEASE, self._holder, self._lease_s):
                self._until = begun + self._lease_s
                return
            self.token = None
        if begun < self._not_before:
            return
        try:
            self.token = lease.acquire(
                self._session(), LEASE, self._holder, self._lease_s, attempts=1
            )
        except Conflict:
            return  # a session that is gone has the row locked for some seconds more
        self._until = begun + self._lease_s

    def expire(self) -> None:
        """Forget a lease that could not be renewed in time."""
        if self.token is not None and time.monotonic() >= self._until:
            self.token = None

    def resign(self, stand_back_s: float = 0.0) -> None:
        """Give the lease back, so that another need not wait for its end.

        Args:
            stand_back_s: seconds in which it is left to others.

        Raises:
            StoreError: then it runs out by itself.
        """
        self._not_before = time.monotonic() + stand_back_s
        if self.token is not None:
            self.token = None
            lease.release(self._session(), LEASE, self._holder)
