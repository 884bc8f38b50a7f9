"""The route templates of Starlette and of what is built on it, read from the scope they leave.

Routers write what they matched into the scope that they were given: Starlette (1.0 and later) and
FastAPI ``route``, the innermost; newer FastAPI, for a route of an included router,
``fastapi.effective_route_context``, which has its prefix. Neither is imported here.
"""

from collections.abc import Iterator
from typing import Any, Final

from countersink.producers.middleware.requests import About, noted_route

_REMEMBERED: Final = 10_000
"""Routes whose templates are remembered; beyond that the memory is emptied."""
_DEEPEST: Final = 20
"""Routers inside of each other that are looked into: one may hold itself."""


class StarletteRoutes:
    """Gives the template of a scope's route: ``/users/{id}``, with the prefixes of its mounts."""

    def __init__(self) -> None:
        # By identity: routes are not hashable. Each is kept, so that its id is not used again.
        self._templates: dict[int, tuple[object, str]] = {}

    def __call__(self, scope: About) -> str | None:
        """The template; None: no route matched, or the app is not of this kind."""
        noted = noted_route(scope)
        if noted is not None:
            return noted
        route = scope.get("route")
        if route is None:
            return None
        matched = route
        inner = scope.get("fastapi")
        if isinstance(inner, dict):
            context = inner.get("effective_route_context")
            if getattr(context, "original_route", None) is route:
                matched = context
        known = self._templates.get(id(matched))
        if known is not None:
            return known[1]
        template = _written(matched)
        if template is None:
            return None
        template = (_mounts(scope.get("router"), route) or "") + template
        if len(self._templates) >= _REMEMBERED:
            self._templates.clear()
        self._templates[id(matched)] = (matched, template)
        return template


def _written(route: object) -> str | None:
    """A route's own path, without the types of its parameters where that can be had."""
    for name in ("path_format", "path"):
        path = getattr(route, name, None)
        if isinstance(path, str):
            return path
    return None


def _mounts(router: object, wanted: object) -> str | None:
    """The paths of the mounts between ``router`` and the route ``wanted``; None: not found."""
    return next(_search(router, wanted, "", 0), None)


def _search(router: object, wanted: object, prefix: str, depth: int) -> Iterator[str]:
    routes: Any = getattr(router, "routes", None)
    if depth > _DEEPEST or not isinstance(routes, list | tuple):
        return
    for route in routes:
        if route is wanted:
            yield prefix
        else:
            included = getattr(route, "original_router", None)  # of FastAPI: has no path
            if included is not None:
                yield from _search(included, wanted, prefix, depth + 1)
            elif hasattr(route, "routes"):
                path = getattr(route, "path", "")
                further = path if isinstance(path, str) else ""
                yield from _search(route, wanted, prefix + further, depth + 1)
