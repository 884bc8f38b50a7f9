"""Routes, headers, bodies, parameters and answers of HTTP, and the OpenAPI document. This module
has ``Route`` and ``RouteTable``, which finds the route of a request (404, 405). See ``web/app.py``
for the list of routes."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from countersink.store.api_keys import Scope
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http.parameters import Parameter
from countersink.web.services import Services

Handler = Callable[[Request, Services, Identity], Awaitable[Response]]
"""Returns the answer to a request, or raises :class:`~countersink.web.errors.Problem`."""


Described = str | type[msgspec.Struct] | Mapping[str, Any]
"""A response in a route: the text of a problem; the struct of a JSON body, whose docstring is the
description; or the response object of OpenAPI."""


@dataclass(frozen=True)
class Route:
    """An endpoint: a method on a path.

    Attributes:
        method: ``GET``, ``POST``, ``PUT`` or ``DELETE``; GET also answers HEAD.
        path: in Starlette's syntax, such as ``/v1/counters/{counter}/daily``.
        handler: answers requests.
        scope: the scope that a key must have; None: no key is needed.
        public: a request without a key, or with a key that lacks the scope, is admitted as a public
            :class:`Identity`; the handler checks whether the counter is public.
        installation_wide: it concerns the whole installation: keys for some counters are refused.
        shared: links are admitted; the handler checks whether the link is to the counter.
        waits: it may wait for a server, so that a request takes one of the places for that.
        parameters: of its query, which may have no others; their values are in
            ``scope["countersink.given"]``, by name; None: the query is ignored.
        hidden: not in the document, and its query is ignored: pages and their files.
        name, summary, description: of its operation in the OpenAPI document (3.1).
        tag: of its operation, set in :mod:`countersink.web.app`.
        headers: its request headers in OpenAPI.
        body: its request body in OpenAPI; None: it takes none.
        responses: by status; those of every route (401, 403, 429, …) are added.
    """

    method: str
    path: str
    handler: Handler
    _: KW_ONLY
    scope: Scope | None
    public: bool = False
    installation_wide: bool = False
    shared: bool = False
    waits: bool = True
    parameters: Sequence[Parameter] | None = ()
    hidden: bool = False
    name: str = ""
    tag: str = ""
    summary: str = ""
    description: str = ""
    headers: Sequence[Mapping[str, Any]] = ()
    body: Mapping[str, Any] | None = None
    responses: Mapping[str, Described] = field(default_factory=dict)


class RouteTable:
    """All routes by path and method.

    A parameter ``{name}`` matches one or more characters but ``/``; ``{name:path}`` any text, also
    an empty one. The first matching path with the method is taken.

    Args:
        routes: in the order in which their paths are tried.

    Raises:
        ValueError: two routes have the same method and path.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._plain: dict[str, dict[str, Route]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        for route in routes:
            if "{" in route.path:
                # DOTALL: a key may have line breaks.
                pattern = re.compile(compile_path(route.path)[0].pattern, re.DOTALL)
                found = self._patterns.setdefault(route.path, (pattern, {}))[1]
            else:
                found = self._plain.setdefault(route.path, {})
            if route.method in found:
                raise ValueError(f"two routes for {route.method} {route.path}")
            found[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route of a request, and the parameters in its path.

        Raises:
            Problem: 404, or 405 with the header Allow.
        """
        asked = "GET" if method == "HEAD" else method
        plain = self._plain.get(path)
        if plain is not None and asked in plain:
            return plain[asked], {}
        for pattern, routes in self._patterns.values():
            if asked in routes and (match := pattern.fullmatch(path)) is not None:
                return routes[asked], match.groupdict()
        allowed = self.allowed(path)
        raise Problem(405, f"This path allows {allowed}", headers={"Allow": allowed})

    def allowed(self, path: str) -> str:
        """The value of the header Allow for a path.

        Raises:
            Problem: 404 no route has the path.
        """
        methods = set(self._plain.get(path, ()))
        for pattern, routes in self._patterns.values():
            if pattern.fullmatch(path) is not None:
                methods.update(routes)
        if not methods:
            raise Problem(404, "There is no such path; GET /openapi.json lists all paths")
        if "GET" in methods:
            methods.add("HEAD")
        return ", ".join(sorted({*methods, "OPTIONS"}))
