"""RQ's queue and worker: queue name, refusal of all functions but one, how long results are kept,
when a silent RQ job is lost, polling, killing of runs, no Redis Cluster.

MySQL determines the runs and the due attempt of each; RQ carries attempts to a process and keeps
their time limits. An attempt may be enqueued twice, or late: it starts once, see ``runs.py``. RQ's
own retries would need its scheduler process, with a lock in Redis, and would be lost with Redis:
a failed run is planned again instead.
"""

import logging
import os
import signal
import time
from contextlib import suppress
from ctypes import c_double
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Final

import redis
from rq import Queue, Worker
from rq.exceptions import DeserializationError, NoSuchJobError, StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer

from countersink.runtime.log import Log
from countersink.runtime.process import SIGNALS, Stop
from countersink.runtime.retry import Outage
from countersink.schedules.errors import NotOurs, RunFailed
from countersink.schedules.jobs import Registry
from countersink.schedules.options import JobProcessOptions
from countersink.schedules.report import ProcessVitals, ScheduleAction, shared_moment
from countersink.stream.connection import check_single, connect, mapped

QUEUE: Final = "countersink"
FUNCTION: Final = "countersink.schedules.run_process.perform"
"""The function that RQ calls, with a job's name, planned time, attempt and time limit."""
TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
"""Format of a planned time in RQ's queue."""
RESULT_TTL_S: Final = 600
"""Seconds that Redis keeps a successful run; MySQL keeps it for months."""
FAILURE_TTL_S: Final = 86_400
"""Seconds that Redis keeps a failed run."""
SILENT_S: Final = 60.0
"""Seconds after which a started RQ job without a sign of life is lost."""


class RunJob(Job):  # type: ignore[misc] # RQ is checked as if untyped
    """An RQ job that can only be a run of countersink.

    RQ calls any function that a job names, so that any writer to its Redis could execute code here,
    with JSON as well: this class refuses all functions but one, callbacks and webhooks included.
    """

    def restore(self, raw_data: Any) -> Any:
        """RQ's; treats unreadable data as a missing job, and limits its time in Redis.

        Raises:
            NoSuchJobError: RQ ignores the job, and its maintenance deletes the id.
        """
        try:
            restored = super().restore(raw_data)
        except NoSuchJobError:
            raise
        except Exception as error:
            self.connection.expire(self.key, FAILURE_TTL_S)
            self.log.warning("an entry of RQ's queue is no job: ignored", exc_info=True)
            raise NoSuchJobError("it cannot be read") from error
        self.result_ttl, self.failure_ttl = RESULT_TTL_S, FAILURE_TTL_S
        return restored

    def perform(self) -> Any:
        """Run the job; NotOurs: it names another function."""
        if self.func_name != FUNCTION or self.instance is not None:
            raise NotOurs(f"{self.id} is no run of countersink: refused")
        return super().perform()

    def execute_success_callback(self, *_: object, **__: object) -> None:
        """Nothing: runs have no callbacks and no webhooks."""

    execute_failure_callback = execute_success_callback
    execute_stopped_callback = execute_success_callback
    send_webhooks = execute_success_callback


def run_id(job: str, planned_at: datetime) -> str:
    """The RQ job's id: ``compact-20261121T080000Z``. RQ allows letters, digits, _ and - only."""
    return f"{job}-{planned_at.strftime(TIME_FORMAT)}"


def connect_queue(url: str, *, client_name: str) -> redis.Redis:
    """A client for RQ's Redis.

    Raises:
        StreamMisconfigured: the URL cannot be used, or is of a Redis Cluster.
    """
    check_single(url)
    return connect(url, client_name=client_name)


def make_queue(client: redis.Redis) -> Any:
    """RQ's queue, with JSON: pickles would execute code of any writer to Redis."""
    return Queue(QUEUE, connection=client, serializer=JSONSerializer, job_class=RunJob)


class RunQueue:
    """RQ's queue, for the scheduler.

    Args:
        client: from :func:`connect_queue`.
        vitals: counts enqueued runs.
    """

    def __init__(self, client: redis.Redis, vitals: ProcessVitals | None = None) -> None:
        self._client = client
        self._vitals = vitals or ProcessVitals()
        self._queue = make_queue(client)

    def enqueue(self, job: str, planned_at: datetime, attempt: int, limit_s: int) -> None:
        """Put an attempt of a run into the queue, even if RQ has the run.

        Args:
            job: its name.
            planned_at: UTC.
            attempt: from 1.
            limit_s: seconds that it may take.

        Raises:
            StreamError: it may be in the queue or not.
        """
        with mapped():
            self._queue.enqueue_call(
                FUNCTION,
                args=(job, planned_at.strftime(TIME_FORMAT), attempt, limit_s),
                timeout=limit_s,
                result_ttl=RESULT_TTL_S,
                failure_ttl=FAILURE_TTL_S,
                description=f"{job} of {planned_at:%Y-%m-%d %H:%M:%S} UTC, attempt {attempt}",
                job_id=run_id(job, planned_at),
            )
        self._vitals.runs += 1

    def waiting(self) -> set[str]:
        """The ids of the waiting RQ jobs.

        Raises:
            StreamError: Redis does not serve.
        """
        with mapped():
            return set(self._queue.get_job_ids())

    def has_attempt(self, job: str, planned_at: datetime, attempt: int, waiting: set[str]) -> bool:
        """Whether RQ will start this attempt, or just has; ``waiting`` from :meth:`waiting`.

        Raises:
            StreamError: Redis does not serve.
        """
        try:
            with mapped():
                found = RunJob.fetch(run_id(job, planned_at), self._client, JSONSerializer)
            return found.args[2] >= attempt and _waits_or_works(found, waiting)
        except NoSuchJobError:
            return False
        except (DeserializationError, LookupError, TypeError, ValueError, AttributeError):
            return False  # not written by `enqueue`: enqueue it anew


def _waits_or_works(job: Any, waiting: set[str]) -> bool:
    """Whether an RQ job, as just fetched, will start, or is running."""
    status = str(job.get_status(refresh=False).value)
    if status != "started":
        return status in ("scheduled", "deferred") or (status == "queued" and job.id in waiting)
    beat: datetime | None = job.last_heartbeat
    # By the clock of the job process: a skew only causes an enqueue that starts nothing.
    return beat is not None and datetime.now(UTC) - beat < timedelta(seconds=SILENT_S)


IDLE_S: Final = 1
"""Seconds that one read of the queue blocks, and delays a stop. RQ takes whole seconds."""
_TTL_S: Final = IDLE_S + 15
"""RQ reads for 15 s less than this."""
MONITOR_S: Final = 5
"""Seconds between two checks of a work horse, and between two of its signs of life in Redis."""


@dataclass(slots=True)
class Process:
    """State that the job process passes to its work horses, by the fork.

    Attributes:
        options: of the job process.
        registry: the jobs.
        log: for runs.
        pid: of the job process.
        asked_to_end: set in a work horse that is asked to end.
        held_until: the time until which the work horse surely owns its run.
    """

    options: JobProcessOptions
    registry: Registry
    log: Log
    pid: int
    asked_to_end: bool = False
    held_until: c_double = field(default_factory=shared_moment)

    @property
    def ending(self) -> bool:
        """Whether a work horse is to end, as an orphan is."""
        return self.asked_to_end or os.getppid() != self.pid


_process: Process | None = None


def install(process: Process | None) -> None:
    """Set the state for :func:`perform` in this process and its later forks."""
    global _process
    _process = process


def installed() -> Process:
    """The state set by :func:`install`.

    Raises:
        RunFailed: there is none: RQ's own worker took the job.
    """
    if _process is None:
        raise RunFailed(
            "runs of countersink need a job process of countersink, which this is not: start it"
            " with `countersink jobs` instead of `rq worker`"
        )
    return _process


class _RedisLost(StopRequested):  # type: ignore[misc] # RQ is checked as if untyped
    """Redis was lost while the worker was idle; RQ ends its work for it without a log record."""


class RunWorker(Worker):  # type: ignore[misc] # RQ is checked as if untyped
    """RQ worker that takes runs from the queue; a forked work horse executes each.

    Args:
        client: RQ's Redis.
        name: that no worker had before.
        process: passed to the work horses.
        stop: ends the worker.
        outage: reports a Redis that is away.
        vitals: updated every few seconds, and for each run.
    """

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        process: Process,
        stop: Stop,
        outage: Outage,
        vitals: ProcessVitals,
    ) -> None:
        super().__init__(
            [make_queue(client)],
            name=name,
            connection=client,
            job_class=RunJob,
            serializer=JSONSerializer,
            worker_ttl=_TTL_S,
            job_monitoring_interval=max(1, min(MONITOR_S, int(process.options.silent_s))),
            log_job_description=False,
        )
        self._process = process
        self._stop_signal = stop
        self._outage = outage
        self._vitals = vitals

    def ask_horse_to_end(self) -> None:
        """Ask the work horse, if there is one, to end; from any thread."""
        if self.horse_pid:
            with suppress(ProcessLookupError):  # the horse has just ended
                os.kill(self.horse_pid, signal.SIGTERM)

    def kill_horse_group(self) -> None:
        """Kill the work horse and its children; from any thread."""
        pid = self.horse_pid
        if pid:
            for kill in (os.killpg, os.kill):  # it may not lead its group yet
                with suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> Any:
        """The next job; in short reads, so that a stop is noticed."""
        while True:
            self._vitals.step("idle")
            if self._stop_signal.requested:
                raise StopRequested
            found = super().dequeue_job_and_maintain_ttl(IDLE_S, IDLE_S)
            self._outage.over()
            if found is not None:
                return found

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's; without a run, a lost connection ends :meth:`work`, whose own waiting would not
        notice a stop.
        """
        try:
            super().heartbeat(timeout, pipeline)
        except redis.RedisError as error:
            if not self.horse_pid:
                raise _RedisLost from error

    def set_current_job_working_time(self, *args: Any, **kwargs: Any) -> None:
        """RQ's; a Redis that is away does not end the supervision of a run."""
        with suppress(redis.RedisError):  # logged where the queue is read
            super().set_current_job_working_time(*args, **kwargs)

    def maintain_heartbeats(self, job: Any) -> None:
        """RQ's; a Redis that is away does not end the supervision of a run. A work horse that hangs
        is killed once its run may have been taken over for long.
        """
        process = self._process
        if time.monotonic() > process.held_until.value + process.options.silent_s:
            process.held_until.value = inf  # once
            process.log(
                ScheduleAction.RUN_LOST,
                "the current run was taken over and does not end: its process is killed",
                level=logging.WARNING,
                run=job.id,
            )
            self.kill_horse_group()
            return
        self._vitals.step("running")
        with suppress(redis.RedisError):  # logged where the queue is read
            super().maintain_heartbeats(job)

    def fork_work_horse(self, job: Any, queue: Any) -> None:
        """RQ's, with signals blocked until the child has its own handlers."""
        self._vitals.step("running")
        self._vitals.runs += 1
        self._process.held_until.value = inf
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            super().fork_work_horse(job, queue)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def setup_work_horse_signals(self) -> None:
        """In the child: SIGTERM asks the run to end, Ctrl-C is for the parent."""
        # The pipe is the parent's, which would take a number written to it for a signal.
        signal.set_wakeup_fd(-1)
        process = self._process
        process.asked_to_end = self._stop_signal.requested

        def ask(*_: object) -> None:
            process.asked_to_end = True

        signal.signal(signal.SIGTERM, ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def subscribe(self) -> None:
        """Nothing: this process takes no commands from Redis."""

    def unsubscribe(self) -> None:
        """Nothing."""

    def _install_signal_handlers(self) -> None:
        """Nothing: the process has its own handlers."""
