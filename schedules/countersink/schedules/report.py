"""What scheduler and job process report: states and log actions. ``RunHeartbeat``: the thread that
gives a run's sign of life in ``job_run`` and finds out that it is another's; how often, and for how
long it may fail: ``schedules/options.py``.

Records of the log carry ``action`` and ``fields``; how they look, and where they go, is up to
whoever runs the process. No record holds event data or a password.
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
from countersink.schedules.options import JobsOptions
from countersink.schedules.runs import Attempt

LOGGER: Final = logging.getLogger("countersink.schedules")


@dataclass(slots=True)
class ProcessVitals:
    """State and times of a scheduler or job process, written by its threads, read by any.

    Attributes:
        state: ``starting``, ``waiting`` (a server is away), and of a scheduler ``planning``, of a
            job process ``idle`` or ``running``.
        moved: when it last took a step, on :func:`time.monotonic`; a try to reach a server that is
            away is one.
        looked: when the scheduler last looked at everything, on :func:`time.time`.
        runs: of a scheduler those that it enqueued, of a job process those that it started.
    """

    state: str = "starting"
    moved: float = field(default_factory=time.monotonic)
    looked: float | None = None
    runs: int = 0

    def step(self, state: str, looked: float | None = None) -> None:
        """It moves, and this is what it does."""
        self.state, self.looked, self.moved = state, looked, time.monotonic()


class ScheduleAction(StrEnum):
    """Every action that a log record of the scheduler or a job process can carry."""

    STARTED = "started"
    """The process runs; no server was asked yet."""
    READY = "ready"
    """The job process waits for runs; the scheduler plans them."""
    MISSED = "missed"
    """A run that nobody planned in time was planned now; of those missed it is the first."""
    REQUEUED = "requeued"
    """A run that its process had left behind is to be started again."""
    CONFIGURED = "configured"
    """A job's times changed, or a job is new."""
    RUN_STARTED = "run_started"
    """A run begins."""
    RUN_DONE = "run_done"
    """A run ended well."""
    RUN_SKIPPED = "run_skipped"
    """A run was left out, with the reason."""
    RUN_FAILED = "run_failed"
    """An attempt of a run failed: at level warning if it is tried again, else error."""
    RUN_STOPPED = "run_stopped"
    """A run was told to end before its work was done: it begins again elsewhere, or later."""
    RUN_LOST = "run_lost"
    """A run was given to another process while it ran."""
    WAITING = "waiting"
    """A server is away or refuses; said at once, then every 30 s with how long (``for_s``)."""
    RESUMED = "resumed"
    """It serves again."""
    RQ = "rq"
    """RQ or APScheduler has something to say."""
    SCHEMA_TOO_NEW = "schema_too_new"
    """The tables were migrated by a newer version: the process ends with status 1."""
    CRASHED = "crashed"
    """A bug: the process ends with status 1, or goes on with the next thing."""
    STOPPING = "stopping"
    """A signal came."""
    STOP_FORCED = "stop_forced"
    """The process ends in the midst of something; a run is taken over later."""
    STOPPED = "stopped"
    """The process ends."""


class Forwarded(logging.Handler):
    """Passes on what a library logs, as records of ours without its tracebacks."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log the first line of the record, but of a failed job: that is said with its reason."""
        if hasattr(record, "job_id"):
            return
        line = record.getMessage().partition("\n")[0][:MAX_ERROR]
        # Its text may hold anything, also what others put into Redis.
        kind = record.exc_info[0] if record.exc_info else None
        cause = {} if kind is None else {"cause": kind.__qualname__}
        level = min(record.levelno, logging.WARNING)
        self._log(ScheduleAction.RQ, line, level=level, bug=None, logger=record.name, **cause)


def adopt(log: Log, *names: str) -> None:
    """Send what the loggers ``names`` say, from warnings on, to ``log`` alone."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [Forwarded(log)]
        logger.propagate = False


def shared_moment() -> ctypes.c_double:
    """A moment, at first infinite, that this process and those that it forks afterwards share."""
    moment = ctypes.c_double.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_double)))
    moment.value = inf
    return moment


@dataclass(repr=False, eq=False)
class RunHeartbeat:
    """Signs of life of an attempt that has begun, inside a ``with`` block.

    Args:
        held_until: where it tells the process that watches over the run until when the run is
            surely its own, on :func:`time.monotonic`, which is one clock for all processes of a
            host; infinite while there is no run.
        options: where, on a connection of its own, how long, and how often.
        attempt: whose.
        since: when it was begun at the earliest, on the same clock.
    """

    _held_until: ctypes.c_double
    _options: JobsOptions
    _attempt: Attempt
    _since: float

    def __post_init__(self) -> None:
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the run is another's, or may be: nobody was told of this one for long."""
        return self._lost or time.monotonic() >= self._held_until.value

    def __enter__(self) -> Self:
        self._held_until.value = self._since + self._options.silent_s
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the signs of life."""
        self._ended.set()
        # Joined for good order; one that hangs ends with its short time-out.
        self._thread.join(2 * self._options.beat_every_s)
        self._held_until.value = inf

    def _run(self) -> None:
        session = brief_session(self._options.mysql_url)
        while not self._ended.wait(self._options.beat_every_s):
            begun = time.monotonic()
            with suppress(StoreError):  # again soon; `lost` says when it is too late
                if not runs.beat(session(), self._attempt):
                    self._lost = True
                    break
                self._held_until.value = begun + self._options.silent_s
        session.close()
