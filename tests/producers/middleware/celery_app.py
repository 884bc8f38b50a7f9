"""A Celery application whose tasks end in every way; its workers count them.

Where `SHOP_DONE` names a Redis list, each task pushes onto it when it is about to end for good.
"""

import os
from typing import Any

import redis
from celery import Celery

from countersink.producers import Producer
from countersink.producers.integrations.celery import count_tasks
from tests.producers.middleware.selling import sell

BROKER = os.environ.get("SHOP_BROKER", "memory://")

app = Celery("shop", broker=BROKER)
app.conf.broker_connection_retry_on_startup = True

if "COUNTERSINK_REDIS_URL" in os.environ:
    count_tasks(Producer.from_env())


@app.task(name="shop.add")
def add(one: int, other: int) -> int:
    """Succeeds, and counts by itself."""
    sell()
    _done()
    return one + other


@app.task(name="shop.charge")
def charge() -> None:
    """Fails."""
    _done()
    raise ValueError("no money")


@app.task(name="shop.ship", bind=True, max_retries=2, default_retry_delay=0)
def ship(self: Any) -> str:
    """Succeeds in its third run."""
    if self.request.retries < 2:
        raise self.retry()
    _done()
    return "shipped"


def _done() -> None:
    with redis.Redis.from_url(BROKER) as client:
        client.lpush(os.environ["SHOP_DONE"], 1)
