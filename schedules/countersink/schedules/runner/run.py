"""One run in its own process: begins it, calls the job, and says how it ended (failed, stopped,
over its time limit) with the texts; its states are in ``runner/attempts.py``, when it is tried
again in ``scheduler/sweep.py``."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from countersink.runtime.errors import GivenUp
from countersink.runtime.log import MAX_ERROR, error_text
from countersink.runtime.process import process_name
from countersink.schedules.errors import JobFailed, RunFailed, RunStopped
from countersink.schedules.history import failing
from countersink.schedules.jobs import Context, load
from countersink.schedules.report import FAILING_AFTER, ScheduleAction, say_failing
from countersink.schedules.runner import attempts
from countersink.schedules.runner.attempts import Attempt, Begun, LeaseRenewal, planned_time
from countersink.schedules.runner.rq import Process, installed, is_timeout
from countersink.store.connection import rerun
from countersink.store.errors import StoreError
from countersink.store.sessions import lease_session
from countersink.stream.errors import StreamError

FOUND: Final = "not tried again: what it found does not pass by itself"
"""The detail of a run that failed by what its job found; the scheduler goes by it."""
LOOK_EVERY_S: Final = 0.2
"""Seconds between two looks whether the run before is over, or the process is to stop."""
_MARGIN: Final = 0.1
_LONGEST_MARGIN_S: Final = 30.0


Result = TypeVar("Result")


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
class _Ended:
    """How a run ended.

    Attributes:
        rows: for its row.
        detail: for its row.
        error: why it failed, for its row; None: it did not.
        said: the same for the log: without the text of an unexpected error, which may quote an
            event.
        unfinished: it ended early, since it was to stop.
    """

    rows: int | None = None
    detail: str | None = None
    error: str | None = None
    said: str = ""
    unfinished: bool = False


class _Run:
    """One call of :func:`perform`."""

    def __init__(self, process: Process, attempt: Attempt, limit_s: int) -> None:
        self._process = process
        self._options = process.options
        self._attempt = attempt
        self._log = partial(process.log, job=attempt.job, at=attempt.planned_at)
        self._session = lease_session(process.options.mysql_url)
        # A little earlier than RQ's own limit, which is an exception in the midst of something.
        self._deadline = time.monotonic() + limit_s - min(_LONGEST_MARGIN_S, _MARGIN * limit_s)
        self._limit_s = limit_s

    def __call__(self) -> str:
        begun = self._begin()
        if begun is Begun.STARTED:
            return self._started()
        if begun is Begun.BUSY:
            reason = self._waited(
                lambda: rerun(
                    lambda: attempts.skip(self._session(), self._attempt, self._options.wait_s)
                )
            )
            begun = Begun.NOTHING if reason is None else begun
        elif begun is Begun.STALE:
            reason = attempts.STALE
        if begun is Begun.NOTHING:
            self._log(
                ScheduleAction.RUN_IGNORED,
                "not its turn: started before, over, or never planned",
                level=logging.DEBUG,
                attempt=self._attempt.number,
            )
            return "nothing"
        self._log(ScheduleAction.RUN_SKIPPED, f"skipped: {reason}", level=logging.WARNING)
        return "skipped"

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _to_stop(self) -> bool:
        return self._process.ending or time.monotonic() >= self._deadline

    def _begin(self) -> Begun:
        """Begin, once the run before it is over; BUSY if that takes too long."""
        patient_until = time.monotonic() + self._options.wait_s
        while True:
            if self._process.ending:
                raise RunFailed("the job process stops: the run begins elsewhere, or later")
            begun = self._waited(
                lambda: attempts.begin(self._session(), self._attempt, self._options.lease_s)
            )
            if begun is not Begun.BUSY or time.monotonic() >= patient_until:
                return begun
            time.sleep(LOOK_EVERY_S)

    def _waited(self, work: Callable[[], Result]) -> Result:
        process = self._process
        try:
            return process.retried(work, self._to_stop, lambda: process.ending)
        except (GivenUp, StoreError) as error:
            raise RunFailed(f"MySQL did not do its part: {error_text(error)}") from None

    def _started(self) -> str:
        self._log(ScheduleAction.RUN_STARTED, "a run begins", attempt=self._attempt.number)
        begun = time.monotonic()
        with LeaseRenewal(self._process.held_until, self._options, self._attempt) as renewal:
            ended = self._work(renewal)
            took = round(time.monotonic() - begun, 3)
            if ended.unfinished and (self._process.ending or renewal.lost):
                return self._put_back(renewal, ended, took)
            self._written(
                renewal,
                lambda: attempts.finish(
                    self._session(),
                    self._attempt,
                    rows=ended.rows,
                    detail=ended.detail,
                    error=ended.error,
                ),
            )
        if ended.error is not None:
            self._say_failed(ended.said, took)
            raise RunFailed(ended.error[:MAX_ERROR])
        self._log(ScheduleAction.RUN_DONE, str(ended.detail), took_s=took, rows=ended.rows)
        return "done"

    def _put_back(self, renewal: LeaseRenewal, ended: _Ended, took: float) -> str:
        """Leave the rest to another process: neither done nor failed."""
        detail = ended.detail if ended.error is None else None
        self._written(renewal, lambda: attempts.put_back(self._session(), self._attempt, detail))
        self._log(
            ScheduleAction.RUN_STOPPED,
            "the run was to stop before its work was done: it goes on elsewhere, or later",
            took_s=took,
            rows=ended.rows or 0,
        )
        return "stopped"

    def _work(self, renewal: LeaseRenewal) -> _Ended:
        context = Context(
            mysql_url=self._options.mysql_url,
            redis_url=self._options.redis_url,
            options=self._options.jobs,
            stop=lambda: self._to_stop() or renewal.lost,
        )
        try:
            kind = self._process.registry.get(self._attempt.job)
            if kind is None:
                text = (
                    f"this job process knows no job {self._attempt.job}: it is older, or newer,"
                    " than the scheduler"
                )
                return _Ended(error=text, said=text)
            outcome = load(kind)(context)
            return _Ended(outcome.rows, outcome.detail, unfinished=not outcome.finished)
        except BaseException as error:
            return self._failed(error)

    def _failed(self, error: BaseException) -> _Ended:
        if is_timeout(error):
            text = f"it took longer than its limit of {self._limit_s} s"
            return _Ended(error=text, said=text)
        if isinstance(error, StoreError | StreamError | JobFailed):
            text = error_text(error)
            detail = FOUND if isinstance(error, JobFailed) else None
            unfinished = isinstance(error, RunStopped)
            return _Ended(detail=detail, error=text, said=text, unfinished=unfinished)
        self._log(
            ScheduleAction.CRASHED, "an unexpected error in a run", level=logging.ERROR, bug=error
        )
        name = type(error).__name__
        return _Ended(error=f"{name}: {' '.join(str(error).split())}", said=name)

    def _written(self, renewal: LeaseRenewal, write: Callable[[], bool]) -> None:
        """Write how the run ended.

        Raises:
            RunFailed: it could not be written, or is no longer for this process to say.
        """
        try:
            # Until the lease has run out: from then on it is another's run.
            written = self._process.retried(
                lambda: rerun(write), lambda: renewal.lost, lambda: False
            )
        except (GivenUp, StoreError) as failure:
            self._log(
                ScheduleAction.RUN_LOST,
                "how the run ended could not be written: it is taken over",
                level=logging.WARNING,
                error=error_text(failure),
            )
            raise RunFailed("how it ended could not be written: it is taken over") from None
        if not written:
            self._log(
                ScheduleAction.RUN_LOST,
                "the run's lease was lost while it ran: another has taken it over, or will",
                level=logging.WARNING,
            )
            raise RunFailed("its lease was lost: another process has taken it over, or will")

    def _say_failed(self, error: str, took: float) -> None:
        self._log(
            ScheduleAction.RUN_FAILED,
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
                say_failing(self._process.log, job.job, job.times, error)
