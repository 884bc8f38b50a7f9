"""One attempt of a run, in a process of its own: it begins the run, calls the job, and writes the
result to the run's row. The run is then done or failed, or planned again: after a pause if the
attempt failed, at once if the job process was told to end. A job is asked to stop a little before
its time limit: then its run is done as far as it came. If the job goes on, its attempt fails. See
``runs.py`` for the row."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, NoReturn, TypeVar

from rq.timeouts import BaseTimeoutException

from countersink.database.errors import StoreError
from countersink.database.session import rerun
from countersink.database.sessions import brief_session, is_temporary
from countersink.runtime.errors import GivenUp
from countersink.runtime.log import MAX_ERROR, error_text
from countersink.runtime.process import process_name
from countersink.runtime.retry import Outage, pause, retry
from countersink.schedules import runs
from countersink.schedules.errors import JobFailed, RunFailed, RunStopped
from countersink.schedules.jobs import Context, load
from countersink.schedules.report import RunHeartbeat, ScheduleAction
from countersink.schedules.rq_worker import TIME_FORMAT, Process, installed
from countersink.schedules.runs import Attempt, Begun, OpenRun
from countersink.stream.errors import StreamError

CHECK_EVERY_S: Final = 0.2
"""Seconds between two checks whether the previous run is over, or the process is to stop."""
_MARGIN: Final = 0.1
_LONGEST_MARGIN_S: Final = 30.0


Result = TypeVar("Result")


def perform(job: str, planned: str, attempt: int, limit_s: int) -> str:
    """Execute an attempt of a run; RQ calls this function. Return the outcome in one word:
    ``done``, ``stopped``, ``skipped`` or ``nothing``. It is ``done``, too, if the job ended early
    because of its time limit and keeps its work. It is ``stopped`` if the job ended early because
    the job process ends: the run is planned again then. It is ``nothing`` if the run does not exist
    or is over, if this attempt is not its next one, or if the job's previous run must be started
    again first.

    Args:
        job: the job's name.
        planned: the run's planned time, in the format ``TIME_FORMAT``.
        attempt: the number of the attempt, from 1.
        limit_s: seconds that the attempt may take.

    Raises:
        RunFailed: the attempt failed, could not begin, or could not write its result, or the run
            was or will be taken over by another process. RQ then marks its RQ job as failed, too.
    """
    process = installed()
    at = datetime.strptime(planned, TIME_FORMAT).replace(tzinfo=UTC)
    run = _Run(process, Attempt(job, at, attempt, process_name()), limit_s)
    try:
        return run()
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class _Ended:
    """The result of a job that has ended.

    Attributes:
        detail: text for the run's row: the result, or the reason of the failure.
        rows: number of rows for the run's row.
        reason: reason of the failure, for the log; empty if the job did not fail. For an unexpected
            error it is only the error's type, because the error's text may quote an event.
        retryable: True if the reason may go away by itself. Then the run is tried again, unless
            this was its last attempt.
        unfinished: whether the job ended early because it was stopped.
    """

    detail: str
    rows: int | None = None
    reason: str = ""
    retryable: bool = True
    unfinished: bool = False


class _Run:
    """One attempt of a run. A call of this object executes the attempt for :func:`perform`, with
    its outcome and errors."""

    def __init__(self, process: Process, attempt: Attempt, limit_s: int) -> None:
        self._process = process
        self._options = process.options
        self._attempt = attempt
        self._log = partial(process.log, job=attempt.job, at=attempt.planned_at)
        self._session = brief_session(process.options.mysql_url)
        # A little earlier than RQ's own limit, which raises an exception anywhere.
        self._deadline = time.monotonic() + limit_s - min(_LONGEST_MARGIN_S, _MARGIN * limit_s)
        self._limit_s = limit_s
        self._since = time.monotonic()

    def __call__(self) -> str:
        begun, reason = self._begin()
        if begun is Begun.STARTED:
            return self._started()
        if begun is Begun.NOTHING:
            return "nothing"  # started before, over, or never planned
        if begun is Begun.EXHAUSTED:
            self._log_failed(reason, None, again=False)
            raise RunFailed(reason)
        self._log(ScheduleAction.RUN_SKIPPED, f"skipped: {reason}", level=logging.WARNING)
        return "skipped"

    def close(self) -> None:
        """Close the connection to MySQL."""
        self._session.close()

    def _to_stop(self) -> bool:
        return self._process.ending or time.monotonic() >= self._deadline

    def _begin(self) -> tuple[Begun, str]:
        """Begin the attempt once the job's previous run is over. Return the outcome and a text: the
        reason if the run was skipped (BUSY, STALE) or has failed (EXHAUSTED), else a text without
        meaning.

        If the previous run has not ended after ``wait_s`` seconds, the result depends on its
        heartbeat. If it writes heartbeats, this run is skipped, and the outcome is BUSY. If it
        writes none, this run stays planned, and the outcome is NOTHING: a scheduler will let the
        previous run be started again, and will enqueue this attempt again.

        Raises:
            RunFailed: the process is to stop, or MySQL failed, or was away until the time limit.
        """
        patient_until = time.monotonic() + self._options.wait_s
        first: OpenRun | None = None
        while True:
            if self._process.ending:
                raise RunFailed("the job process stops: the run begins elsewhere, or later")
            self._since = time.monotonic()  # before the sign of life in its row
            begun, other = self._waited(
                lambda: rerun(
                    lambda: runs.begin(self._session(), self._attempt, self._options.attempts)
                )
            )
            if begun is Begun.EXHAUSTED:
                return begun, runs.EXHAUSTED.format(self._options.attempts)
            if begun is not Begun.BUSY or other is None:
                return begun, runs.STALE
            first = first if first is not None and first.holder == other.holder else other
            if time.monotonic() >= patient_until:
                if other.heartbeat_at == first.heartbeat_at:
                    return Begun.NOTHING, ""
                reason = (
                    f"the run planned at {other.planned_at:%Y-%m-%d %H:%M:%S} UTC was still running"
                    f" after {self._options.wait_s:g} s"
                )
                return self._skip(reason), reason
            time.sleep(CHECK_EVERY_S)

    def _skip(self, reason: str) -> Begun:
        left_out = self._waited(lambda: runs.skip(self._session(), self._attempt, reason))
        return Begun.BUSY if left_out else Begun.NOTHING

    def _waited(self, work: Callable[[], Result]) -> Result:
        try:
            return self._retried(work, self._to_stop)
        except (GivenUp, StoreError) as error:
            raise RunFailed(f"MySQL failed: {error_text(error)}") from None

    def _retried(self, work: Callable[[], Result], stop: Callable[[], bool]) -> Result:
        """Call ``work``, and return its result. While MySQL is away, ``work`` is called again and
        again, until ``stop`` returns true.

        Raises:
            GivenUp: ``stop`` returned true before ``work`` succeeded.
            StoreError: an error that does not go away by itself.
        """
        outage = Outage("MySQL", self._process.log)
        result = retry(
            work,
            passes=is_temporary,
            stop=stop,
            failed=outage.failed,
            wait=partial(pause, stop=stop),
            tries=1,
        )
        outage.over()
        return result

    def _started(self) -> str:
        self._log(ScheduleAction.RUN_STARTED, "a run begins", attempt=self._attempt.number)
        begun = time.monotonic()
        with RunHeartbeat(
            self._process.held_until, self._options, self._attempt, self._since
        ) as heartbeat:
            ended = self._work(heartbeat)
            took = round(time.monotonic() - begun, 3)
            if ended.unfinished and self._process.ending:
                return self._put_back(heartbeat, ended, took)
            if ended.unfinished and heartbeat.lost:
                self._raise_lost()
            self._written(heartbeat, lambda: self._end(ended))
        if ended.reason:
            self._log_failed(ended.reason, took, again=self._is_tried_again(ended))
            raise RunFailed(ended.detail[:MAX_ERROR])
        self._log(ScheduleAction.RUN_DONE, ended.detail, took_s=took, rows=ended.rows)
        return "done"

    def _end(self, ended: _Ended) -> bool:
        """Write to the run's row that the run is done, has failed, or is planned again after a
        pause. Return False, and write nothing, if another attempt owns the run now."""
        session, attempt, options = self._session(), self._attempt, self._options
        if not ended.reason:
            return runs.finish(session, attempt, "done", ended.detail, ended.rows)
        if not self._is_tried_again(ended):
            return runs.finish(session, attempt, "failed", ended.detail)
        pause_s = options.retry_after_s * 2.0 ** (attempt.number - 1)
        return runs.put_back(session, attempt, ended.detail, spent=True, pause_s=pause_s)

    def _is_tried_again(self, ended: _Ended) -> bool:
        return ended.retryable and self._attempt.number < self._options.attempts

    def _put_back(self, heartbeat: RunHeartbeat, ended: _Ended, took: float) -> str:
        """Write to the run's row that the run is planned again, as if this attempt had not been
        made, so that another process continues it. Return ``stopped``. ``took`` is the duration of
        the attempt in seconds, for the log. Raises RunFailed if the row could not be written, or
        another process owns the run now."""
        detail = None if ended.reason else ended.detail
        self._written(
            heartbeat, lambda: runs.put_back(self._session(), self._attempt, detail, spent=False)
        )
        self._log(
            ScheduleAction.RUN_STOPPED,
            "the run was stopped before its work was done: it goes on elsewhere, or later",
            took_s=took,
            rows=ended.rows or 0,
        )
        return "stopped"

    def _work(self, heartbeat: RunHeartbeat) -> _Ended:
        context = Context(
            mysql_url=self._options.mysql_url,
            redis_url=self._options.redis_url,
            options=self._options.jobs,
            stop=lambda: self._to_stop() or heartbeat.lost,
        )
        try:
            kind = self._process.registry.get(self._attempt.job)
            if kind is None:
                text = (
                    f"this job process knows no job {self._attempt.job}: its version is older, or"
                    " newer, than the scheduler's"
                )
                return _Ended(text, reason=text)
            outcome = load(kind)(context)
            return _Ended(outcome.detail, outcome.rows, unfinished=not outcome.finished)
        except BaseException as error:
            return self._failed(error)

    def _failed(self, error: BaseException) -> _Ended:
        if _is_timeout(error):
            text = f"it took longer than its limit of {self._limit_s} s"
            return _Ended(text, reason=text)
        if isinstance(error, StoreError | StreamError | JobFailed):
            text = error_text(error)
            return _Ended(
                text,
                reason=text,
                # The reason that a job found does not pass by itself.
                retryable=not isinstance(error, JobFailed),
                unfinished=isinstance(error, RunStopped),
            )
        self._log(
            ScheduleAction.CRASHED, "an unexpected error in a run", level=logging.ERROR, bug=error
        )
        name = type(error).__name__
        return _Ended(f"{name}: {' '.join(str(error).split())}", reason=name)

    def _written(self, heartbeat: RunHeartbeat, write: Callable[[], bool]) -> None:
        """Write the result of the run by calling ``write``, which returns False if another process
        owns the run now. While MySQL is away, call it again until ``heartbeat`` is lost.

        Raises:
            RunFailed: the result could not be written, or another process owns the run now.
        """
        try:
            # As long as this process surely owns the run.
            written = self._retried(lambda: rerun(write), lambda: heartbeat.lost)
        except (GivenUp, StoreError) as failure:
            self._log(
                ScheduleAction.RUN_LOST,
                "the result of the run could not be written: the run is taken over",
                level=logging.WARNING,
                error=error_text(failure),
            )
            raise RunFailed("its result could not be written: it is taken over") from None
        if not written:
            self._raise_lost()

    def _raise_lost(self) -> NoReturn:
        self._log(
            ScheduleAction.RUN_LOST,
            "the run was or will be taken over: this process gave no sign of life for long",
            level=logging.WARNING,
        )
        raise RunFailed("it was or will be taken over by another process")

    def _log_failed(self, error: str, took: float | None, *, again: bool) -> None:
        self._log(
            ScheduleAction.RUN_FAILED,
            "a run failed",
            level=logging.WARNING if again else logging.ERROR,
            error=error,
            attempt=self._attempt.number,
            took_s=took,
        )


def _is_timeout(error: BaseException) -> bool:
    """Return whether RQ's time limit caused an error. The error need not be RQ's exception: the
    database driver may have wrapped that in an exception of its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseTimeoutException):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
