"""``include_pending`` by HTTP: so much of the queue at most, by one request at a time, and nobody
else waits for it.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import redis
import requests

from countersink.reads import Reads
from countersink.reads.pending import Bounds, Folding, Queue, read_queue
from countersink.store.totals.query import Answer, Query
from countersink.web import read_pool
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

PATHS = (
    "/v1/counters/views/totals",
    "/v1/counters/views/daily",
    "/v1/counters/views/hourly",
    "/v1/counters/views/top",
    "/v1/totals",
    "/v1/totals?by=key",
    "/v1/counters",
    "/v1/export/openmetrics?counter=views",
)


@pytest.fixture
def small(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server that reads three entries at most, in one thread."""
    with serving(redis_url, mysql_url, max_pending_entries=3, threads=1) as web:
        web.store.counters.set("views", resolution="hour")
        yield web


def send(web: Web, keys: int = 1) -> None:
    """One entry."""
    for key in range(keys):
        web.producer.increment("views", str(key))
    assert web.producer.flush(timeout=20)


def get(web: Web, path: str, *, pending: bool = True) -> requests.Response:
    parameters = {"include_pending": "true"} if pending else {}
    return requests.get(f"{web.url}{path}", params=parameters, timeout=20)


def test_a_queue_that_is_too_long_is_not_read(small: Web) -> None:
    for _ in range(3):
        send(small)
    for path in PATHS:
        assert get(small, path).status_code == 200, path
    send(small)
    for path in PATHS:
        answer = get(small, path)
        assert answer.status_code == 503, path
        assert "more than 3 entries" in answer.json()["detail"]
        assert int(answer.headers["Retry-After"]) > 0
        assert get(small, path, pending=False).status_code == 200, path
    # Nor are entries with too many rows.
    small.apply()
    send(small, keys=75)
    assert get(small, "/v1/totals").json()["rows"] == [{"counter": "views", "total": 79}]
    send(small)
    answer = get(small, "/v1/totals")
    assert answer.status_code == 503
    assert "more than 75 rows" in answer.json()["detail"]


@dataclass
class Held:
    """Threads that are held until they are let go."""

    here: list[str] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> None:
        self.here.append(threading.current_thread().name)
        assert self.go.wait(20)


def test_one_at_a_time_reads_the_queue(small: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    held, read = Held(), read_queue

    def held_read(client: redis.Redis, folding: Folding, bounds: Bounds) -> Queue:
        held.hold()
        return read(client, folding, bounds)

    monkeypatch.setattr("countersink.reads.pending.read_queue", held_read)
    monkeypatch.setattr(read_pool, "MAX_PENDING_READS", 2)
    send(small)
    limiter = small.services.read_pool.queue
    with ThreadPoolExecutor(2) as others:
        try:
            first = others.submit(get, small, "/v1/totals")
            eventually(lambda: len(held.here) == 1)
            second = others.submit(get, small, "/v1/counters")
            eventually(lambda: limiter.statistics().tasks_waiting == 1)
            third = get(small, "/v1/totals")
            assert third.status_code == 429
            assert get(small, "/v1/totals", pending=False).status_code == 200
            assert len(held.here) == 1
        finally:
            held.go.set()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert len(held.here) == 2


def test_nobody_else_waits_for_those_that_read_totals(
    small: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()

    ask = Reads.ask

    def held_ask(reads: Reads, query: Query) -> Answer:
        held.hold()
        return ask(reads, query)

    monkeypatch.setattr(Reads, "ask", held_ask)
    with ThreadPoolExecutor(1) as other:
        try:
            answer = other.submit(get, small, "/v1/totals", pending=False)
            eventually(lambda: len(held.here) == 1)
            assert requests.post(f"{small.url}/v1/sequences/a/next", timeout=20).ok
            assert requests.get(f"{small.url}/v1/dead", timeout=20).ok
        finally:
            held.go.set()
        assert answer.result().status_code == 200


def test_who_is_about_to_end_reads_no_more(small: Web) -> None:
    send(small)
    assert get(small, "/v1/totals").status_code == 200
    small.loop.call_soon_threadsafe(small.application.stop)
    eventually(small.services.stopping.is_set)
    answer = get(small, "/v1/totals")
    assert answer.status_code == 503
    assert "about to end" in answer.json()["detail"]
