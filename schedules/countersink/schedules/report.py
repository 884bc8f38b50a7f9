"""What scheduler and job process report: states and log actions.

Records of the log carry ``action`` and ``fields``; how they look, and where they go, is up to
whoever runs the process. No record holds event data or a password.
"""

import logging
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from countersink.runtime.log import MAX_ERROR, Log

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
