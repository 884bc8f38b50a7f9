"""ASGI middleware: when a request or WebSocket is counted and with which status; the key is made in
``count.py``."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from countersink.producers.middleware.count import (
    CLIENT_GONE,
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
"""What a server answers when an app closes a websocket before it accepted it."""


class ASGIMiddleware:
    """Counts each request once, when its answer begins, as ``GET /users/{id} 200``.

    ::

        app.add_middleware(ASGIMiddleware, producer=producer)     # Starlette, FastAPI
        app = ASGIMiddleware(app, producer)                       # any other

    The answer goes through as it is, streamed or not. An app that raises before it answered is
    counted as 500 and raises on. A client that went away before there was an answer: 499. When the
    server shuts down, it is told that this is done when the producer has stored what it counted, or
    could not within 5 seconds. Whatever goes wrong with counting is logged and nothing else.

    Args:
        app: what answers.
        producer: what counts.
        counter: the counter's name.
        route: gives the route template of a scope. Default: what Starlette and FastAPI matched,
            else what the app put into ``scope["countersink.route"]``.
        websockets: count websockets, too, when they are accepted or refused, with ``WEBSOCKET`` in
            the place of the method: ``WEBSOCKET /rooms/{room} 101``.
        max_routes: route templates beyond this number are counted as ``__other__``.
        dimensions: names of the counter's dimensions, and which of ``method``, ``route`` and
            ``status`` each has for its value, in the place of a key: ``{"page": "route"}``.
        visitors: count the different visitors as well, of a counter that does so
            (``counter set --unique``): True, a visitor is the client's address and user agent, as
            the server gives them; or a function of the scope that says who it is, None: nobody
            knows.

    Raises:
        TypeError, ValueError: an argument cannot be used.
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
        """Answer one request, or whatever else the server asks for."""
        kind = scope["type"]
        if kind == "lifespan":
            await _live(self._app, self._tally.flush, scope, receive, send)
            return
        if kind != "http" and not (kind == "websocket" and self._websockets):
            await self._app(scope, receive, send)
            return
        request = CountedRequest(self._tally, self._route, scope, self._visitor)
        gone = False

        def count(status: object) -> None:
            request.count(scope.get("method") if kind == "http" else _WEBSOCKET, status)

        async def hear() -> Message:
            nonlocal gone
            message = await receive()
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                gone = True
            return message

        async def say(message: Message) -> None:
            if request.waiting:
                what = message["type"]
                if what in ("http.response.start", "websocket.http.response.start"):
                    count(message.get("status"))
                elif what == "websocket.accept":
                    count(_ACCEPTED)
                elif what == "websocket.close":
                    count(_DENIED)
            await send(message)

        try:
            await self._app(scope, hear, say)
        except Exception:
            count(CLIENT_GONE if gone else FAILED)
            raise
        except BaseException:  # cancelled, by whichever library the loop is of
            count(CLIENT_GONE)
            raise
        count(CLIENT_GONE if gone else FAILED)


def scope_visitor(scope: Any) -> str:
    """Address and user agent, by an ASGI scope."""
    client = scope.get("client")
    agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
    return visitor_of(client[0] if client else "", agent.decode("latin-1"))


async def _live(
    app: App, flush: Callable[[], None], scope: Scope, receive: Receive, send: Send
) -> None:
    """Let ``app`` answer the server's lifespan messages
    (https://asgi.readthedocs.io/en/latest/specs/lifespan.html), and flush before it says that it
    has shut down. An app that knows no lifespan is answered for.
    """
    asked = False

    async def hear() -> Message:
        nonlocal asked
        asked = True
        return await receive()

    async def say(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            flush()  # no request is waiting any more
        await send(message)

    try:
        await app(scope, hear, say)
    except Exception:
        # Whoever knows the protocol asks what the server says before anything else can fail.
        if asked:
            raise
    if asked:
        return
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            flush()  # no request is waiting any more
            await send({"type": "lifespan.shutdown.complete"})
            return
