"""One run in its own process: begins it, calls the job, and writes how it ended (failed, stopped,
over its time limit) with the texts; when it is tried again: ``scheduler/sweep.py``."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from countersink.runtime.errors import GivenUp
from countersink.runtime.log import MAX_ERROR, error_text
from countersink.runtime.pace import pause
from countersink.runtime.process import process_name
from countersink.runtime.retry import Outage, retry
from countersink.schedules.errors import JobFailed, RunFailed, RunStopped
from countersink.schedules.history import failing
from countersink.schedules.jobs import Context, JobOutcome, load
from countersink.schedules.report import FAILING_AFTER, ScheduleAction, say_failing
from countersink.schedules.runner import attempts
from countersink.schedules.runner.attempts import Attempt, Begun, LeaseRenewal, planned_time
from countersink.schedules.runner.rq import Process, installed, is_timeout
from countersink.store.errors import StoreError
from countersink.store.sessions import lease_session, passes
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
                lambda: attempts.skip(self._session(), self._attempt, self._options.wait_s)
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
                lambda: attempts.begin(self._session(), self._attempt, self._options.lease_s)
            )
            if begun is not Begun.BUSY or time.monotonic() >= patient_until:
                return begun
            time.sleep(LOOK_EVERY_S)

    def _waited(self, work: Callable[[], Result]) -> Result:
        try:
            return self._retried(work, lambda: self._told() or self._late(), self._told)
        except (GivenUp, StoreError) as error:
            raise RunFailed(f"MySQL did not do its part: {error_text(error)}") from None

    def _retried(
        self, work: Callable[[], Result], enough: Callable[[], bool], awake: Callable[[], bool]
    ) -> Result:
        result = retry(
            work,
            passes=passes,
            enough=enough,
            failed=self._outage.failed,
            pause=lambda seconds: pause(seconds, awake),
        )
        self._outage.over()
        return result

    def _started(self) -> str:
        self._log(ScheduleAction.RUN_STARTED, "a run begins", attempt=self._attempt.number)
        begun = time.monotonic()
        options = self._options
        pulse = LeaseRenewal(
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
            ScheduleAction.RUN_DONE,
            outcome.detail if outcome else "done",
            took_s=took,
            rows=outcome.rows if outcome else 0,
        )
        return "done"

    @staticmethod
    def _is_cut_off(outcome: JobOutcome | None, error: _Reason | None) -> bool:
        """Whether the run ended early because it was to stop."""
        return (outcome is not None and not outcome.finished) or (
            error is not None and error.unfinished
        )

    def _put_back(self, pulse: LeaseRenewal, outcome: JobOutcome | None, took: float) -> str:
        """Leave the rest to another process: neither done nor failed."""
        detail = None if outcome is None else outcome.detail
        self._written(pulse, lambda: attempts.put_back(self._session(), self._attempt, detail))
        self._log(
            ScheduleAction.RUN_STOPPED,
            "the run was to stop before its work was done: it goes on elsewhere, or later",
            took_s=took,
            rows=0 if outcome is None else outcome.rows,
        )
        return "stopped"

    def _work(self, pulse: LeaseRenewal) -> tuple[JobOutcome | None, _Reason | None]:
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
        if is_timeout(error):
            text = f"it took longer than its limit of {self._limit_s} s"
            return _Reason(text, text)
        if isinstance(error, StoreError | StreamError | JobFailed):
            text = error_text(error)
            found = isinstance(error, JobFailed)
            return _Reason(text, text, found=found, unfinished=isinstance(error, RunStopped))
        self._log(
            ScheduleAction.CRASHED, "an unexpected error in a run", level=logging.ERROR, bug=error
        )
        name = type(error).__name__
        return _Reason(f"{name}: {' '.join(str(error).split())}", name)

    def _finish(
        self, pulse: LeaseRenewal, outcome: JobOutcome | None, error: _Reason | None
    ) -> None:
        detail = None if outcome is None else outcome.detail
        if error is not None and error.found:
            detail = FOUND

        def write() -> bool:
            return attempts.finish(
                self._session(),
                self._attempt,
                rows=None if outcome is None else outcome.rows,
                detail=detail,
                error=None if error is None else error.stored,
            )

        self._written(pulse, write)

    def _written(self, pulse: LeaseRenewal, write: Callable[[], bool]) -> None:
        """Write how the run ended.

        Raises:
            RunFailed: it could not be written, or is no longer for this process to say.
        """
        try:
            # Until the lease has run out: from then on it is another's run.
            written = self._retried(write, lambda: pulse.lost, lambda: False)
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
