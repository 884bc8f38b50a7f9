"""Reads by HTTP: each has its time, ends with its client, and leaves room for others."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import requests

from countersink.reads import Reads
from countersink.store.connection import Session
from countersink.store.totals.query import Answer, Query
from countersink.web import read_pool
from tests.store.test_session import locked, waiting
from tests.support.waiting import eventually
from tests.web.endpoints.test_pending import Held
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


@pytest.fixture
def brief(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server that gives a read half a second."""
    with serving(redis_url, mysql_url, read_timeout_s=0.5) as web:
        web.store.counters.set("views", resolution="hour")
        web.count("views", "a", 3)
        yield web


def get(web: Web, path: str, key: str | None = None) -> requests.Response:
    headers = {} if key is None else {"X-API-Key": key}
    return requests.get(f"{web.url}{path}", headers=headers, timeout=20)


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
            assert "given up" in answer.json()["detail"]
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


def test_one_key_has_so_many_reads_under_way_and_another_has_its_own(
    web: Web, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pool, "MAX_READS", 2)
    web.count("views", "a", 3)
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
        finally:
            held.go.set()
        assert [each.result().status_code for each in (*two, third)] == [200] * 3
    eventually(lambda: pool.taken == 0)
