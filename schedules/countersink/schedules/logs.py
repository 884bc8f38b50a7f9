"""What the scheduler and the job process say: records with an ``action`` that machines can rely on.

Records carry ``action`` and ``fields``; how they look, and where they go, is up to whoever runs the
process. No record holds event data or a password.
"""

import logging
from enum import StrEnum
from typing import Final

LOGGER: Final = logging.getLogger("countersink.schedules")
MAX_ERROR: Final = 300
"""Characters of an error in a record."""
FAILING_AFTER: Final = 3
"""Attempts in a row that failed before a job counts as failing."""


class Action(StrEnum):
    """Every action a record can carry."""

    STARTED = "started"
    """The process runs; no server was asked yet."""
    READY = "ready"
    """The job process waits for runs."""
    STANDBY = "standby"
    """Another scheduler is in charge, or this one no longer is: it plans nothing."""
    LEADING = "leading"
    """This scheduler is in charge."""
    PLANNED = "planned"
    """A run was planned and enqueued (level debug)."""
    MISSED = "missed"
    """The last of the runs that nobody planned in time was planned now."""
    LEFT_OUT = "left_out"
    """Runs that are much too late were left out; the last of them was planned."""
    REQUEUED = "requeued"
    """A run that RQ had lost, that its process had left behind, or that is to be tried again."""
    CLOCK = "clock"
    """MySQL's clock was set back: planning goes on from there, and nothing is planned twice."""
    CONFIGURED = "configured"
    """A job's times changed, or a job is new or gone."""
    RUN_STARTED = "run_started"
    """A run begins."""
    RUN_DONE = "run_done"
    """A run ended well."""
    RUN_SKIPPED = "run_skipped"
    """A run was left out, with the reason."""
    RUN_IGNORED = "run_ignored"
    """What was enqueued is no run that could start: it did, or was never planned (level debug)."""
    RUN_FAILED = "run_failed"
    """A run failed."""
    RUN_STOPPED = "run_stopped"
    """A run was told to end before its work was done: it begins again elsewhere, or later."""
    RUN_LOST = "run_lost"
    """A run's lease ran out, or was taken over, while it ran."""
    FAILING = "failing"
    """A job has failed three times in a row or more."""
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


class Log:
    """Writes records with an action.

    Args:
        process: the name of the process; every record carries it.
    """

    def __init__(self, process: str) -> None:
        self._process = process

    def __call__(
        self,
        action: Action,
        message: str,
        *,
        level: int = logging.INFO,
        bug: BaseException | None = None,
        **fields: object,
    ) -> None:
        """Log ``message`` with its fields; ``bug`` adds an unexpected exception's traceback."""
        if LOGGER.isEnabledFor(level):
            extra = {"action": str(action), "fields": {"process": self._process, **fields}}
            LOGGER.log(level, message, extra=extra, exc_info=bug)


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
        self._log(Action.RQ, line, level=level, bug=None, logger=record.name, **cause)


def adopt(log: Log, *names: str) -> None:
    """Send what the loggers ``names`` say, from warnings on, to ``log`` alone."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [Forwarded(log)]
        logger.propagate = False


def error_text(error: BaseException) -> str:
    """An error as one line of bounded length."""
    return " ".join(str(error).split())[:MAX_ERROR] or type(error).__qualname__
