"""ASGI middleware (``ASGIMiddleware``): when a request or WebSocket is counted, and with which
status.

See ``count.py`` for the keys.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from countersink.producers.middleware.count import (
    CLIENT_CLOSED,
    FAILED,
    MAX_NAMES,
    CountedRequest,
    KeyCounter,
    Route,
    SupportsIncrement,
    Visitor,
    visitor_from,
)
from countersink.producers.middleware.starlette import StarletteRoutes
from countersink.runtime.members import visitor_of

__all__ = ["ASGIMiddleware", "App", "Message", "Receive", "Scope", "Send"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_WEBSOCKET: Final = "WEBSOCKET"
_ACCEPTED: Final = 101
_DENIED: Final = 403
"""The status that servers send when an application closes a WebSocket before accepting it."""


class ASGIMiddleware:
    """Counts each request once, when its response begins, under a key such as
    ``GET /users/{id} 200``.

    ::

        app.add_middleware(ASGIMiddleware, producer=producer)     # Starlette, FastAPI
        app = ASGIMiddleware(app, producer)                       # any other

    Responses pass through unchanged, streamed or not. If the application raises or returns before
    its response begins, the status is 500; or 499, if the application was cancelled or has received
    the message that the client has disconnected. Exceptions are raised again. When the server
    reports its shutdown (a lifespan event), the middleware waits, 5 seconds at most, until the
    producer has stored all counted requests. Errors of counting are logged, never raised.

    Args:
        app: the ASGI application.
        producer: the producer that counts.
        counter: the name of the counter to which requests are added.
        route: a function that returns the route template of a scope. By default this is
            ``scope["countersink.route"]``, which the application may set, or else the template that
            Starlette or FastAPI has matched. None is counted as ``__unmatched__``.
        websockets: whether to count WebSockets, too, when they are accepted (status 101) or refused
            (403, or the status of the application's response). Their keys have ``WEBSOCKET``
            instead of a method: ``WEBSOCKET /rooms/{room} 101``.
        max_routes: maximum of different route templates; requests with further templates are
            counted as ``__other__``.
        dimensions: maps each dimension of the counter to the part of the request that is its value:
            ``method``, ``route`` or ``status``, as in ``{"page": "route"}``. By default requests
            are counted under keys, without dimensions.
        visitors: True also counts different visitors (the counter needs ``counter set --unique``).
            A visitor is then the client's address and user agent, as the server reports them. A
            function instead of True returns the visitor of a scope, or None to count the request
            without a visitor.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """

    def __init__(
        self,
        app: App,
        producer: SupportsIncrement,
        *,
        counter: str = "requests",
        route: Route | None = None,
        websockets: bool = False,
        max_routes: int = MAX_NAMES,
        dimensions: Mapping[str, str] | None = None,
        visitors: bool | Visitor = False,
    ) -> None:
        self._app = app
        self._tally = KeyCounter(producer, counter, max_names=max_routes, dimensions=dimensions)
        self._route = StarletteRoutes() if route is None else route
        self._websockets = websockets
        self._visitor = visitor_from(visitors, scope_visitor)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application handle one request or WebSocket, or the lifespan of the server. Count
        the request or, if WebSockets are counted, the WebSocket.
        """
        kind = scope["type"]
        if kind == "lifespan":
            await _live(self._app, self._tally.flush, scope, receive, send)
            return
        if kind != "http" and not (kind == "websocket" and self._websockets):
            await self._app(scope, receive, send)
            return
        request = CountedRequest(self._tally, self._route, scope, self._visitor)
        disconnected = False

        def count(status: object) -> None:
            request.count(scope.get("method") if kind == "http" else _WEBSOCKET, status)

        async def watch_receive() -> Message:
            nonlocal disconnected
            message = await receive()
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                disconnected = True
            return message

        async def watch_send(message: Message) -> None:
            if request.waiting:
                event = message["type"]
                if event in ("http.response.start", "websocket.http.response.start"):
                    count(message.get("status"))
                elif event == "websocket.accept":
                    count(_ACCEPTED)
                elif event == "websocket.close":
                    count(_DENIED)
            await send(message)

        try:
            await self._app(scope, watch_receive, watch_send)
        except Exception:
            count(CLIENT_CLOSED if disconnected else FAILED)
            raise
        except BaseException:  # the cancellation of any event loop
            count(CLIENT_CLOSED)
            raise
        count(CLIENT_CLOSED if disconnected else FAILED)


def scope_visitor(scope: Any) -> str:
    """Return the visitor of an ASGI request: the client's address and user agent, separated by a
    space, each empty if unknown.
    """
    client = scope.get("client")
    agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
    return visitor_of(client[0] if client else "", agent.decode("latin-1"))


async def _live(
    app: App, flush: Callable[[], None], scope: Scope, receive: Receive, send: Send
) -> None:
    """Run the lifespan of ``app`` (https://asgi.readthedocs.io/en/latest/specs/lifespan.html), and
    call ``flush`` before the end of its shutdown is reported to the server. If the app does not
    support lifespans, answer the server in its place, and call ``flush`` as well.
    """
    asked = False

    async def watch_receive() -> Message:
        nonlocal asked
        asked = True
        return await receive()

    async def watch_send(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            flush()  # all requests have ended
        await send(message)

    try:
        await app(scope, watch_receive, watch_send)
    except Exception:
        # An app without a lifespan raises before it receives a message.
        if asked:
            raise
    if asked:
        return
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            flush()  # all requests have ended
            await send({"type": "lifespan.shutdown.complete"})
            return
