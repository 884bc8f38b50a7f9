"""Celery: a real worker with a pool of processes, none of which keeps what it has counted."""

import sys
from collections.abc import Iterator

import pytest
import redis
from celery import Celery, signals

from countersink.producers.integrations.celery import count_tasks
from tests.producers.helpers import Queue, totals
from tests.producers.middleware.celery_app import add, app, charge, ship
from tests.support.processes import Children
from tests.support.producing import recorder
from tests.support.waiting import eventually

ADDED, CHARGED, SHIPPED, EXPIRED = 6, 2, 1, 2
DONE = "shop:done"
SECONDS = 60


def another_database(url: str) -> str:
    """Of the same Redis: for what is not countersink's."""
    return url.rpartition("/")[0] + "/1"


def idle(app: Celery) -> None:
    """Wait until the one worker has heard how all tasks ended. When SIGTERM comes while a process
    of its pool hands that over, Celery may wait for ever for the rest
    (https://github.com/celery/celery/issues/2606).
    """
    ask = app.control.inspect(limit=1, timeout=SECONDS)
    eventually(lambda: not any((ask.active() or {"nobody": [True]}).values()))


def test_a_pool_of_processes_counts_every_task_and_what_tasks_count(queue: Queue) -> None:
    broker = another_database(queue.url)
    app.conf.broker_url = broker
    for _ in range(EXPIRED):
        add.apply_async((1, 2), expires=-1)
    for _ in range(ADDED):
        add.delay(1, 2)
    for _ in range(CHARGED):
        charge.delay()
    for _ in range(SHIPPED):
        ship.delay()
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.producers.middleware.celery_app", "worker"),
        *("--pool", "prefork", "-c", "2", "--max-tasks-per-child", "6", "-l", "critical"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ]
    with Children() as children, redis.Redis.from_url(broker, socket_timeout=2 * SECONDS) as client:
        worker = children.start(
            command,
            environment={
                "SHOP_BROKER": broker,
                "SHOP_DONE": DONE,
                "COUNTERSINK_REDIS_URL": queue.url,
                # What is stored was stored because a process ended, not because time went by.
                "COUNTERSINK_PRODUCER_FLUSH_INTERVAL": "3600",
            },
            name="celery",
        )
        for _ in range(ADDED + CHARGED + SHIPPED):
            assert client.blpop([DONE], SECONDS), worker.output()
        idle(app)
        worker.terminate()
        assert worker.wait() == 0, worker.output()
    assert totals(queue.client) == {
        ("tasks", "shop.add succeeded"): ADDED,
        ("tasks", "shop.add revoked"): EXPIRED,
        ("tasks", "shop.charge failed"): CHARGED,
        ("tasks", "shop.ship retried"): 2 * SHIPPED,
        ("tasks", "shop.ship succeeded"): SHIPPED,
        ("visits", ""): ADDED,
        ("sales", ""): ADDED,
    }


@pytest.fixture
def disconnected() -> Iterator[None]:
    yield
    for signal in (
        *(signals.task_success, signals.task_failure, signals.task_retry, signals.task_revoked),
        signals.worker_process_shutdown,
    ):
        assert signal.disconnect(dispatch_uid="countersink")


@pytest.mark.usefixtures("disconnected")
def test_a_second_call_replaces_the_first() -> None:
    first, second = recorder(), recorder()
    count_tasks(first)
    count_tasks(second, counter="work", max_names=1)
    signals.task_success.send(sender=add, result=3)
    signals.task_failure.send(sender=ship)
    signals.task_retry.send(sender=None)
    first.assert_nothing_counted()
    second.assert_counted(
        "work", {"shop.add succeeded": 1, "__other__ failed": 1, "__other__ retried": 1}
    )


@pytest.mark.usefixtures("disconnected")
def test_tasks_may_have_dimensions_in_the_place_of_a_key() -> None:
    producer = recorder()
    count_tasks(producer, dimensions={"name": "task", "outcome": "state"})
    signals.task_success.send(sender=add, result=3)
    signals.task_failure.send(sender=add)
    assert producer.count("tasks", {"name": "shop.add"}) == 2
    assert producer.count("tasks", {"name": "shop.add", "outcome": "failed"}) == 1
    with pytest.raises(ValueError, match="no field 'route'; the fields are task, state"):
        count_tasks(producer, dimensions={"page": "route"})
