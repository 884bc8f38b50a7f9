"""RQ's queue and worker, as countersink uses them: the name of the queue, the refusal of all
functions but one, how long results are kept, when a silent RQ job counts as lost, short reads of
the queue, the killing of runs, and the refusal of a Redis Cluster.

MySQL decides which runs there are, and which attempt of each is due. RQ carries attempts to a
process and enforces their time limits. An attempt may be put into RQ's queue twice, or late, but it
starts only once: see ``runs.py``. RQ's own retries are not used: they need RQ's scheduler process,
with a lock in Redis, and would be lost with Redis. Instead, a failed run is planned again.
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
"""The function that RQ calls. Its arguments are a job's name, planned time, attempt and time
limit."""
TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
"""Format of a planned time in RQ's queue."""
RESULT_TTL_S: Final = 600
"""Seconds that Redis keeps the RQ job of a successful run. MySQL keeps the run for months."""
FAILURE_TTL_S: Final = 86_400
"""Seconds that Redis keeps the RQ job of a failed run."""
SILENT_S: Final = 60.0
"""Seconds without a heartbeat in Redis after which a started RQ job counts as lost."""


class RunJob(Job):  # type: ignore[misc] # RQ is checked as if untyped
    """An RQ job that can only be a run of countersink.

    RQ calls any function that a job names. So everyone who can write to its Redis could execute
    code here, even though jobs are in JSON. This class refuses every function except ``FUNCTION``,
    and all callbacks and webhooks.
    """

    def restore(self, raw_data: Any) -> Any:
        """Read the job from its data in Redis, as RQ does, but let Redis keep it after its end for
        ``RESULT_TTL_S`` or, if it failed, ``FAILURE_TTL_S``. Data that cannot be read expires in
        Redis after ``FAILURE_TTL_S``.

        Raises:
            NoSuchJobError: the data is missing or cannot be read. RQ then ignores the job, and its
                maintenance deletes the id.
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
        """Call the job's function, and return its result.

        Raises:
            NotOurs: the job names another function than ``FUNCTION``, or a method of an object.
        """
        if self.func_name != FUNCTION or self.instance is not None:
            raise NotOurs(f"{self.id} is no run of countersink: refused")
        return super().perform()

    def execute_success_callback(self, *_: object, **__: object) -> None:
        """Do nothing: runs have no callbacks and no webhooks."""

    execute_failure_callback = execute_success_callback
    execute_stopped_callback = execute_success_callback
    send_webhooks = execute_success_callback


def run_id(job: str, planned_at: datetime) -> str:
    """Return the id of a run's RQ job: ``compact-20261121T080000Z``. ``planned_at`` is in UTC. RQ
    allows only letters, digits, _ and -."""
    return f"{job}-{planned_at.strftime(TIME_FORMAT)}"


def connect_queue(url: str, *, client_name: str) -> redis.Redis:
    """Return a client of the Redis that has RQ's queue. ``client_name`` is its name in CLIENT LIST.

    Raises:
        StreamMisconfigured: the URL cannot be used, or is the URL of a Redis Cluster.
    """
    check_single(url)
    return connect(url, client_name=client_name)


def make_queue(client: redis.Redis) -> Any:
    """Return RQ's queue. Its jobs are in JSON, because reading pickles, RQ's default, would execute
    code of anyone who can write to Redis."""
    return Queue(QUEUE, connection=client, serializer=JSONSerializer, job_class=RunJob)


class RunQueue:
    """RQ's queue, for the scheduler.

    Args:
        client: a client from :func:`connect_queue`.
        vitals: counts the attempts that are put into the queue; None if nobody reads the number.
    """

    def __init__(self, client: redis.Redis, vitals: ProcessVitals | None = None) -> None:
        self._client = client
        self._vitals = vitals or ProcessVitals()
        self._queue = make_queue(client)

    def enqueue(self, job: str, planned_at: datetime, attempt: int, limit_s: int) -> None:
        """Put an attempt of a run into the queue. This is done even if RQ has a job for the run
        already.

        Args:
            job: the job's name.
            planned_at: the run's planned time, in UTC.
            attempt: the number of the attempt, from 1.
            limit_s: seconds that the attempt may take.

        Raises:
            StreamError: nobody knows whether the attempt is in the queue.
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
        """Return the ids of the RQ jobs that wait in the queue.

        Raises:
            StreamError: Redis does not answer, or refuses.
        """
        with mapped():
            return set(self._queue.get_job_ids())

    def has_attempt(self, job: str, planned_at: datetime, attempt: int, waiting: set[str]) -> bool:
        """Return whether RQ has this attempt, or a later attempt of the run: RQ is executing it, or
        will start it. If not, the scheduler enqueues this attempt. ``waiting`` is the result of
        :meth:`waiting`.

        Raises:
            StreamError: Redis does not answer, or refuses.
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
    """Return whether RQ will start, or is executing, an RQ job that was just read from Redis."""
    status = str(job.get_status(refresh=False).value)
    if status != "started":
        return status in ("scheduled", "deferred") or (status == "queued" and job.id in waiting)
    beat: datetime | None = job.last_heartbeat
    # By the clock of the job process: a skew only causes an enqueue that starts nothing.
    return beat is not None and datetime.now(UTC) - beat < timedelta(seconds=SILENT_S)


IDLE_S: Final = 1
"""Seconds that one read of the queue blocks. A stop is delayed by up to this time. RQ takes whole
seconds."""
_TTL_S: Final = IDLE_S + 15
"""The ``worker_ttl`` for RQ, in seconds. RQ reads the queue for 15 s less than this."""
MONITOR_S: Final = 5
"""Most seconds between two checks of the work horse, and two heartbeats of its RQ job in Redis.
A work horse is the child process in which RQ executes a job."""


@dataclass(slots=True)
class Process:
    """State that the job process passes to its work horses. A work horse is the child process in
    which RQ executes a job. It is forked, so it has a copy of this object; only ``held_until`` is
    shared.

    Attributes:
        options: the options of the job process.
        registry: the jobs, by name.
        log: the log of the job process, for runs as well.
        pid: the process id of the job process.
        asked_to_end: set in a work horse when it is asked to end.
        held_until: the time until which no other process can take over the current run, on
            :func:`time.monotonic`; infinite while there is none.
    """

    options: JobProcessOptions
    registry: Registry
    log: Log
    pid: int
    asked_to_end: bool = False
    held_until: c_double = field(default_factory=shared_moment)

    @property
    def ending(self) -> bool:
        """True if this work horse must end: it was asked to, or the job process is dead."""
        return self.asked_to_end or os.getppid() != self.pid


_process: Process | None = None


def install(process: Process | None) -> None:
    """Set the state that :func:`installed` returns in this process and in the processes that it
    forks; None removes it."""
    global _process
    _process = process


def installed() -> Process:
    """Return the state that :func:`install` has set.

    Raises:
        RunFailed: no state was set, because RQ's own worker took the RQ job instead of a job
            process of countersink.
    """
    if _process is None:
        raise RunFailed(
            "runs of countersink need a job process of countersink, which this is not: start it"
            " with `countersink jobs` instead of `rq worker`"
        )
    return _process


class _RedisLost(StopRequested):  # type: ignore[misc] # RQ is checked as if untyped
    """Redis was lost while the worker was idle. RQ treats this error as a request to stop, and logs
    nothing."""


class RunWorker(Worker):  # type: ignore[misc] # RQ is checked as if untyped
    """RQ's worker, which takes runs from the queue. It forks a work horse (RQ's name for a child
    process) for each run.

    Args:
        client: a client of RQ's Redis.
        name: a name that no worker had before.
        process: the state for the work horses.
        stop: the request to stop, which ends the worker.
        outage: logs when Redis is away, and when it answers again.
        vitals: the state and numbers for metrics. They are updated every few seconds, and for each
            run.
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
        """Ask the work horse, if there is one, to end (SIGTERM). Any thread may call this."""
        if self.horse_pid:
            with suppress(ProcessLookupError):  # the horse has just ended
                os.kill(self.horse_pid, signal.SIGTERM)

    def kill_horse_group(self) -> None:
        """Kill the work horse and its children. Any thread may call this."""
        pid = self.horse_pid
        if pid:
            for kill in (os.killpg, os.kill):  # it may not lead its group yet
                with suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> Any:
        """Wait for the next RQ job, and return it with its queue. Both arguments are ignored.
        Each read of the queue blocks only shortly, so that a stop is noticed soon: then raise
        StopRequested."""
        while True:
            self._vitals.step("idle")
            if self._stop_signal.requested:
                raise StopRequested
            found = super().dequeue_job_and_maintain_ttl(IDLE_S, IDLE_S)
            self._outage.over()
            if found is not None:
                return found

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Send the worker's heartbeat to Redis, as RQ does. If Redis fails during a run, the run
        goes on. If it fails while there is no run, :meth:`work` ends, because RQ's own waiting for
        Redis would not notice a stop."""
        try:
            super().heartbeat(timeout, pipeline)
        except redis.RedisError as error:
            if not self.horse_pid:
                raise _RedisLost from error

    def set_current_job_working_time(self, *args: Any, **kwargs: Any) -> None:
        """Write the working time of the RQ job to Redis, as RQ does. If Redis is away, the run goes
        on."""
        with suppress(redis.RedisError):  # logged where the queue is read
            super().set_current_job_working_time(*args, **kwargs)

    def maintain_heartbeats(self, job: Any) -> None:
        """Send the heartbeat of the RQ job to Redis, as RQ does. If Redis is away, the run goes on.
        But if the run's own heartbeat in MySQL stays away, another process may take over the run
        from ``held_until`` on. If the work horse still works ``silent_s`` seconds after
        ``held_until``, kill it: it is taken to hang."""
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
        """Fork the work horse, as RQ does. Signals are blocked in this process during the fork, and
        in the child until it has its own handlers."""
        self._vitals.step("running")
        self._vitals.runs += 1
        self._process.held_until.value = inf
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            super().fork_work_horse(job, queue)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def setup_work_horse_signals(self) -> None:
        """Install the signal handlers of the work horse: SIGTERM asks the run to end. Ctrl-C is
        ignored, because the parent handles it."""
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
        """Do nothing: this process takes no commands from Redis."""

    def unsubscribe(self) -> None:
        """Do nothing: there is no subscription."""

    def _install_signal_handlers(self) -> None:
        """Do nothing: the process has its own handlers."""
