"""Jobs that count, in real workers of RQ and Celery that know nothing of it.

Each job runs in a process of its own, which ends by `os._exit`.
"""

import sys

import pytest
import redis
from rq import Queue

from tests.producers.helpers import totals
from tests.producers.job_app import DONE, app, sell
from tests.producers.middleware.test_celery import another_database, idle
from tests.support.processes import Children

JOBS = 2
COUNTED = {("visits", ""): JOBS, ("sales", ""): JOBS}
SECONDS = 60


def environment(redis_url: str) -> dict[str, str]:
    """Of a worker: a flush interval that no process lives to see the end of."""
    return {
        "SHOP_BROKER": another_database(redis_url),
        "COUNTERSINK_REDIS_URL": redis_url,
        "COUNTERSINK_PRODUCER_FLUSH_INTERVAL": "3600",
    }


def test_jobs_in_work_horses_of_rq_count(redis_url: str, redis_client: redis.Redis) -> None:
    broker = another_database(redis_url)
    with redis.Redis.from_url(broker, socket_timeout=2 * SECONDS) as client, Children() as children:
        for _ in range(JOBS):
            Queue("shop", connection=client).enqueue(sell)
        worker = children.start(
            [
                sys.executable,
                "-m",
                "rq.cli",
                "worker",
                "shop",
                "--burst",
                "--quiet",
                "--url",
                broker,
            ],
            environment=environment(redis_url),
            name="rq",
        )
        assert worker.wait(120) == 0, worker.output()
    assert totals(redis_client) == COUNTED


@pytest.mark.long("a pool of Celery, as in middleware/test_celery.py")
def test_tasks_in_a_pool_of_celery_count(redis_url: str, redis_client: redis.Redis) -> None:
    broker = another_database(redis_url)
    app.conf.broker_url = broker
    for _ in range(JOBS):
        sell.delay()
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.producers.job_app", "worker"),
        *("--pool", "prefork", "-c", "2", "--max-tasks-per-child", "1", "-l", "critical"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ]
    with Children() as children, redis.Redis.from_url(broker, socket_timeout=2 * SECONDS) as client:
        worker = children.start(command, environment=environment(redis_url), name="celery")
        for _ in range(JOBS):
            assert client.blpop([DONE], SECONDS), worker.output()
        idle(app)
        worker.terminate()
        assert worker.wait() == 0, worker.output()
    assert totals(redis_client) == COUNTED
