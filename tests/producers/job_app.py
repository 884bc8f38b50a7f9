"""A function that counts with a producer of its module, as a job of RQ and as a task of Celery.

What it counts last waits for the flush interval, which a process that ends does not live to see.
"""

import os

import redis
from celery import Celery

from countersink.producers import Producer

BROKER = os.environ.get("SHOP_BROKER", "memory://")
DONE = "shop:done"

app = Celery("shop", broker=BROKER)
app.conf.broker_connection_retry_on_startup = True

if "COUNTERSINK_REDIS_URL" in os.environ:
    producer = Producer.from_env()


@app.task(name="shop.sell")
def sell() -> None:
    """Counts a visit, whose flush is waited for, and a sale, whose is not."""
    producer.increment("visits")
    assert producer.flush(20)
    producer.increment("sales")
    with redis.Redis.from_url(BROKER) as client:
        client.lpush(DONE, 1)
