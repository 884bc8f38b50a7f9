"""Reports of schedulers and job processes: their states, the actions in their logs, and
heartbeats. ``RunHeartbeat`` is the thread that writes a run's heartbeat to the table ``job_run``;
it notices if the run was taken over. See ``options.py`` for the intervals.

Records of the log carry ``action`` and ``fields``; the process decides on their format and
destination. No record contains event data or a password.
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
    """State and times of a scheduler or a job process. Its threads write them, and any thread may
    read them.

    Attributes:
        state: ``starting``, or ``waiting`` while MySQL (for a scheduler) or Redis (for a job
            process) is away; in a scheduler also ``planning``, in a job process also ``idle`` and
            ``running``.
        moved: the time of the last step, on the clock :func:`time.monotonic`. An attempt to reach a
            server that is away is a step, too.
        last_pass: the time of the scheduler's last complete pass, on the clock :func:`time.time`;
            None before the first one, and in a job process.
        runs: the number of attempts of runs that a scheduler has put into RQ's queue, or for which
            a job process has started a child process.
    """

    state: str = "starting"
    moved: float = field(default_factory=time.monotonic)
    last_pass: float | None = None
    runs: int = 0

    def step(self, state: str, last_pass: float | None = None) -> None:
        """Record a step of the process: the present time, and the new state. ``last_pass`` replaces
        the time of the last complete pass, even if it is None (as in a job process)."""
        self.state, self.last_pass, self.moved = state, last_pass, time.monotonic()


class ScheduleAction(StrEnum):
    """The actions that log records of a scheduler or a job process can carry."""

    STARTED = "started"
    """The process runs, and has not contacted a server yet."""
    READY = "ready"
    """The process is ready: a job process waits for runs, or a scheduler plans them."""
    MISSED = "missed"
    """A scheduler planned a run late, because none could plan it at its time. If several runs of
    the job were missed, only the first is planned, and those of the last minute."""
    REQUEUED = "requeued"
    """The process of a run writes no heartbeats, and the run is to be started again."""
    CONFIGURED = "configured"
    """The times of a job changed, or the job is new."""
    RUN_STARTED = "run_started"
    """A run begins."""
    RUN_DONE = "run_done"
    """A run ended well."""
    RUN_SKIPPED = "run_skipped"
    """A run was skipped; the record has the reason."""
    RUN_FAILED = "run_failed"
    """An attempt of a run failed. The level is warning if the run is tried again, else error."""
    RUN_STOPPED = "run_stopped"
    """A run was stopped before its work was done. It goes on or begins again in another process, or
    later."""
    RUN_LOST = "run_lost"
    """A run was or will be given to another process while this process was executing it."""
    WAITING = "waiting"
    """A server is away or refuses. This is logged at once, then every 30 s with the seconds so far
    (``for_s``)."""
    RESUMED = "resumed"
    """The server answers again."""
    RQ = "rq"
    """A record that RQ or APScheduler logged."""
    SCHEMA_TOO_NEW = "schema_too_new"
    """The tables were migrated by a newer version: the process ends with status 1."""
    CRASHED = "crashed"
    """An error that is a bug. A scheduler ends with status 1; a job process goes on with the next
    run."""
    STOPPING = "stopping"
    """A signal asked the process to stop."""
    STOP_FORCED = "stop_forced"
    """The current run is killed, and is taken over later; or the process is forced to end."""
    STOPPED = "stopped"
    """The process ends."""


class Forwarded(logging.Handler):
    """A log handler that writes the records of a library to a log of countersink, from the level
    warning on and without tracebacks."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log the first line of the record, and the type of its error if it has one; the level is
        at most warning. Leave out records about a failed job: another log record has that failure,
        with the reason."""
        if hasattr(record, "job_id"):
            return
        line = record.getMessage().partition("\n")[0][:MAX_ERROR]
        # Not the error's text: it may hold anything, also data that others put into Redis.
        kind = record.exc_info[0] if record.exc_info else None
        cause = {} if kind is None else {"cause": kind.__qualname__}
        level = min(record.levelno, logging.WARNING)
        self._log(ScheduleAction.RQ, line, level=level, bug=None, logger=record.name, **cause)


def adopt(log: Log, *names: str) -> None:
    """Send the records of the loggers ``names``, from the level warning on, to ``log`` and nowhere
    else."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [Forwarded(log)]
        logger.propagate = False


def shared_moment() -> ctypes.c_double:
    """Return a variable for a time in seconds (``Process.held_until``), in memory that this process
    shares with all processes that it forks later. A process sees the changes of the others. The
    time is infinite at first."""
    moment = ctypes.c_double.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_double)))
    moment.value = inf
    return moment


@dataclass(repr=False, eq=False)
class RunHeartbeat:
    """The heartbeat of an attempt: within a ``with`` block, a thread writes the time to the run's
    row again and again, so that no scheduler gives the run to another process.

    Args:
        held_until: this object sets it to the time until which no other process can take over the
            run, on the clock :func:`time.monotonic`, which all processes of a host share. After the
            block it is infinite. The job process kills a run that still works ``silent_s``
            seconds after ``held_until``.
        options: the options of the job process, with the database and the intervals.
        attempt: the attempt, which has begun.
        since: a time on the same clock, just before the attempt began.
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
        """True if another process has taken over the run. Also True if another process may have
        taken it over, because no heartbeat could be written for too long."""
        return self._lost or time.monotonic() >= self._held_until.value

    def __enter__(self) -> Self:
        self._held_until.value = self._since + self._options.silent_s
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the heartbeat, and set ``held_until`` to infinity."""
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
