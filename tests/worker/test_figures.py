"""The figures a worker publishes for `countersink info`."""

import os
import socket

import redis

from countersink.stream.connection import command
from countersink.stream.connection import connect as connect_redis
from countersink.stream.progress import TTL_S
from countersink.worker.report import WorkerFigures, heartbeat
from tests.support.factories import RedisFactory
from tests.support.traffic import Traffic, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import AWAY, Running


def published(client: redis.Redis) -> dict[str, str]:
    for key in client.keys("countersink:worker:*"):
        found: dict[bytes, bytes] = command(client, "HGETALL", key)
        return {name.decode(): value.decode() for name, value in found.items()}
    return {}


def test_a_worker_publishes_what_it_does_and_takes_it_back_at_the_end(
    redis_url: str, redis_client: redis.Redis, mysql_url: str
) -> None:
    with Running(redis_url, mysql_url) as worker:
        send(redis_client, *(Traffic(80).entry(now_ms(redis_client), 20) for _ in range(10)))
        eventually(lambda: published(redis_client).get("rows") == "200")
        found = published(redis_client)
        key = redis_client.keys("countersink:worker:*")[0]
        assert 0 < redis_client.ttl(key) <= TTL_S
        assert worker.end() == 0
    assert found["pid"] == str(os.getpid())
    assert found["host"] == socket.gethostname()
    assert found["entries"] == "10"
    assert 1 <= int(found["slot"]) <= 255
    assert int(found["started"]) <= int(found["last_batch"]) <= int(found["updated"])
    assert found["state"] in ("idle", "applying")
    assert float(found["rate"]) >= 0
    assert set(found) == {"pid", "host", "rate", "updated", *WorkerFigures.__slots__}
    assert redis_client.keys("countersink:worker:*") == []


def test_a_worker_that_waits_for_mysql_says_so(redis_url: str, redis_client: redis.Redis) -> None:
    with Running(redis_url, AWAY):
        eventually(lambda: published(redis_client).get("state") == "waiting")
        found = published(redis_client)
    assert found["last_error"]
    assert found["slot"] == ""


def test_publishing_never_raises(own_redis_server: RedisFactory) -> None:
    server = own_redis_server()
    client = connect_redis(server.url)
    publisher = heartbeat(client, "c", WorkerFigures())
    server.kill()
    publisher.publish(now=True)
    publisher.withdraw()
    client.close()


def test_figures_are_published_at_most_once_a_second(redis_client: redis.Redis) -> None:
    figures = WorkerFigures()
    publisher = heartbeat(redis_client, "c", figures)
    publisher.publish()
    figures.entries = 1
    publisher.publish()
    assert published(redis_client)["entries"] == "0"
    publisher.publish(now=True)
    assert published(redis_client)["entries"] == "1"
