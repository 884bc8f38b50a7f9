"""Middleware that tells who sent a request: address and user agent, or what the app says."""

from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from countersink.producers import Producer
from countersink.producers.middleware import ASGIMiddleware, WSGIMiddleware
from countersink.producers.middleware.count import ROUTE
from countersink.runtime.members import visitor_of
from tests.producers.helpers import Queue, play
from tests.producers.members import found, hashed, publish
from tests.producers.middleware.asgi_calls import http, sent
from tests.producers.middleware.test_django import SETTINGS, VIEWS
from tests.support.producing import recorder

KEY = "GET /users/{id} 200"


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    scope[ROUTE] = "/users/{id}"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    environ[ROUTE] = "/users/{id}"
    start_response("200 OK", [])
    return [b""]


def environ(**more: str) -> dict[str, Any]:
    made: dict[str, Any] = dict(more)
    setup_testing_defaults(made)
    return made


def ask(app: Any, **more: str) -> None:
    list(app(environ(**more), lambda *_: None))


def scope(agent: bytes | None, client: tuple[str, int] | None) -> dict[str, Any]:
    headers = [] if agent is None else [(b"user-agent", agent)]
    return {**http("/users/7"), "headers": headers, "client": client}


def test_both_kinds_tell_the_same_visitor_through_the_queue(queue: Queue) -> None:
    publish(queue.client, counter="requests")
    with Producer(queue.url) as producer:
        wsgi = WSGIMiddleware(wsgi_app, producer, visitors=True)
        asgi = ASGIMiddleware(asgi_app, producer, visitors=True)
        ask(wsgi, REMOTE_ADDR="192.0.2.7", HTTP_USER_AGENT="Browser/1.0")
        ask(wsgi, REMOTE_ADDR="192.0.2.8", HTTP_USER_AGENT="Browser/1.0")
        sent(asgi, scope(b"Browser/1.0", ("192.0.2.7", 5)))
        sent(asgi, scope(None, None))
    counts, hashes = found(queue.client)
    assert sum(counts.values()) == 4
    assert {key for _, key, _ in counts} == {KEY}
    assert set().union(*hashes.values()) == {
        hashed("192.0.2.7 Browser/1.0"),
        hashed("192.0.2.8 Browser/1.0"),
        hashed(" "),
    }


def test_the_app_may_say_who_it_is() -> None:
    producer = recorder()
    names: list[str | bytes | None] = ["ann", b"bob", None]
    app = WSGIMiddleware(wsgi_app, producer, visitors=lambda environ: names.pop(0))
    for _ in range(3):
        ask(app)
    producer.assert_counted("requests", {KEY: 3})
    assert producer.members("requests") == {b"ann", b"bob"}


@pytest.mark.parametrize("answer", [5, "\ud800", ValueError("secret")])
def test_a_visitor_that_cannot_be_told_is_logged_and_the_request_counts(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    def tell(environ: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    producer = recorder()
    ask(WSGIMiddleware(wsgi_app, producer, visitors=tell))
    producer.assert_counted("requests", {KEY: 1})
    assert producer.members("requests") == set()
    assert "counting requests continues" in caplog.text


@pytest.mark.parametrize("made", [WSGIMiddleware, ASGIMiddleware])
def test_what_is_neither_is_refused(made: Any) -> None:
    with pytest.raises(TypeError, match="visitors must be a bool or a function"):
        made(wsgi_app, recorder(), visitors="address")


def test_a_long_user_agent_is_cut_and_still_told_apart() -> None:
    long = "x" * 10_000
    assert len(visitor_of("192.0.2.7", long)) < 300
    assert visitor_of("192.0.2.7", long) != visitor_of("192.0.2.7", long + "y")
    assert visitor_of("\ud800", "é") == "? é"


def test_django_tells_visitors() -> None:
    script = """
    configure()
    from django.test import Client, override_settings
    for option in (True, lambda request: request.headers["User-Agent"], False):
        counting.producer.clear()
        with override_settings(COUNTERSINK_VISITORS=option):
            for agent in ("Browser/1.0", "Other/2.0", "Browser/1.0"):
                Client().get("/", headers={"User-Agent": agent})
        members = sorted(map(bytes.decode, counting.producer.members("requests")))
        print(json.dumps([shown(), members]))
    """
    assert play(SETTINGS + VIEWS + script) == [
        [{"GET / 200": 3}, ["127.0.0.1 Browser/1.0", "127.0.0.1 Other/2.0"]],
        [{"GET / 200": 3}, ["Browser/1.0", "Other/2.0"]],
        [{"GET / 200": 3}, []],
    ]
