"""Routes, headers, bodies, parameters and answers of HTTP, and the OpenAPI document. This module
has ``Route``, the description of an endpoint, and ``RouteTable``, which finds the route of a
request (404, 405). See ``web/app.py`` for the list of routes."""

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
"""A function that returns the answer to a request, or raises an error, which ``web/app.py``
answers: :class:`~countersink.web.errors.Problem` for a status and text of its own."""


Described = str | type[msgspec.Struct] | Mapping[str, Any]
"""The description of one response of a route: a text, for a problem; the struct of a JSON body,
whose docstring is the description; or the response object of OpenAPI."""


@dataclass(frozen=True)
class Route:
    """An endpoint: a method on a path, with its handler, its rights and its documentation.

    Attributes:
        method: ``GET``, ``POST``, ``PUT`` or ``DELETE``; a GET route also answers HEAD.
        path: the path in Starlette's syntax, such as ``/v1/counters/{counter}/daily``.
        handler: answers the requests.
        scope: the scope that a key must have; None where no key is needed.
        public: True also admits requests without a key, and requests whose key lacks the scope, for
            public counters. Where ``public`` of the :class:`Identity` is True, the handler checks
            whether the counter is public.
        installation_wide: True where the endpoint concerns the whole installation: keys that are
            limited to some counters are refused.
        shared: True also admits requests with a link in place of a key; the handler checks whether
            the link is to the counter or board. False refuses links, except where ``scope`` is None
            and ``public`` is False: there, keys and links are ignored.
        waits: True where the handler may wait for MySQL or Redis: while it runs, the request holds
            one of the :class:`~countersink.web.auth.credentials.WaitingPlaces`; 503 if none is
            free for its key or address.
        parameters: the parameters that the query may have; others are refused. The handler finds
            the values, by name, in ``scope["countersink.given"]``. With None, the query is ignored.
        hidden: True leaves the route out of the OpenAPI document and ignores its query: for pages
            and their files.
        name, summary, description: texts of its operation in the OpenAPI document (3.1).
        tag: tag of its operation, set in :mod:`countersink.web.app`.
        headers: its request headers in OpenAPI.
        body: its request body in OpenAPI, for the document only; None where it takes no body.
        responses: its responses by status. The document adds those that all such routes have (401,
            429, …).
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

    A path may have parameters. ``{name}`` matches one or more characters other than ``/``.
    ``{name:path}`` matches any text, also an empty text. Paths without parameters are tried first.
    The first route whose path and method match is taken.

    Args:
        routes: the routes, in the order in which their paths are tried.

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
        """Return the route of a request, and the texts of the parameters in its path, by name. The
        route of a HEAD request is that for GET.

        Raises:
            Problem: 404 no route has the path; 405 a route has the path, but not with this method.
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
        """Return the value of the header Allow for a path: the methods of its routes, HEAD if it
        has GET, and OPTIONS.

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
