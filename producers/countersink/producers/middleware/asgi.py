"""ASGI middleware (``ASGIMiddleware``): when a request or WebSocket is counted, and with which
status. Also ``StarletteRoutes``, which finds the route template of a request in Starlette and
FastAPI applications. See ``count.py`` for the keys.

A router of these frameworks that has matched a route stores it in the scope. Every router stores
the ``endpoint``. Starlette (1.0 and later) and FastAPI also store the innermost route, under
``route``. For a route of an included router, newer FastAPI also stores
``fastapi.effective_route_context``, which has the router's prefix. The scope does not have the
paths of the mounts that contain the route. They are searched once for each route, from the scope's
``router``. Neither framework is imported here.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from countersink.producers.middleware.count import (
    CLIENT_CLOSED,
    FAILED,
    MAX_NAMES,
    CountedRequest,
    KeyCounter,
    RequestData,
    Route,
    SupportsIncrement,
    Visitor,
    noted_route,
    visitor_from,
)
from countersink.runtime.members import visitor_of

__all__ = ["ASGIMiddleware", "App", "Message", "Receive", "Scope", "Send", "StarletteRoutes"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_WEBSOCKET: Final = "WEBSOCKET"
_ACCEPTED: Final = 101
_DENIED: Final = 403
"""The status that servers send when an application closes a WebSocket before accepting it."""
_REMEMBERED: Final = 10_000
"""Maximum of routes that ``StarletteRoutes`` remembers. When it is reached, all are forgotten."""
_ROUTERS: Final = 1_000
"""Maximum of routers that one search visits, because a router may contain itself."""


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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a route is in the tree of routers. A route is there several times if its router is
    mounted several times.

    Attributes:
        mounts: the path templates of the mounts that contain the route, joined.
        template: the route's own path template.
        pattern: the route's own path as a compiled regular expression; None where it has none.
    """

    mounts: str
    template: str
    pattern: Any


class StarletteRoutes:
    """A callable that takes the scope of a request and returns the template of the matched route,
    such as ``/users/{id}``, with the paths of the mounts that contain the route in front.
    ``ASGIMiddleware`` calls an instance if its argument ``route`` is not given.
    """

    def __init__(self) -> None:
        # By id(), since routes are not hashable; the reference prevents a reuse of the id.
        self._places: dict[int, tuple[object, list[_Place]]] = {}

    def __call__(self, scope: RequestData) -> str | None:
        """Return the route template that the application has stored in
        ``scope["countersink.route"]``, or else the template of the matched route with the paths of
        its mounts in front. If nothing is stored there, return None if no route matched, if the
        scope has only an endpoint whose route is not found below the scope's ``router``, or if the
        application uses another framework.
        """
        noted = noted_route(scope)
        if noted is not None:
            return noted
        route = scope.get("route")
        matched = scope.get("endpoint") if route is None else _effective(scope, route)
        if matched is None:
            return None
        known = self._places.get(id(matched))
        if known is None:
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            places = list(dict.fromkeys(_places(scope.get("router"), route, matched)))
            known = self._places[id(matched)] = (matched, places)
        places = known[1]
        if not places:
            return None
        place = places[0] if len(places) == 1 else _matching_place(scope, places)
        return place.mounts + place.template


def _effective(scope: RequestData, route: object) -> object:
    """Return ``route``, the matched route. If the scope has an object of FastAPI with this route
    and its router's prefix (``effective_route_context``), return that object instead.
    """
    of_fastapi = scope.get("fastapi")
    if isinstance(of_fastapi, dict):
        context: object = of_fastapi.get("effective_route_context")
        if context is not None and getattr(context, "original_route", None) is route:
            return context
    return route


def _places(router: object, route: object, matched: object) -> Iterator[_Place]:
    """Yield each place of the matched route below ``router``: its path, and the paths of the mounts
    around it. If ``route`` is given, is not found there, and ``matched`` has a path, yield one
    place without mounts.

    Args:
        router: the outermost router.
        route: the matched route; None where the scope has only an endpoint.
        matched: if ``route`` is given, the result of :func:`_effective`, whose path is read;
            otherwise the scope's endpoint. All routes with this endpoint are searched, and all
            mounts with this application.
    """
    if route is None:
        # The endpoint of a mount is its attribute `app`.
        found = [
            *_search(router, lambda each: _attribute(each, "endpoint") is matched),
            *_search(router, lambda each: _attribute(each, "app") is matched),
        ]
    else:
        same = _search(router, lambda each: each is route)
        found = [(mounts, matched) for mounts, _ in same] or [("", matched)]
    for mounts, each in found:
        template = _attribute(each, "path_format")  # path without the types of its parameters
        if not isinstance(template, str):
            template = _attribute(each, "path")
        if isinstance(template, str):
            yield _Place(mounts, template, _attribute(each, "path_regex"))


def _search(router: object, wanted: Callable[[object], bool]) -> Iterator[tuple[str, object]]:
    """Find all routes below ``router`` (in 1,000 routers at most) for which ``wanted`` returns
    True. Yield a pair for each: the joined paths of the mounts that contain the route, and the
    route.
    """
    waiting: list[tuple[object, str]] = [(router, "")]
    seen: set[tuple[int, str]] = set()
    while waiting and len(seen) < _ROUTERS:
        holder, mounts = waiting.pop(0)
        routes = _attribute(holder, "routes")
        if (id(holder), mounts) in seen or not isinstance(routes, list | tuple):
            continue
        seen.add((id(holder), mounts))
        for route in routes:
            if wanted(route):
                yield mounts, route
            included = _attribute(route, "original_router")  # FastAPI's; the context has its prefix
            if included is not None:
                waiting.append((included, mounts))
            elif hasattr(route, "routes"):
                path = _attribute(route, "path")
                waiting.append((route, mounts + path if isinstance(path, str) else mounts))


def _matching_place(scope: RequestData, places: list[_Place]) -> _Place:
    """Return the first of a route's places that fits the path of the request, or the first of all
    if none fits. In a place that fits, the mounts fit the part of the path that mounts have
    matched, and the pattern (if there is one) fits the rest.
    """
    root = str(scope.get("root_path", ""))
    parts = root[len(str(scope.get("app_root_path", ""))) :].split("/")
    rest = str(scope.get("path", "")).removeprefix(root)
    for place in places:
        mounts = place.mounts.split("/")
        if (
            len(mounts) == len(parts)
            and all(
                template.startswith("{") or template == part
                for template, part in zip(mounts, parts, strict=True)
            )
            and (place.pattern is None or place.pattern.match(rest))
        ):
            return place
    return places[0]


def _attribute(thing: object, name: str) -> Any:
    return getattr(thing, name, None)
