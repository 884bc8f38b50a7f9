"""What RQ calls: a run, from its row's start to its end, in a work horse of the job process."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from rq.timeouts import BaseTimeoutException

from countersink.schedules import runs
from countersink.schedules.context import Context, Outcome
from countersink.schedules.failure import Failed, Stopped
from countersink.schedules.history import failing
from countersink.schedules.leadership import process_name
from countersink.schedules.logs import FAILING_AFTER, MAX_ERROR, Action, Log, error_text
from countersink.schedules.options import JobsOptions
from countersink.schedules.patience import GivenUp, Outage, waited
from countersink.schedules.pulse import Held, Pulse
from countersink.schedules.queue import planned_time
from countersink.schedules.registry import Registry, load
from countersink.schedules.runs import Attempt, Begun
from countersink.schedules.tables import Kept
from countersink.store.errors import StoreError
from countersink.stream.errors import StreamError

FOUND: Final = "not tried again: what it found does not pass by itself"
"""The detail of a run that failed by what its job found; the scheduler goes by it."""
LOOK_EVERY_S: Final = 0.2
"""Seconds between two looks whether the run before is over, or the process is to stop."""
_MARGIN: Final = 0.1
_LONGEST_MARGIN_S: Final = 30.0


Result = TypeVar("Result")


class RunFailed(Exception):
    """A run failed, or could not begin; the message is one sentence."""


@dataclass(slots=True)
class Process:
    """What the job process hands to its work horses, by the fork.

    Attributes:
        options: its settings.
        registry: the jobs it knows.
        log: where runs say what they do.
        pid: of the job process.
        told: set in a work horse that is to end in good order.
        held: where a work horse tells until when its run's lease is held.
    """

    options: JobsOptions
    registry: Registry
    log: Log
    pid: int
    told: bool = False
    held: Held = field(default_factory=Held)

    @property
    def ending(self) -> bool:
        """Whether a work horse is to end; an orphan is, too."""
        return self.told or os.getppid() != self.pid


_process: Process | None = None


def install(process: Process | None) -> None:
    """Set what :func:`perform` works with in this process and those it forks."""
    global _process
    _process = process


def installed() -> Process:
    """What :func:`install` set.

    Raises:
        RunFailed: nothing: RQ's own worker took the job.
    """
    if _process is None:
        raise RunFailed(
            "this is no job process of countersink: its runs need one; start it with"
            " `countersink jobs` instead of `rq worker`"
        )
    return _process


def perform(job: str, planned: str, attempt: int, limit_s: int) -> str:
    """Run a job, if it is this attempt's turn; RQ calls this. What became of it, in a word.

    Raises:
        RunFailed: RQ keeps it as failed, too.
    """
    process = installed()
    run = _Run(process, Attempt(job, planned_time(planned), attempt, process_name()), limit_s)
    try:
        return run()
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why a run failed.

    Attributes:
        stored: for its row.
        said: for the log: without the text of an unexpected error, which may quote an event.
        found: whether the job said so itself: trying again would find the same.
        unfinished: whether it did, since it was to stop.
    """

    stored: str
    said: str
    found: bool = False
    unfinished: bool = False


class _Run:
    """One call of :func:`perform`."""

    def __init__(self, process: Process, attempt: Attempt, limit_s: int) -> None:
        self._process = process
        self._options = process.options
        self._attempt = attempt
        self._log = partial(process.log, job=attempt.job, at=attempt.planned_at)
        self._outage = Outage("MySQL", process.log)
        self._session = Kept(process.options.mysql_url)
        # A little earlier than RQ's own limit, which is an exception in the midst of something.
        self._deadline = time.monotonic() + limit_s - min(_LONGEST_MARGIN_S, _MARGIN * limit_s)
        self._limit_s = limit_s

    def __call__(self) -> str:
        begun = self._begin()
        if begun is Begun.STARTED:
            return self._started()
        if begun is Begun.BUSY:
            reason = self._waited(
                lambda: runs.skip(self._session(), self._attempt, self._options.wait_s)
            )
            begun = Begun.NOTHING if reason is None else begun
        elif begun is Begun.STALE:
            reason = runs.STALE
        if begun is Begun.NOTHING:
            self._log(
                Action.RUN_IGNORED,
                "not its turn: started before, over, or never planned",
                level=logging.DEBUG,
                attempt=self._attempt.number,
            )
            return "nothing"
        self._log(Action.RUN_SKIPPED, f"skipped: {reason}", level=logging.WARNING)
        return "skipped"

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _told(self) -> bool:
        return self._process.ending

    def _late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _begin(self) -> Begun:
        """Begin, once the run before it is over; BUSY if that takes too long."""
        patient_until = time.monotonic() + self._options.wait_s
        while True:
            if self._told():
                raise RunFailed("the job process stops: the run begins elsewhere, or later")
            begun = self._waited(
                lambda: runs.begin(self._session(), self._attempt, self._options.lease_s)
            )
            if begun is not Begun.BUSY or time.monotonic() >= patient_until:
                return begun
            time.sleep(LOOK_EVERY_S)

    def _waited(self, work: Callable[[], Result]) -> Result:
        try:
            return waited(
                work,
                self._outage,
                enough=lambda: self._told() or self._late(),
                pause=self._pause,
            )
        except (GivenUp, StoreError) as error:
            raise RunFailed(f"MySQL did not do its part: {error_text(error)}") from None

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._told():
            time.sleep(min(LOOK_EVERY_S, seconds))

    def _started(self) -> str:
        self._log(Action.RUN_STARTED, "a run begins", attempt=self._attempt.number)
        begun = time.monotonic()
        options = self._options
        pulse = Pulse(
            self._process.held,
            options.mysql_url,
            self._attempt,
            options.lease_s,
            options.renew_every_s,
        ).start()
        try:
            outcome, error = self._work(pulse)
            took = round(time.monotonic() - begun, 3)
            if self._is_cut_off(outcome, error) and (self._told() or pulse.lost):
                return self._put_back(pulse, outcome, took)
            self._finish(pulse, outcome, error)
        finally:
            pulse.stop()
        if error is not None:
            self._say_failed(error.said, took)
            raise RunFailed(error.stored[:MAX_ERROR])
        self._log(
            Action.RUN_DONE,
            outcome.detail if outcome else "done",
            took_s=took,
            rows=outcome.rows if outcome else 0,
        )
        return "done"

    @staticmethod
    def _is_cut_off(outcome: Outcome | None, error: _Reason | None) -> bool:
        """Whether the run ended early because it was to stop."""
        return (outcome is not None and not outcome.finished) or (
            error is not None and error.unfinished
        )

    def _put_back(self, pulse: Pulse, outcome: Outcome | None, took: float) -> str:
        """Leave the rest to another process: neither done nor failed."""
        detail = None if outcome is None else outcome.detail
        self._written(pulse, lambda: runs.put_back(self._session(), self._attempt, detail))
        self._log(
            Action.RUN_STOPPED,
            "the run was to stop before its work was done: it goes on elsewhere, or later",
            took_s=took,
            rows=0 if outcome is None else outcome.rows,
        )
        return "stopped"

    def _work(self, pulse: Pulse) -> tuple[Outcome | None, _Reason | None]:
        context = Context(
            mysql_url=self._options.mysql_url,
            redis_url=self._options.redis_url,
            options=self._options.jobs,
            stop=lambda: self._told() or self._late() or pulse.lost,
        )
        try:
            kind = self._process.registry.get(self._attempt.job)
            if kind is None:
                text = (
                    f"this job process knows no job {self._attempt.job}: it is older, or newer,"
                    " than the scheduler"
                )
                return None, _Reason(text, text)
            return load(kind)(context), None
        except BaseException as error:
            return None, self._reason(error)

    def _reason(self, error: BaseException) -> _Reason:
        cause: BaseException | None = error
        while cause is not None:
            # The driver may have met it first, and wrapped it.
            if isinstance(cause, BaseTimeoutException):
                text = f"it took longer than its limit of {self._limit_s} s"
                return _Reason(text, text)
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, StoreError | StreamError | Failed):
            text = error_text(error)
            found = isinstance(error, Failed)
            return _Reason(text, text, found=found, unfinished=isinstance(error, Stopped))
        self._log(Action.CRASHED, "an unexpected error in a run", level=logging.ERROR, bug=error)
        name = type(error).__name__
        return _Reason(f"{name}: {' '.join(str(error).split())}", name)

    def _finish(self, pulse: Pulse, outcome: Outcome | None, error: _Reason | None) -> None:
        detail = None if outcome is None else outcome.detail
        if error is not None and error.found:
            detail = FOUND

        def write() -> bool:
            return runs.finish(
                self._session(),
                self._attempt,
                rows=None if outcome is None else outcome.rows,
                detail=detail,
                error=None if error is None else error.stored,
            )

        self._written(pulse, write)

    def _written(self, pulse: Pulse, write: Callable[[], bool]) -> None:
        """Write how the run ended.

        Raises:
            RunFailed: it could not be written, or is no longer for this process to say.
        """
        try:
            # Until the lease has run out: from then on it is another's run.
            written = waited(
                write, self._outage, enough=lambda: pulse.lost, pause=self._pause_always
            )
        except (GivenUp, StoreError) as failure:
            self._log(
                Action.RUN_LOST,
                "how the run ended could not be written: it is taken over",
                level=logging.WARNING,
                error=error_text(failure),
            )
            raise RunFailed("how it ended could not be written: it is taken over") from None
        if not written:
            self._log(
                Action.RUN_LOST,
                "the run's lease was lost while it ran: another has taken it over, or will",
                level=logging.WARNING,
            )
            raise RunFailed("its lease was lost: another process has taken it over, or will")

    @staticmethod
    def _pause_always(seconds: float) -> None:
        time.sleep(seconds)

    def _say_failed(self, error: str, took: float) -> None:
        self._log(
            Action.RUN_FAILED,
            "a run failed",
            level=logging.WARNING,
            error=error,
            attempt=self._attempt.number,
            took_s=took,
        )
        try:
            found = failing(self._session(), self._attempt.job)
        except StoreError:
            return  # only what is said of it is missing
        for job in found:
            # With the third failure, and once for every later run, however often that is tried.
            if job.times == FAILING_AFTER or self._attempt.number == 1:
                self._process.log(
                    Action.FAILING,
                    "a job failed three times in a row or more: see countersink runs",
                    level=logging.ERROR,
                    job=job.job,
                    times=job.times,
                    error=error,
                )
