"""Reads by HTTP: each has its time, ends with its client, and leaves room for others; of the queue
so much at most is read, for one request at a time.
"""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pytest
import redis
import requests

from countersink.counting.totals.query import Answer, Query
from countersink.database.session import Session
from countersink.reads import Bounds, EntrySums, Queue, Reads, read_queue
from countersink.web import read_pool
from tests.database.test_session import locked, waiting
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

PATHS = (
    "/v1/counters",
    "/v1/counters/views",
    "/v1/counters/views/totals",
    "/v1/counters/views/daily",
    "/v1/counters/views/hourly",
    "/v1/counters/views/top",
    "/v1/totals",
    "/v1/totals?by=day",
    "/v1/totals?by=key&include_pending=true",
    "/v1/export/openmetrics?counter=views",
)
PENDING = [path for path in PATHS if path != "/v1/counters/views" and "?by=key" not in path]
"""Those that may add what is in the queue."""


@pytest.fixture
def brief(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server that gives a read half a second."""
    with serving(redis_url, mysql_url, read_timeout_s=0.5) as web:
        web.store.counters.set("views", resolution="hour")
        web.count("views", "a", 3)
        yield web


def get(web: Web, path: str, key: str = "", **parameters: str) -> requests.Response:
    return web.ask("GET", path, key, params=parameters)


pending = partial(get, include_pending="true")


@dataclass
class Held:
    """Threads that are held until they are let go."""

    here: list[str] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> None:
        self.here.append(threading.current_thread().name)
        assert self.go.wait(20)


def kills(session: Session) -> int:
    return int(session.query("SHOW GLOBAL STATUS LIKE 'Com_kill'")[0][1])


def test_a_read_whose_time_is_over_is_503_and_the_next_one_is_answered(
    brief: Web, session: Session
) -> None:
    with ThreadPoolExecutor(len(PATHS)) as clients:
        with locked(brief.options.mysql_url):
            answers = list(clients.map(lambda path: get(brief, path), PATHS))
            eventually(lambda: not waiting(session))
        for path, answer in zip(PATHS, answers, strict=True):
            assert answer.status_code == 503, (path, answer.text)
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.headers["Retry-After"] == "5"
            assert "was stopped" in answer.json()["detail"]
    for path in PATHS:
        # Half a second is short on a machine that is busy.
        eventually(lambda path=path: get(brief, path).status_code == 200)  # type: ignore[misc]


def test_a_read_ends_with_its_client(redis_url: str, mysql_url: str, session: Session) -> None:
    with serving(redis_url, mysql_url) as web:
        web.count("views", "a", 3)
        before = kills(session)
        host, port = web.url.removeprefix("http://").split(":")
        with locked(mysql_url):
            for path in ("/v1/totals?by=day", "/v1/counters/views/totals", "/v1/counters"):
                with closing(socket.create_connection((host, int(port)))) as client:
                    client.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                    eventually(lambda: waiting(session))
                eventually(lambda: not waiting(session))
            assert kills(session) - before >= 3
            eventually(lambda: web.services.read_pool.taken == 0)
        assert get(web, "/v1/counters/views/totals?by=total").json()["rows"] == [{"total": 3}]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Holds totals of all counters."""
    found = Held()

    ask = Reads.ask

    def held_ask(reads: Reads, query: Query) -> Answer:
        if query.selection.counter is None:
            found.hold()
        return ask(reads, query)

    monkeypatch.setattr(Reads, "ask", held_ask)
    yield found
    found.go.set()


@pytest.fixture
def two_threads(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server with two threads for reads: a key gets one of them at a time."""
    with serving(redis_url, mysql_url, threads=2) as web:
        web.count("views", "a", 3)
        yield web


def test_one_key_has_so_many_reads_under_way_and_another_has_its_own(
    two_threads: Web, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = two_threads
    monkeypatch.setattr(read_pool, "MAX_READS", 2)
    greedy, other = web.key("read", name="greedy"), web.key("read", name="other")
    with ThreadPoolExecutor(3) as clients:
        try:
            two = [clients.submit(get, web, "/v1/totals", greedy) for _ in range(2)]
            pool = web.services.read_pool
            eventually(lambda: pool.taken == 2)
            refused = get(web, "/v1/totals", greedy)
            assert refused.status_code == 429
            assert refused.headers["Retry-After"] == "2"
            # One of them runs, the other waits for it: there is a thread left for another key.
            third = clients.submit(get, web, "/v1/totals", other)
            eventually(lambda: len(held.here) == 2)
            assert pool.taken == 3
        finally:
            held.go.set()
        assert [each.result().status_code for each in (*two, third)] == [200] * 3
    eventually(lambda: pool.taken == 0)


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


def test_a_queue_that_is_too_long_is_not_read(small: Web) -> None:
    for _ in range(3):
        send(small)
    for path in PENDING:
        assert pending(small, path).status_code == 200, path
    send(small)
    for path in PENDING:
        answer = pending(small, path)
        assert answer.status_code == 503, path
        assert "more than 3 entries" in answer.json()["detail"]
        assert int(answer.headers["Retry-After"]) > 0
        assert get(small, path).status_code == 200, path
    # Nor are entries with too many rows.
    small.apply()
    send(small, keys=75)
    assert pending(small, "/v1/totals").json()["rows"] == [{"counter": "views", "total": 79}]
    send(small)
    answer = pending(small, "/v1/totals")
    assert answer.status_code == 503
    assert "more than 75 rows" in answer.json()["detail"]


def test_one_at_a_time_reads_the_queue(small: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    held, read = Held(), read_queue

    def held_read(client: redis.Redis, sums: EntrySums, bounds: Bounds) -> Queue:
        held.hold()
        return read(client, sums, bounds)

    monkeypatch.setattr("countersink.reads.read_queue", held_read)
    monkeypatch.setattr(read_pool, "MAX_PENDING_READS", 2)
    send(small)
    limiter = small.services.read_pool.queue
    with ThreadPoolExecutor(2) as others:
        try:
            first = others.submit(pending, small, "/v1/totals")
            eventually(lambda: len(held.here) == 1)
            second = others.submit(pending, small, "/v1/counters")
            eventually(lambda: limiter.statistics().tasks_waiting == 1)
            third = pending(small, "/v1/totals")
            assert third.status_code == 429
            assert get(small, "/v1/totals").status_code == 200
            assert len(held.here) == 1
        finally:
            held.go.set()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert len(held.here) == 2


def test_who_is_about_to_end_reads_no_more(small: Web) -> None:
    send(small)
    assert pending(small, "/v1/totals").status_code == 200
    small.loop.call_soon_threadsafe(small.application.stop)
    eventually(small.services.stopping.is_set)
    answer = pending(small, "/v1/totals")
    assert answer.status_code == 503
    assert "is stopping" in answer.json()["detail"]
