"""ASGI: counts the requests of any app by its routes (https://asgi.readthedocs.io/)."""

from typing import Final

from countersink.producers.middleware.lifespan import App, Message, Receive, Scope, Send, live
from countersink.producers.middleware.requests import (
    CLIENT_GONE,
    FAILED,
    Route,
    count_request,
)
from countersink.producers.middleware.starlette_routes import StarletteRoutes
from countersink.producers.middleware.tally import MAX_NAMES, Increments, Tally

__all__ = ["ASGIMiddleware", "App", "Message", "Receive", "Scope", "Send"]

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

    Raises:
        TypeError, ValueError: an argument cannot be used.
    """

    def __init__(
        self,
        app: App,
        producer: Increments,
        *,
        counter: str = "requests",
        route: Route | None = None,
        websockets: bool = False,
        max_routes: int = MAX_NAMES,
    ) -> None:
        self._app = app
        self._tally = Tally(producer, counter, max_names=max_routes)
        self._route = StarletteRoutes() if route is None else route
        self._websockets = websockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or whatever else the server asks for."""
        kind = scope["type"]
        if kind == "lifespan":
            await live(self._app, self._tally.flush, scope, receive, send)
            return
        if kind != "http" and not (kind == "websocket" and self._websockets):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(self._tally, self._route, scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            exchange.end(FAILED)
            raise
        except BaseException:  # cancelled, by whichever library the loop is of
            exchange.end(CLIENT_GONE)
            raise
        exchange.end(FAILED)


class _Exchange:
    """One request, until its answer begins."""

    __slots__ = ("_gone", "_receive", "_route", "_scope", "_send", "_tally", "_waiting")

    def __init__(
        self, tally: Tally, route: Route, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._tally = tally
        self._route = route
        self._scope = scope
        self._receive = receive
        self._send = send
        self._waiting = True
        self._gone = False

    async def receive(self) -> Message:
        """What the server says."""
        message = await self._receive()
        if message["type"] in ("http.disconnect", "websocket.disconnect"):
            self._gone = True
        return message

    async def send(self, message: Message) -> None:
        """What the app says."""
        if self._waiting:
            kind = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                self._count(message.get("status"))
            elif kind == "websocket.accept":
                self._count(_ACCEPTED)
            elif kind == "websocket.close":
                self._count(_DENIED)
        await self._send(message)

    def end(self, status: int) -> None:
        """The app has ended: if it has not answered, that is ``status``, or that nobody was left
        to answer.
        """
        if self._waiting:
            self._count(CLIENT_GONE if self._gone else status)

    def _count(self, status: object) -> None:
        self._waiting = False
        method = self._scope.get("method") if self._scope["type"] == "http" else _WEBSOCKET
        count_request(self._tally, method, self._route, self._scope, status)
