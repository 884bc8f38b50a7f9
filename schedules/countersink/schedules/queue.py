"""The RQ queue of runs: putting one in, and asking whether RQ still has it.

MySQL says which runs there are and which attempt of each is due; RQ carries them to a process and
keeps their time limits. An attempt may be enqueued twice, or late: it starts once, see
:mod:`countersink.schedules.runs`. RQ's own retries would need its scheduler process, with a lock in
Redis, and would be forgotten with Redis: the scheduler enqueues a failed run again instead.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import redis
from rq import Queue
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from countersink.schedules.vitals import Vitals
from countersink.stream.connection import connect, mapped
from countersink.stream.errors import StreamMisconfigured

QUEUE: Final = "countersink"
FUNCTION: Final = "countersink.schedules.perform.perform"
"""What RQ calls, with the name of a job, the planned time, the attempt and the time limit."""
PIECES: Final = "countersink.schedules.pieces.perform"
"""What RQ calls to count pieces of a backfill."""
_ALLOWED: Final = (FUNCTION, PIECES)
RESULT_TTL_S: Final = 600
"""Seconds that Redis remembers a run that ended well; MySQL remembers it for months."""
FAILURE_TTL_S: Final = 86_400
"""Seconds that Redis remembers one that did not."""
SILENT_S: Final = 60.0
"""Seconds after which a started RQ job without a sign of life is lost."""
_TIME: Final = "%Y%m%dT%H%M%SZ"


class NotOurs(Exception):
    """An RQ job that calls something else than what is countersink's."""


class RunJob(Job):  # type: ignore[misc] # RQ is checked as if untyped
    """An RQ job that can only be a run of ours, or pieces of a backfill.

    RQ calls whatever function a job names, so whoever can write to its Redis could run anything
    here, JSON or not: this refuses all functions but these two, callbacks and webhooks included.
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
        if self.func_name not in _ALLOWED or self.instance is not None:
            raise NotOurs(f"{self.id} is no run of countersink: refused")
        return super().perform()

    def execute_success_callback(self, *_: object) -> None:
        """Nothing: runs have none."""

    def execute_failure_callback(self, *_: object) -> None:
        """Nothing: runs have none."""

    def execute_stopped_callback(self, *_: object) -> None:
        """Nothing: runs have none."""

    def send_webhooks(self, *_: object, **__: object) -> None:
        """Nothing: runs have none."""


def run_id(job: str, planned_at: datetime) -> str:
    """The RQ job's id: ``compact-20261121T080000Z``. RQ allows letters, digits, _ and - only."""
    return f"{job}-{planned_at.strftime(_TIME)}"


def connect_queue(url: str, *, client_name: str) -> redis.Redis:
    """A client for RQ's Redis.

    Raises:
        StreamMisconfigured: the URL cannot be used, or is that of a Redis Cluster.
    """
    if url.startswith("redis+cluster:"):
        raise StreamMisconfigured(
            "RQ cannot run on a Redis Cluster: set COUNTERSINK_JOBS_REDIS_URL to the URL of a"
            " single Redis server for the scheduled jobs"
        )
    return connect(url, client_name=client_name)


def make_queue(client: redis.Redis) -> Any:
    """RQ's queue, with JSON: pickles would run code of whoever writes to Redis."""
    return Queue(QUEUE, connection=client, serializer=JSONSerializer, job_class=RunJob)


class Runs:
    """The queue as the scheduler uses it.

    Args:
        client: from :func:`connect_queue`.
        vitals: where enqueued runs are counted.
    """

    def __init__(self, client: redis.Redis, vitals: Vitals | None = None) -> None:
        self._client = client
        self._vitals = vitals or Vitals()
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
                args=(job, planned_at.strftime(_TIME), attempt, limit_s),
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
        name = run_id(job, planned_at)
        with mapped():
            try:
                found: Any = RunJob.fetch(name, self._client, JSONSerializer)
                if found.args[2] < attempt:
                    return False
                return waits_or_works(found, waiting)
            except (NoSuchJobError, InvalidJobOperation, DeserializationError):
                return False
            except (LookupError, TypeError, ValueError, AttributeError):
                return False  # not as we wrote it: enqueue it anew


def waits_or_works(job: Any, waiting: set[str]) -> bool:
    """Whether an RQ job, as it was just fetched, will start, or is at work."""
    status = str(job.get_status(refresh=False).value)
    if status == "queued":
        return job.id in waiting
    if status != "started":
        return status in ("scheduled", "deferred")
    beat: datetime | None = job.last_heartbeat
    # By the clock of the job process: a skew makes for an enqueue that starts nothing.
    return beat is not None and _age(beat) < timedelta(seconds=SILENT_S)


def planned_time(text: str) -> datetime:
    """The planned time in an RQ job's arguments: naive UTC, as the tables have it.

    Raises:
        ValueError: it is none.
    """
    return datetime.strptime(text, _TIME)  # noqa: DTZ007 (the text ends in Z)


def _age(moment: datetime) -> timedelta:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return datetime.now(UTC) - aware
