"""ASGI: each request counts once, whatever app and client do, and goes through as it is."""

import asyncio
from typing import Any

import pytest

from countersink.producers import Producer
from countersink.producers.middleware import ASGIMiddleware
from countersink.producers.middleware.asgi import Message, Receive, Scope, Send
from countersink.producers.middleware.count import ROUTE
from tests.producers.middleware.asgi_calls import (
    DISCONNECT,
    LIFESPAN,
    REQUEST,
    http,
    sent,
    websocket,
)

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
PIECE: Message = {"type": "http.response.body", "body": b"one", "more_body": True}
END: Message = {"type": "http.response.body", "body": b"two"}


def answering(*messages: Message, route: str | None = "/users/{id}") -> Any:
    """An app that sends these, and raises what is an exception."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if route is not None:
            scope[ROUTE] = route
        for message in messages:
            if isinstance(message, BaseException):
                raise message
            await send(message)

    return app


BROKEN: Any = LookupError("its own")


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        *(([{**START, "status": status}, END], status) for status in (100, 204, 404, 599)),
        *(
            ([{**START, "status": none}, END], "OTHER")
            for none in (0, -1, 99, 600, 10**30, "200", None, 200.5, [200])
        ),
        ([START, PIECE, PIECE, END], 200),
        ([], 500),
        ([BROKEN], 500),
        ([START, PIECE, BROKEN], 200),
    ],
)
def test_an_answer_counts_once_and_goes_through_as_it_is(
    producer: Producer, messages: list[Message], status: object
) -> None:
    """And what the app raises instead of it."""
    app = ASGIMiddleware(answering(*messages), producer)
    if BROKEN in messages:
        with pytest.raises(LookupError) as caught:
            sent(app, http("/users/7"))
        assert caught.value is BROKEN
    else:
        assert sent(app, http("/users/7")) == messages
    producer.assert_counted("requests", {f"GET /users/{{id}} {status}": 1})


def test_the_counter_and_the_route_can_be_chosen(producer: Producer) -> None:
    app = ASGIMiddleware(
        answering(START, END), producer, counter="api", route=lambda scope: scope["path"][:3]
    )
    sent(app, http("/v1/secret"))
    producer.assert_counted("api", {"GET /v1 200": 1})


@pytest.mark.parametrize("method", ["FOO", "get", "", "G" * 10_000, "GET /x", "\ud800"])
def test_methods_that_no_standard_knows_are_one(producer: Producer, method: str) -> None:
    sent(ASGIMiddleware(answering(START), producer), http("/", method))
    producer.assert_counted("requests", {"OTHER /users/{id} 200": 1})


def test_what_no_route_matched_is_unmatched(producer: Producer) -> None:
    app = ASGIMiddleware(answering({**START, "status": 404}, route=None), producer)
    for path in ("/etc/passwd", "/' OR 1=1", "/caf\udce9", "/" + "a" * 10_000):
        sent(app, http(path))
    producer.assert_counted("requests", {"GET __unmatched__ 404": 4})


@pytest.mark.parametrize("raises", [False, True])
def test_a_client_that_leaves_before_the_answer(producer: Producer, raises: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if (await receive())["type"] == "http.disconnect" and raises:
            raise ConnectionError("the client is gone")

    counting = ASGIMiddleware(app, producer)
    if raises:
        with pytest.raises(ConnectionError):
            sent(counting, http("/"), [REQUEST, DISCONNECT])
    else:
        sent(counting, http("/"), [REQUEST, DISCONNECT])
    producer.assert_counted("requests", {"GET __unmatched__ 499": 1})


def test_a_client_that_leaves_within_the_answer(producer: Producer) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await receive()

    sent(ASGIMiddleware(app, producer), http("/"), [DISCONNECT])
    producer.assert_counted("requests", {"GET __unmatched__ 200": 1})


def test_a_request_that_is_cancelled(producer: Producer) -> None:
    async def run() -> None:
        begun = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def nothing(*ignored: object) -> Any:
            raise AssertionError("not called")

        task = asyncio.ensure_future(ASGIMiddleware(app, producer)(http("/"), nothing, nothing))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    producer.assert_counted("requests", {"GET __unmatched__ 499": 1})


def test_requests_at_once_do_not_mix(producer: Producer) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        number = int(scope["path"][1:])
        scope[ROUTE] = f"/{number % 10}"
        for _ in range(number % 7):
            await asyncio.sleep(0)
        await send({**START, "status": 200 + number % 3})
        await send(END)

    async def run() -> None:
        async def receive() -> Message:
            return REQUEST

        async def send(message: Message) -> None:
            await asyncio.sleep(0)

        counting = ASGIMiddleware(app, producer)
        await asyncio.gather(*(counting(http(f"/{n}"), receive, send) for n in range(900)))

    asyncio.run(run())
    found = producer.totals("requests")
    assert found == {("requests", f"GET /{n} {200 + s}"): 30 for n in range(10) for s in range(3)}


@pytest.mark.parametrize("wrong", [ZeroDivisionError("route"), 7, b"/bytes"])
def test_a_route_function_that_is_wrong_breaks_nothing(
    producer: Producer, wrong: object, caplog: pytest.LogCaptureFixture
) -> None:
    def route(scope: Any) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    app = ASGIMiddleware(answering(START, END), producer, route=route)
    assert sent(app, http("/")) == [START, END]
    producer.assert_counted("requests", {"GET __unmatched__ 200": 1})
    assert len(caplog.records) == 1


def test_websockets_count_where_asked_for(producer: Producer) -> None:
    accept: Message = {"type": "websocket.accept"}
    close: Message = {"type": "websocket.close"}
    denied: Message = {"type": "websocket.http.response.start", "status": 401, "headers": []}
    for messages in ([accept, close], [close], [denied], []):
        for asked in (False, True):
            app = ASGIMiddleware(answering(*messages), producer, websockets=asked)
            assert sent(app, websocket("/users/7")) == messages
    producer.assert_counted(
        "requests",
        {
            "WEBSOCKET /users/{id} 101": 1,
            "WEBSOCKET /users/{id} 403": 1,
            "WEBSOCKET /users/{id} 401": 1,
            "WEBSOCKET /users/{id} 500": 1,
        },
    )


def test_the_lifespan_is_no_request(producer: Producer) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    sent(ASGIMiddleware(app, producer), {"type": "lifespan"}, LIFESPAN)
    assert seen == ["lifespan"]
    producer.assert_nothing_counted()


def test_requests_may_have_dimensions_in_the_place_of_a_key(producer: Producer) -> None:
    app = ASGIMiddleware(answering(START, END), producer, dimensions={"page": "route"})
    sent(app, http("/users/7"))
    producer.assert_counted("requests", [({"page": "/users/{id}"}, 1)])
