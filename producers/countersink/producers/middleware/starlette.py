"""Route templates of Starlette and FastAPI apps, with mounts and included routers, read from the
ASGI scope.

Routers write what they matched into the scope that they were given: all of them ``endpoint``,
Starlette (1.0 and later) and FastAPI ``route``, too, the innermost, and newer FastAPI, for a route
of an included router, ``fastapi.effective_route_context``, which has its prefix. Where that route
is, behind which mounts, its router is asked once. Nothing of all that is imported here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from countersink.producers.middleware.count import About, noted_route

_REMEMBERED: Final = 10_000
"""Routes whose places are remembered; beyond that the memory is emptied."""
_ROUTERS: Final = 1_000
"""Routers that are looked into for a route: one may hold itself."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A place where a route can be reached.

    Attributes:
        mounts: the paths of the mounts before it, as written.
        template: its own path, as written.
        pattern: of its own path, which has ``match``.
    """

    mounts: str
    template: str
    pattern: Any


class StarletteRoutes:
    """Gives the template of a scope's route: ``/users/{id}``, with the paths of its mounts."""

    def __init__(self) -> None:
        # By identity: routes are not hashable. Each is kept, so that its id is not used again.
        self._places: dict[int, tuple[object, list[_Place]]] = {}

    def __call__(self, scope: About) -> str | None:
        """The template; None: no route matched, or the app is not of this kind."""
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
        place = places[0] if len(places) == 1 else _reached(scope, places)
        return place.mounts + place.template


def _effective(scope: About, route: object) -> object:
    """``route`` as the router that included it has it."""
    of_fastapi = scope.get("fastapi")
    if isinstance(of_fastapi, dict):
        context: object = of_fastapi.get("effective_route_context")
        if context is not None and getattr(context, "original_route", None) is route:
            return context
    return route


def _places(router: object, route: object, matched: object) -> Iterator[_Place]:
    """Where what was matched can be reached from ``router``; at least one, if it has a path.

    Args:
        router: the outermost.
        route: what was matched; None: all that is known is an endpoint.
        matched: the same with its prefix, or the endpoint.
    """
    if route is None:
        # A mount has no endpoint; it calls its app that.
        found = [
            *_search(router, lambda one: _of(one, "endpoint") is matched),
            *_search(router, lambda one: _of(one, "app") is matched),
        ]
    else:
        there = _search(router, lambda one: one is route)
        found = [(mounts, matched) for mounts, _ in there] or [("", matched)]
    for mounts, one in found:
        template = _of(one, "path_format")  # path without the types of its parameters
        if not isinstance(template, str):
            template = _of(one, "path")
        if isinstance(template, str):
            yield _Place(mounts, template, _of(one, "path_regex"))


def _search(router: object, wanted: Callable[[object], bool]) -> Iterator[tuple[str, object]]:
    """Every route that is wanted, with the paths of the mounts before it."""
    waiting: list[tuple[object, str]] = [(router, "")]
    seen: set[tuple[int, str]] = set()
    while waiting and len(seen) < _ROUTERS:
        holder, mounts = waiting.pop(0)
        routes = _of(holder, "routes")
        if (id(holder), mounts) in seen or not isinstance(routes, list | tuple):
            continue
        seen.add((id(holder), mounts))
        for route in routes:
            if wanted(route):
                yield mounts, route
            included = _of(route, "original_router")  # of FastAPI: its prefix is in the context
            if included is not None:
                waiting.append((included, mounts))
            elif hasattr(route, "routes"):
                path = _of(route, "path")
                waiting.append((route, mounts + path if isinstance(path, str) else mounts))


def _reached(scope: About, places: list[_Place]) -> _Place:
    """The place at which this request came to a route that has several."""
    root = str(scope.get("root_path", ""))
    came_by = root[len(str(scope.get("app_root_path", ""))) :].split("/")
    rest = str(scope.get("path", "")).removeprefix(root)
    for place in places:
        mounts = place.mounts.split("/")
        if (
            len(mounts) == len(came_by)
            and all(
                one.startswith("{") or one == other
                for one, other in zip(mounts, came_by, strict=True)
            )
            and (place.pattern is None or place.pattern.match(rest))
        ):
            return place
    return places[0]


def _of(thing: object, name: str) -> Any:
    return getattr(thing, name, None)
