"""`GET /v1/live`: live numbers as server-sent events."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import requests

from countersink.database.migrate import migrate
from countersink.database.sessions import open_tables
from countersink.store import api_keys
from countersink.web.endpoints import live
from tests.support.factories import MySQLFactory
from tests.support.waiting import eventually
from tests.web.serving import Web, serving


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    """Numbers come more often than to others: nobody is to wait for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "EVERY_S", 0.1)
        patch.setattr(live, "POLL_S", 0.05)
        yield


class Stream:
    """The events of one listener, as they come."""

    def __init__(self, answer: requests.Response) -> None:
        self._lines: Iterator[bytes] = answer.iter_lines()

    def events(self) -> Iterator[dict[str, Any]]:
        """Until the server ends the stream."""
        for line in self._lines:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def until(self, counter: str, total: int) -> dict[str, Any]:
        """The event that says so."""
        for event in self.events():
            if event.get("today", {}).get(counter, {}).get("total") == total:
                return event
        raise AssertionError("the stream ended")


@pytest.fixture
def orders(web: Web) -> Web:
    """A server that has 3 orders of today."""
    web.count("orders", "a", 3)
    return web


@contextmanager
def listening(web: Web, *counters: str, key: str = "") -> Iterator[Stream]:
    """A listener until the end of the block."""
    query = [("counter", name) for name in counters]
    with web.ask("GET", "/v1/live", key, params=query, stream=True) as answer:
        assert answer.status_code == 200, answer.text
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-store"
        yield Stream(answer)


def test_totals_of_today_come_as_they_change(web: Web) -> None:
    web.count("orders", "a", 3)
    web.count("votes", "a", 1)
    with listening(web, "orders", "votes", "unknown") as stream:
        first = stream.until("orders", 3)
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        assert first["today"] == {
            "orders": {"day": day, "total": 3},
            "votes": {"day": day, "total": 1},
        }
        assert first["counters"] == 2
        assert datetime.fromisoformat(first["complete_up_to"]) <= datetime.now(UTC)
        web.count("orders", "a", 4)
        assert stream.until("orders", 7)["today"].keys() == {"orders"}  # what has changed, alone
        web.count("unknown", "a", 1)
        assert stream.until("unknown", 1)["counters"] == 3


def test_one_look_serves_all_who_listen(orders: Web) -> None:
    with listening(orders, "orders") as one, listening(orders, "orders") as another:
        for stream in (one, another):
            stream.until("orders", 3)
        feed = orders.services.single(live.Feed)
        assert len(feed.listeners) == 2
        orders.count("orders", "a", 1)
        for stream in (one, another):
            stream.until("orders", 4)
    eventually(lambda: not feed.listeners)


def test_a_key_hears_of_its_own_counters_alone(web: Web) -> None:
    web.count("shop.orders", "a", 3)
    web.count("secret", "a", 5)
    key = web.key("read", counters=["shop.*"])
    with listening(web, "shop.orders", key=key) as stream:
        event = stream.until("shop.orders", 3)
        assert event["counters"] == 1
        assert "secret" not in json.dumps(event)
    assert web.ask("GET", "/v1/live?counter=secret", key).status_code == 403


def test_a_stream_ends_with_its_key(orders: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_S", live.LIFE_S)  # not at the next comment only
    key = orders.key("read", name="brief")
    with listening(orders, "orders", key=key) as stream:
        stream.until("orders", 3)
        with open_tables(orders.options.mysql_url) as session:
            api_keys.revoke(session, "brief")
        orders.look_again()
        for _ in stream.events():
            pass  # it ends


def test_a_stream_ends_whole_when_the_server_does(redis_url: str, mysql_url: str) -> None:
    with serving(redis_url, mysql_url) as web:
        web.count("orders", "a", 3)
        listener = listening(web, "orders")
        stream = listener.__enter__()
        stream.until("orders", 3)
    # Had the connection been cut, this would raise: the chunks would lack their end.
    assert len(list(stream.events())) <= 2
    listener.__exit__(None, None, None)


def test_a_server_that_is_away_is_told_of_and_seen_again(
    redis_url: str, own_mysql_server: MySQLFactory
) -> None:
    server = own_mysql_server(fast=True)
    mysql_url = server.url_for("counts")
    migrate(mysql_url)
    with serving(redis_url, mysql_url) as web:
        web.count("orders", "a", 3)
        with listening(web, "orders") as stream:
            stream.until("orders", 3)
            server.stop()
            assert next(event for event in stream.events() if "trouble" in event) == {
                "trouble": True
            }
            server.start()
            assert next(event for event in stream.events() if "trouble" not in event)


def test_a_bad_question_is_no_stream_and_head_is_answered_at_once(shared: Web) -> None:
    many = "&".join(f"counter=c{number}" for number in range(101))
    long = f"counter={'a' * 65}"
    for query in ("counters=a", "counter=", "counter=a%20", "counter=%00", long, many):
        answer = requests.get(f"{shared.url}/v1/live?{query}", timeout=20)
        assert answer.status_code == 422, query
        assert answer.headers["Content-Type"] == "application/problem+json"
    answer = requests.head(f"{shared.url}/v1/live", timeout=20)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/event-stream")
