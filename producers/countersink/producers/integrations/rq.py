"""RQ worker classes that count jobs by function and outcome (``finished``, ``failed``, ``stopped``,
``retried``).

::

    rq worker --worker-class countersink.producers.integrations.rq.CountingWorker

The producer is created from environment variables (``COUNTERSINK_REDIS_URL``). If they are missing,
a class with ``missing = "off"`` counts nothing, and any other class raises ValueError. For another
producer, counter or kind of worker define a class::

    class Worker(CountsJobs, SimpleWorker):
        counter = "background_jobs"
        # Default: no dimensions, but keys such as "shop.jobs.charge finished".
        dimensions = {"name": "function", "outcome": "state"}

        def make_producer(self):
            return my_producer
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rq import Worker
from rq.job import JobStatus

from countersink.producers.middleware.count import MAX_NAMES, KeyCounter, SupportsIncrement
from countersink.producers.options import Missing
from countersink.producers.producer import Producer

UNREADABLE: Final = "__unreadable__"
"""The name that stands for a job's function where RQ cannot read the job."""

_FIELDS: Final = ("", "function", "state")
_RETRIED: Final = (JobStatus.QUEUED, JobStatus.SCHEDULED)


class CountsJobs:
    """A mixin, to be put before a worker class of RQ. It counts each run of a job when the run has
    ended, under keys such as ``shop.jobs.charge finished``, ``… failed``, ``… stopped`` or, if the
    job will run again, ``… retried``.

    If a work horse (the process that runs a job) is killed, the worker counts the run: as failed,
    as retried if RQ will run the job again, or as stopped if RQ was told to stop the job. Jobs that
    RQ cleans up after a worker has died are not counted.

    Attributes:
        counter: the name of the counter to which runs are added.
        missing: ``"off"`` counts nothing if ``COUNTERSINK_REDIS_URL`` is missing.
        max_names: maximum of different functions; runs of further ones are counted as
            ``__other__``.
        dimensions: maps each dimension of the counter to ``function`` or ``state``, the part of the
            key that is its value. None counts under keys, without dimensions.

    Raises:
        TypeError, ValueError: ``COUNTERSINK_REDIS_URL`` is missing (unless ``missing`` is
            ``"off"``), or another setting of the environment or an attribute is invalid.
    """

    counter: ClassVar[str] = "jobs"
    missing: ClassVar[Missing] = "error"
    max_names: ClassVar[int] = MAX_NAMES
    dimensions: ClassVar[Mapping[str, str] | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._job_tally = KeyCounter(
            self.make_producer(),
            self.counter,
            max_names=self.max_names,
            fields=_FIELDS,
            dimensions=self.dimensions,
        )

    def make_producer(self) -> SupportsIncrement:
        """Create the producer. Called once, when the worker object is created. Work horses that are
        forks of the worker's process use the same producer.
        """
        return Producer.from_env(missing=self.missing)

    def handle_job_success(self, job: Any, *args: Any, **kwargs: Any) -> Any:
        """Call RQ's method, then count the run as finished."""
        result = super().handle_job_success(job, *args, **kwargs)  # type: ignore[misc]
        # Not the job's status: a repeated job is queued again already.
        self._count_job(job, "finished")
        return result

    def handle_job_retry(self, job: Any, *args: Any, **kwargs: Any) -> Any:
        """Call RQ's method, then count the run as retried, or as failed where the job has no
        retries left.
        """
        result = super().handle_job_retry(job, *args, **kwargs)  # type: ignore[misc]
        self._count_job(job)
        return result

    def handle_job_failure(self, job: Any, *args: Any, **kwargs: Any) -> Any:
        """Call RQ's method, then count the run by the status that the job has afterwards: as
        failed, as stopped, or as retried if RQ has queued or scheduled the job again.
        """
        result = super().handle_job_failure(job, *args, **kwargs)  # type: ignore[misc]
        self._count_job(job)
        return result

    def perform_job(self, *args: Any, **kwargs: Any) -> Any:
        """Call RQ's method, and return its result. In a work horse, then flush the producer, even
        if the method raises: the process ends by ``os._exit``.
        """
        try:
            return super().perform_job(*args, **kwargs)  # type: ignore[misc]
        finally:
            if getattr(self, "is_horse", False):
                self._job_tally.flush()

    def _count_job(self, job: Any, state: str | None = None) -> None:
        try:
            if state is None:
                status = job.get_status(refresh=False)
                state = "retried" if status in _RETRIED else str(JobStatus(status).value)
            name = job.func_name
        except Exception:  # for example of another serializer than the worker's: RQ failed the job
            state, name = state or "failed", UNREADABLE
        self._job_tally.add("", name if isinstance(name, str) else UNREADABLE, state)


class CountingWorker(CountsJobs, Worker):  # type: ignore[misc]
    """RQ's ``Worker``, which also counts each run of a job by function and outcome."""
