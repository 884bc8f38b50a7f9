"""Reports of scheduler and job process: states, log actions, and ``RunHeartbeat``, the thread that
writes a run's sign of life to ``job_run`` and notices that the run was taken over. See
``options.py`` for the intervals.

Records of the log carry ``action`` and ``fields``; the process decides on their format and
destination. No record holds event data or a password.
"""

import ctypes
import logging
import mmap
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, Self

from countersink.database.errors import StoreError
from countersink.database.sessions import brief_session
from countersink.runtime.log import MAX_ERROR, Log
from countersink.schedules import runs
from countersink.schedules.options import JobProcessOptions
from countersink.schedules.runs import Attempt

LOGGER: Final = logging.getLogger("countersink.schedules")


@dataclass(slots=True)
class ProcessVitals:
    """State and times of a scheduler or job process, written by its threads, read by any.

    Attributes:
        state: ``starting``, ``waiting`` (a server is away); of a scheduler ``planning``; of a
            job process ``idle`` or ``running``.
        moved: time of the last step, on :func:`time.monotonic`; an attempt to reach a server that
            is away is a step.
        last_pass: time of the scheduler's last complete pass, on :func:`time.time`.
        runs: a scheduler's enqueued runs, a job process's started runs.
    """

    state: str = "starting"
    moved: float = field(default_factory=time.monotonic)
    last_pass: float | None = None
    runs: int = 0

    def step(self, state: str, last_pass: float | None = None) -> None:
        """Note a step, and the state from now on."""
        self.state, self.last_pass, self.moved = state, last_pass, time.monotonic()


class ScheduleAction(StrEnum):
    """Every action that a log record of the scheduler or a job process can carry."""

    STARTED = "started"
    """The process runs; no server was contacted yet."""
    READY = "ready"
    """The job process waits for runs; the scheduler plans them."""
    MISSED = "missed"
    """A run that no scheduler planned in time was planned now; of several missed runs the first."""
    REQUEUED = "requeued"
    """A run whose process died is to be started again."""
    CONFIGURED = "configured"
    """A job's times changed, or a job is new."""
    RUN_STARTED = "run_started"
    """A run begins."""
    RUN_DONE = "run_done"
    """A run ended well."""
    RUN_SKIPPED = "run_skipped"
    """A run was skipped, with the reason."""
    RUN_FAILED = "run_failed"
    """An attempt of a run failed: at level warning if it is tried again, else error."""
    RUN_STOPPED = "run_stopped"
    """A run was stopped before its work was done: it begins again in another process, or later."""
    RUN_LOST = "run_lost"
    """A run was given to another process while it ran."""
    WAITING = "waiting"
    """A server is away or refuses; logged at once, then every 30 s with the time so far
    (``for_s``).
    """
    RESUMED = "resumed"
    """The server serves again."""
    RQ = "rq"
    """A record of RQ or APScheduler."""
    SCHEMA_TOO_NEW = "schema_too_new"
    """The tables were migrated by a newer version: the process ends with status 1."""
    CRASHED = "crashed"
    """A bug: the process ends with status 1, or goes on with the next run."""
    STOPPING = "stopping"
    """A signal came."""
    STOP_FORCED = "stop_forced"
    """The process ends during a run, which is taken over later."""
    STOPPED = "stopped"
    """The process ends."""


class Forwarded(logging.Handler):
    """Handler that forwards a library's records as records of ours, without tracebacks."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log the first line of the record, except of a failed job, which is logged with its
        reason.
        """
        if hasattr(record, "job_id"):
            return
        line = record.getMessage().partition("\n")[0][:MAX_ERROR]
        # Not the error's text: it may hold anything, also data that others put into Redis.
        kind = record.exc_info[0] if record.exc_info else None
        cause = {} if kind is None else {"cause": kind.__qualname__}
        level = min(record.levelno, logging.WARNING)
        self._log(ScheduleAction.RQ, line, level=level, bug=None, logger=record.name, **cause)


def adopt(log: Log, *names: str) -> None:
    """Send records of the loggers ``names``, from warnings on, to ``log`` only."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [Forwarded(log)]
        logger.propagate = False


def shared_moment() -> ctypes.c_double:
    """A time, at first infinite, shared by this process and those that it forks later."""
    moment = ctypes.c_double.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_double)))
    moment.value = inf
    return moment


@dataclass(repr=False, eq=False)
class RunHeartbeat:
    """Signs of life of an attempt that has begun, inside a ``with`` block.

    Args:
        held_until: set to the time until which this process surely owns the run, on
            :func:`time.monotonic`, one clock for all processes of a host; infinite without a run.
        options: database, intervals.
        attempt: of the run.
        since: the earliest time at which it was begun, on that clock.
    """

    _held_until: ctypes.c_double
    _options: JobProcessOptions
    _attempt: Attempt
    _since: float

    def __post_init__(self) -> None:
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the run was or may have been taken over: no sign of life was written for long."""
        return self._lost or time.monotonic() >= self._held_until.value

    def __enter__(self) -> Self:
        self._held_until.value = self._since + self._options.silent_s
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the signs of life."""
        self._ended.set()
        # A thread that hangs ends with its short time-out.
        self._thread.join(2 * self._options.beat_every_s)
        self._held_until.value = inf

    def _run(self) -> None:
        session = brief_session(self._options.mysql_url)
        while not self._ended.wait(self._options.beat_every_s):
            begun = time.monotonic()
            with suppress(StoreError):  # tried again soon; `lost` says when it is too late
                if not runs.beat(session(), self._attempt):
                    self._lost = True
                    break
                self._held_until.value = begun + self._options.silent_s
        session.close()
