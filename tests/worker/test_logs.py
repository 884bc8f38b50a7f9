"""The log: each record has a known action, as text or JSON, and none holds an event or a secret."""

import io
import json
import os
import socket

import pytest
import redis

from countersink.runtime.log import Log, logged
from countersink.stream.connection import command
from countersink.stream.connection import connect as connect_redis
from countersink.stream.entry import encode_rows
from countersink.stream.progress import TTL_S
from countersink.worker.report import LOGGER, WorkerAction, WorkerFigures, heartbeat
from tests.support.factories import RedisFactory
from tests.support.traffic import FIRST_MINUTE, Traffic, add, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import AWAY, Place, Running


def test_a_run_logs_its_steps(place: Place) -> None:
    traffic = Traffic(90)
    send(place.client, *(traffic.entry(now_ms(place.client)) for _ in range(3)))
    add(place.client, {"rows": "secret-garbage"})
    add(place.client, {"rows": encode_rows([("bad name", "secret-key", FIRST_MINUTE, 1)])})
    records = place.drain()
    assert records.actions() == ["started", "ready", "batch", "dead", "drained", "stopped"]
    consumers = {getattr(record, "fields", {}).get("consumer") for record in records.records}
    assert len(consumers) == 1
    said = "".join(str(vars(record)) for record in records.records)
    assert "secret" not in said
    assert "/page/" not in said


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_json_has_one_object_per_line(stream: io.StringIO) -> None:
    with logged("json", stream):
        Log(LOGGER, consumer="host-1-ab")(
            WorkerAction.WAITING, "MySQL does not serve", for_s=31, error='a "b"\nc'
        )
        LOGGER.warning("from elsewhere")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "action": "waiting",
        "message": "MySQL does not serve",
        "consumer": "host-1-ab",
        "for_s": 31,
        "error": 'a "b"\nc',
    }
    assert second["action"] == "other"


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_bug_is_shown_by_its_lines_of_code_without_its_text(
    stream: io.StringIO, log_format: str
) -> None:
    secret = "a visitor's " + "address"

    def inner() -> None:
        raise ValueError(secret)

    with logged(log_format, stream):
        try:
            try:
                inner()
            except ValueError as cause:
                raise KeyError(secret) from cause
        except KeyError as error:
            Log(LOGGER, consumer="c")(WorkerAction.ENTRY_FAILED, "failed", bug=error)
            LOGGER.exception("elsewhere")
    said = stream.getvalue()
    assert secret not in said
    assert said.count("in inner") == 2
    assert "ValueError" in said
    assert "KeyError" in said


def published(client: redis.Redis) -> dict[str, str]:
    for key in client.keys("countersink:worker:*"):
        found: dict[bytes, bytes] = command(client, "HGETALL", key)
        return {name.decode(): value.decode() for name, value in found.items()}
    return {}


def test_a_worker_publishes_what_it_does_and_takes_it_back_at_the_end(place: Place) -> None:
    with place.running() as worker:
        send(place.client, *(Traffic(80).entry(now_ms(place.client), 20) for _ in range(10)))
        eventually(lambda: published(place.client).get("rows") == "200")
        found = published(place.client)
        key = place.client.keys("countersink:worker:*")[0]
        assert 0 < place.client.ttl(key) <= TTL_S
        assert worker.end() == 0
    assert found["pid"] == str(os.getpid())
    assert found["host"] == socket.gethostname()
    assert found["entries"] == "10"
    assert 1 <= int(found["slot"]) <= 255
    assert int(found["started"]) <= int(found["last_batch"]) <= int(found["updated"])
    assert found["state"] in ("idle", "applying")
    assert float(found["rate"]) >= 0
    assert set(found) == {"pid", "host", "rate", "updated", *WorkerFigures.__slots__}
    assert place.client.keys("countersink:worker:*") == []


def test_a_worker_that_waits_for_mysql_says_so(place: Place) -> None:
    with Running(place.redis_url, AWAY):
        eventually(lambda: published(place.client).get("state") == "waiting")
        found = published(place.client)
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
