"""WSGI: each request counts once, whatever app and client do, and goes through as it is."""

import sys
from collections.abc import Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from countersink.producers.middleware import WSGIMiddleware
from countersink.producers.middleware.count import ROUTE
from tests.support.producing import recorder

HEADERS = [("Content-Type", "text/plain")]


class Server:
    """Asks apps behind the middleware, and keeps what it was told and what was counted."""

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self.written: list[bytes] = []
        self.producer = recorder()

    def ask(self, app: Any, asked: dict[str, Any] | None = None, **options: Any) -> Any:
        counting = WSGIMiddleware(app, self.producer, **options)
        return counting(asked or environ(), self.start_response)

    def start_response(self, status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        self.statuses.append(status)
        return self.written.append


@pytest.fixture
def server() -> Server:
    return Server()


def answering(*pieces: bytes, status: str = "200 OK") -> Any:
    """An app."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response(status, HEADERS)
        return list(pieces)

    return app


def environ(method: str = "GET", path: str = "/users/7") -> dict[str, Any]:
    found: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, ROUTE: "/users/<id>"}
    setup_testing_defaults(found)
    return found


@pytest.mark.parametrize("body", [[b"one", b"two"], map(int, [b"none"])], ids=["list", "failing"])
def test_an_answer_counts_once_and_goes_through_as_it_is(server: Server, body: Any) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", HEADERS)(b"zero")
        return body

    assert server.ask(app) is body
    assert (server.statuses, server.written) == (["200 OK"], [b"zero"])
    server.producer.assert_counted("requests", {"GET /users/<id> 200": 1})


def test_the_servers_own_checks_find_nothing(server: Server) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)
        yield b"late"

    for inner in (app, answering(b"early")):
        counting: Any = validator(WSGIMiddleware(validator(inner), server.producer))
        body = counting({**environ(), "SCRIPT_NAME": "", "QUERY_STRING": ""}, server.start_response)
        assert b"".join(body) in (b"late", b"early")
        body.close()
    server.producer.assert_counted("requests", {"GET /users/<id> 200": 2})


@pytest.mark.parametrize("rest", [[b"two"], []], ids=["read to its end", "left"])
def test_a_generator_counts_with_its_first_piece_and_is_closed(
    server: Server, rest: list[bytes]
) -> None:
    closed: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        try:
            start_response("201 Created", HEADERS)
            yield b"one"
            yield b"two"
        finally:
            closed.append("closed")

    body = iter(server.ask(app))
    server.producer.assert_nothing_counted()
    assert next(body) == b"one"
    server.producer.assert_counted("requests", {"GET /users/<id> 201": 1})
    assert not rest or list(body) == rest
    body.close()
    assert closed == ["closed"]
    server.producer.assert_counted("requests", {"GET /users/<id> 201": 1})


@pytest.mark.parametrize("error", [LookupError("its own"), SystemExit(1)])
def test_an_app_that_raises_counts_as_500_and_raises_on(
    server: Server, error: BaseException
) -> None:
    """As a worker's that is told to go."""

    def at_once(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        raise error

    def begun(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", HEADERS)
        raise error

    def late(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        if error:
            raise error
        yield b""

    for app in (at_once, begun, late):
        with pytest.raises(type(error)) as caught:
            list(server.ask(app))
        assert caught.value is error
    server.producer.assert_counted("requests", {"GET /users/<id> 500": 3})


def test_what_a_generator_does_before_its_first_piece_counts(server: Server) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)

        def body() -> Iterator[bytes]:
            try:
                raise LookupError
            except LookupError:
                if environ["REQUEST_METHOD"] == "GET":
                    raise
                start_response("503 Unavailable", HEADERS, sys.exc_info())
            yield b"sorry"

        return body()

    with pytest.raises(LookupError):
        list(server.ask(app))
    assert list(server.ask(app, environ("POST"))) == [b"sorry"]
    server.producer.assert_counted(
        "requests", {"GET /users/<id> 500": 1, "POST /users/<id> 503": 1}
    )


def test_an_answer_begun_anew_counts_as_the_second(server: Server) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", HEADERS)
        try:
            raise LookupError
        except LookupError:
            start_response("503 Unavailable", HEADERS, sys.exc_info())
        return [b""]

    server.ask(app)
    assert server.statuses == ["200 OK", "503 Unavailable"]
    server.producer.assert_counted("requests", {"GET /users/<id> 503": 1})


def test_apps_that_say_nothing(server: Server) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        return []

    assert list(server.ask(app)) == []
    server.ask(app).close()
    server.producer.assert_counted("requests", {"GET /users/<id> 500": 1, "GET /users/<id> 499": 1})


@pytest.mark.parametrize("status", ["", "abc", "20", "999 No", "²00 OK", "-10", " 20", "099 X"])
def test_statuses_that_none_can_be_are_one(server: Server, status: str) -> None:
    server.ask(answering(status=status))
    server.producer.assert_counted("requests", {"GET /users/<id> OTHER": 1})


def test_without_a_route_all_is_unmatched(server: Server) -> None:
    for number in range(1_000):
        asked = environ("X" * (number + 1), f"/{number}")
        del asked[ROUTE]
        server.ask(answering(), asked)
    server.producer.assert_counted("requests", {"OTHER __unmatched__ 200": 1_000})
