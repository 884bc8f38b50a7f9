"""HTTP: routes, headers, bodies, parameters, answers, the OpenAPI document. ``Route``: method,
path, scope and handler of an endpoint; finding it, with the answers 404 and 405 and their texts;
the list of routes is in ``web/app.py``."""

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
"""Answers, or raises :class:`~countersink.web.errors.Problem`."""


Described = str | type[msgspec.Struct] | Mapping[str, Any]
"""A response for the document: a problem in words; a struct that is its JSON body, with its
docstring; or all of it, as the document has it."""


@dataclass(frozen=True)
class Route:
    """One method on one path.

    Attributes:
        method: ``GET``, ``POST``, ``PUT`` or ``DELETE``; GET answers HEAD, too.
        path: as Starlette spells it, such as ``/v1/counters/{counter}/daily``.
        handler: what it does.
        scope: what a key must have; None: anybody, even where keys are needed.
        public: a request without a key, or with one that lacks the scope, is let in as a public
            :class:`Identity`; the handler looks whether what it asks for is public.
        whole: it tells of the whole installation: keys for some counters only are refused.
        shared: whoever has a link to a counter is let in; the handler looks whether it is the
            counter that is asked for.
        waits: for a server, or it may: it takes one of the places for that.
        parameters: of its query, which has no others: their values are in
            ``scope["countersink.given"]``, by name; None: whatever the query says is let be.
        hidden: not in the document, and its query is let be: pages and their files.
        name, summary, description: of its operation in the OpenAPI document (3.1).
        tag: under which the document has it, given in :mod:`countersink.web.app`.
        headers: that it takes, as the document has them.
        body: what it takes, as the document has it; None: nothing.
        responses: by status. What every route has (401, 403, 429, …) is added.
    """

    method: str
    path: str
    handler: Handler
    _: KW_ONLY
    scope: Scope | None
    public: bool = False
    whole: bool = False
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

    A parameter ``{name}`` is one or more characters but ``/``; ``{name:path}`` is any text, also an
    empty one. Where several paths fit, the first that has the method is taken.

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
                # A line break is a character as any other.
                pattern = re.compile(compile_path(route.path)[0].pattern, re.DOTALL)
                found = self._patterns.setdefault(route.path, (pattern, {}))[1]
            else:
                found = self._plain.setdefault(route.path, {})
            if route.method in found:
                raise ValueError(f"two routes for {route.method} {route.path}")
            found[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and the parameters in its path.

        Raises:
            Problem: 404, or 405 with what is allowed.
        """
        asked = "GET" if method == "HEAD" else method
        plain = self._plain.get(path)
        if plain is not None and asked in plain:
            return plain[asked], {}
        for pattern, routes in self._patterns.values():
            if asked in routes and (match := pattern.fullmatch(path)) is not None:
                return routes[asked], match.groupdict()
        allowed = self.allowed(path)
        raise Problem(405, f"This path takes {allowed}", headers={"Allow": allowed})

    def allowed(self, path: str) -> str:
        """What ``Allow`` says of a path.

        Raises:
            Problem: 404.
        """
        methods = set(self._plain.get(path, ()))
        for pattern, routes in self._patterns.values():
            if pattern.fullmatch(path) is not None:
                methods.update(routes)
        if not methods:
            raise Problem(404, "There is nothing at this path; GET /openapi.json lists all of them")
        if "GET" in methods:
            methods.add("HEAD")
        return ", ".join(sorted({*methods, "OPTIONS"}))
