"""Class ``StarletteRoutes``, which reads the route template of a request from the ASGI scope, in
Starlette and FastAPI applications, with mounts and included routers.

A router that has matched a route stores it in the scope. Every router stores the ``endpoint``.
Starlette (1.0 and later) and FastAPI also store the innermost route, under ``route``. For a route
of an included router, newer FastAPI also stores ``fastapi.effective_route_context``, which has the
router's prefix. The scope does not have the paths of the mounts that contain the route. They are
searched once for each route, from the scope's ``router``. Neither framework is imported here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from countersink.producers.middleware.count import RequestData, noted_route

_REMEMBERED: Final = 10_000
"""Maximum of routes in the cache. When it is reached, the cache is emptied."""
_ROUTERS: Final = 1_000
"""Maximum of routers that one search visits, because a router may contain itself."""


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
