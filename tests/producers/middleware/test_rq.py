"""RQ: real workers, forking and not; a work horse does not keep what it has counted."""

import sys

import pytest
import redis
from rq import Queue, Retry, SimpleWorker
from rq.serializers import JSONSerializer

from countersink.producers import Producer
from countersink.producers.integrations.rq import CountsJobs
from tests.producers.helpers import totals
from tests.producers.middleware import rq_jobs
from tests.producers.middleware.test_celery import another_database
from tests.support.processes import Children
from tests.support.producing import recorder

JOBS = "tests.producers.middleware.rq_jobs"


class Worker(CountsJobs, SimpleWorker):  # type: ignore[misc]
    """In the test's own process."""

    counter = "background_jobs"
    recording = recorder()

    def make_producer(self) -> Producer:
        return self.recording


def enqueue(queue: Queue, adds: int, others: int) -> None:
    for _ in range(adds):
        queue.enqueue(rq_jobs.add, 1, 2)
    for _ in range(others):
        queue.enqueue(rq_jobs.charge)
        queue.enqueue(rq_jobs.charge, retry=Retry(max=2))
        queue.enqueue(rq_jobs.ship)


def test_a_forking_worker_counts_every_job_and_what_jobs_count(
    redis_url: str, redis_client: redis.Redis
) -> None:
    broker = another_database(redis_url)
    with redis.Redis.from_url(broker) as client:
        queue = Queue("shop", connection=client)
        enqueue(queue, adds=3, others=1)
        queue.enqueue(rq_jobs.die)
        with Children() as children:
            worker = children.start(
                [
                    *(sys.executable, "-m", "rq.cli", "worker", "shop", "--burst", "--quiet"),
                    *("--url", broker, "--worker-class"),
                    "countersink.producers.integrations.rq.CountingWorker",
                ],
                environment={
                    "COUNTERSINK_REDIS_URL": redis_url,
                    # What is stored was stored because a process ended.
                    "COUNTERSINK_PRODUCER_FLUSH_INTERVAL": "3600",
                },
                name="rq",
            )
            assert worker.wait(120) == 0, worker.output()
    assert totals(redis_client) == {
        ("jobs", f"{JOBS}.add finished"): 3,
        ("jobs", f"{JOBS}.charge failed"): 2,
        ("jobs", f"{JOBS}.charge retried"): 2,
        ("jobs", f"{JOBS}.ship retried"): 2,
        ("jobs", f"{JOBS}.ship failed"): 1,
        ("jobs", f"{JOBS}.die failed"): 1,
        ("visits", ""): 3,
        ("sales", ""): 3,
    }


@pytest.fixture
def recording() -> Producer:
    Worker.recording = recorder()
    return Worker.recording


def test_any_worker_class_can_count(redis_url: str, recording: Producer) -> None:
    with redis.Redis.from_url(redis_url) as client:
        queue = Queue("shop", connection=client)
        enqueue(queue, adds=3, others=1)
        Worker([queue], connection=client).work(burst=True, logging_level="CRITICAL")
    recording.assert_counted(
        "background_jobs",
        {
            f"{JOBS}.add finished": 3,
            f"{JOBS}.charge failed": 2,
            f"{JOBS}.charge retried": 2,
            f"{JOBS}.ship retried": 2,
            f"{JOBS}.ship failed": 1,
        },
    )


def test_a_job_that_cannot_be_read_counts(redis_url: str, recording: Producer) -> None:
    with redis.Redis.from_url(redis_url) as client:
        Queue("shop", connection=client, serializer=JSONSerializer).enqueue(rq_jobs.add, 1, 2)
        queue = Queue("shop", connection=client)  # reads pickles
        Worker([queue], connection=client).work(burst=True, logging_level="CRITICAL")
    recording.assert_counted("background_jobs", {"__unreadable__ failed": 1})


def test_what_goes_wrong_with_counting_is_not_the_jobs(redis_url: str, recording: Producer) -> None:
    recording.close()
    with redis.Redis.from_url(redis_url) as client:
        queue = Queue("shop", connection=client)
        job = queue.enqueue(rq_jobs.add, 1, 2)
        Worker([queue], connection=client).work(burst=True, logging_level="CRITICAL")
        assert job.return_value() == 3


def test_the_environment_decides_where_a_worker_counts(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COUNTERSINK_REDIS_URL", raising=False)
    with pytest.raises(ValueError, match="set COUNTERSINK_REDIS_URL"):
        CountsJobs()
    monkeypatch.setattr(CountsJobs, "missing", "off")
    CountsJobs()
    monkeypatch.setenv("COUNTERSINK_REDIS_URL", "memory://jobs")
    queue = Queue("shop", connection=redis_client)
    enqueue(queue, adds=2, others=0)
    type("ByEnvironment", (CountsJobs, SimpleWorker), {})([queue], connection=redis_client).work(
        burst=True, logging_level="CRITICAL"
    )
    Producer("memory://jobs").assert_counted("jobs", {f"{JOBS}.add finished": 2})
