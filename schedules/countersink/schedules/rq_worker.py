"""RQ's queue and worker: its name, the function that may be called and refusals of others, how long
results are kept, when a silent RQ job is lost, polling, killing of runs, no Redis Cluster.

MySQL says which runs there are and which attempt of each is due; RQ carries them to a process and
keeps their time limits. An attempt may be enqueued twice, or late: it starts once, see
:mod:`countersink.schedules.runs`. RQ's own retries would need its scheduler process, with a lock in
Redis, and would be forgotten with Redis: a failed run is planned again instead.
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
from countersink.schedules.options import JobsOptions
from countersink.schedules.report import ProcessVitals, ScheduleAction, shared_moment
from countersink.stream.connection import check_single, connect, mapped

QUEUE: Final = "countersink"
FUNCTION: Final = "countersink.schedules.run_process.perform"
"""What RQ calls, with the name of a job, the planned time, the attempt and the time limit."""
TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
"""Of a planned time in RQ's queue."""
RESULT_TTL_S: Final = 600
"""Seconds that Redis remembers a run that ended well; MySQL remembers it for months."""
FAILURE_TTL_S: Final = 86_400
"""Seconds that Redis remembers one that did not."""
SILENT_S: Final = 60.0
"""Seconds after which a started RQ job without a sign of life is lost."""


class RunJob(Job):  # type: ignore[misc] # RQ is checked as if untyped
    """An RQ job that can only be a run of ours.

    RQ calls whatever function a job names, so whoever can write to its Redis could run anything
    here, JSON or not: this refuses all functions but one, callbacks and webhooks included.
    """

    def restore(self, raw_data: Any) -> Any:
        """RQ's; what cannot be read is none of our jobs, and nothing stays in Redis for longer
        than what is ours.

        Raises:
            NoSuchJobError: RQ passes over it, and its maintenance forgets the id.
        """
        try:
            restored = super().restore(raw_data)
        except NoSuchJobError:
            raise
        except Exception as error:
            self.connection.expire(self.key, FAILURE_TTL_S)
            self.log.warning("what lies in RQ's queue is no job: passed over", exc_info=True)
            raise NoSuchJobError("it cannot be read") from error
        self.result_ttl, self.failure_ttl = RESULT_TTL_S, FAILURE_TTL_S
        return restored

    def perform(self) -> Any:
        """Run it, if it is one of ours."""
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
        StreamMisconfigured: the URL cannot be used, or is that of a Redis Cluster.
    """
    check_single(url)
    return connect(url, client_name=client_name)


def make_queue(client: redis.Redis) -> Any:
    """RQ's queue, with JSON: pickles would run code of whoever writes to Redis."""
    return Queue(QUEUE, connection=client, serializer=JSONSerializer, job_class=RunJob)


class RunQueue:
    """The queue as the scheduler uses it.

    Args:
        client: from :func:`connect_queue`.
        vitals: where enqueued runs are counted.
    """

    def __init__(self, client: redis.Redis, vitals: ProcessVitals | None = None) -> None:
        self._client = client
        self._vitals = vitals or ProcessVitals()
        self._queue = make_queue(client)

    def enqueue(self, job: str, planned_at: datetime, attempt: int, limit_s: int) -> None:
        """Put an attempt of a run into the queue, whatever RQ knows of the run already.

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
        """The ids of what waits in the queue.

        Raises:
            StreamError: Redis does not serve.
        """
        with mapped():
            return set(self._queue.get_job_ids())

    def in_hand(self, job: str, planned_at: datetime, attempt: int, waiting: set[str]) -> bool:
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
            return False  # not as we wrote it: enqueue it anew


def _waits_or_works(job: Any, waiting: set[str]) -> bool:
    """Whether an RQ job, as it was just fetched, will start, or is at work."""
    status = str(job.get_status(refresh=False).value)
    if status != "started":
        return status in ("scheduled", "deferred") or (status == "queued" and job.id in waiting)
    beat: datetime | None = job.last_heartbeat
    # By the clock of the job process: a skew makes for an enqueue that starts nothing.
    return beat is not None and datetime.now(UTC) - beat < timedelta(seconds=SILENT_S)


IDLE_S: Final = 1
"""Seconds that one read of the queue waits: a stop goes unnoticed so long. RQ takes whole ones."""
_TTL_S: Final = IDLE_S + 15
"""RQ reads for 15 s less than this."""
MONITOR_S: Final = 5
"""Seconds between two looks at a work horse, and two signs of life of it in Redis."""


@dataclass(slots=True)
class Process:
    """What the job process hands to its work horses, by the fork.

    Attributes:
        options: its settings.
        registry: the jobs it knows.
        log: where runs say what they do.
        pid: of the job process.
        told: set in a work horse that is to end in good order.
        held_until: where a work horse tells until when its run is surely its own.
    """

    options: JobsOptions
    registry: Registry
    log: Log
    pid: int
    told: bool = False
    held_until: c_double = field(default_factory=shared_moment)

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


class _Gone(StopRequested):  # type: ignore[misc] # RQ is checked as if untyped
    """Redis was lost while the worker had nothing to do; RQ ends its work for it without a word."""


class RunWorker(Worker):  # type: ignore[misc] # RQ is checked as if untyped
    """Takes runs from the queue, and lets a forked work horse do each.

    Args:
        client: RQ's Redis.
        name: that no worker had before.
        process: handed to the work horses.
        stop: when to end.
        outage: where a Redis that is away is announced.
        vitals: told what the process does, every few seconds, and of each run.
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
        self._asked = stop
        self._outage = outage
        self._vitals = vitals

    def tell_horse(self) -> None:
        """Ask the work horse, if there is one, to end in good order; from any thread."""
        if self.horse_pid:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.horse_pid, signal.SIGTERM)

    def end_horse(self) -> None:
        """Kill the work horse and whatever it started; from any thread."""
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
            if self._asked.requested:
                raise StopRequested
            found = super().dequeue_job_and_maintain_ttl(IDLE_S, IDLE_S)
            self._outage.over()
            if found is not None:
                return found

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's; outside of a run a lost connection ends :meth:`work`, whose own way of waiting
        would not notice a stop.
        """
        try:
            super().heartbeat(timeout, pipeline)
        except redis.RedisError as error:
            if not self.horse_pid:
                raise _Gone from error

    def set_current_job_working_time(self, *args: Any, **kwargs: Any) -> None:
        """RQ's; a Redis that is away does not end the watch over a run."""
        with suppress(redis.RedisError):  # said where the queue is read
            super().set_current_job_working_time(*args, **kwargs)

    def maintain_heartbeats(self, job: Any) -> None:
        """RQ's; a Redis that is away does not end the watch over a run. A work horse that hangs is
        killed once its run may have been taken over for long.
        """
        process = self._process
        if time.monotonic() > process.held_until.value + process.options.silent_s:
            process.held_until.value = inf  # once
            process.log(
                ScheduleAction.RUN_LOST,
                "the run at hand is another's by now and does not end: its process is killed",
                level=logging.WARNING,
                run=job.id,
            )
            self.end_horse()
            return
        self._vitals.step("running")
        with suppress(redis.RedisError):  # said where the queue is read
            super().maintain_heartbeats(job)

    def fork_work_horse(self, job: Any, queue: Any) -> None:
        """RQ's, with signals held back until the child has its own handlers."""
        self._vitals.step("running")
        self._vitals.runs += 1
        self._process.held_until.value = inf
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            super().fork_work_horse(job, queue)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def setup_work_horse_signals(self) -> None:
        """In the child: SIGTERM asks the run to end in good order, Ctrl-C is the parent's."""
        # The pipe is the parent's: a number written to it would be a signal to the parent.
        signal.set_wakeup_fd(-1)
        process = self._process
        process.told = self._asked.requested

        def told(*_: object) -> None:
            process.told = True

        signal.signal(signal.SIGTERM, told)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def subscribe(self) -> None:
        """Nothing: this process takes no commands from Redis."""

    def unsubscribe(self) -> None:
        """Nothing."""

    def _install_signal_handlers(self) -> None:
        """Nothing: the process has its own."""
