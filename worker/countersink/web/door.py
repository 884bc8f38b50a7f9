"""A door: a path, who may use it, what it does, and how it is documented."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from countersink.web.identity import Identity, Scope
from countersink.web.services import Services

Handler = Callable[[Request, Services, Identity], Awaitable[Response]]
"""Answers, or raises :class:`~countersink.web.problem.Problem`."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """One method on one path.

    Attributes:
        method: ``GET``, ``POST`` or ``DELETE``; GET answers HEAD, too.
        path: as Starlette spells it, such as ``/v1/counters/{counter}/daily``.
        handler: what it does.
        scope: what a key must have; None: anybody, even where keys are needed.
        public: a request without a key, or with one that lacks the scope, is let in as a public
            :class:`Identity`; the handler looks whether what it asks for is public.
        whole: it tells of the whole installation: keys for some counters only are refused.
        operation: the operation of the OpenAPI document (3.1): summary, parameters, requestBody,
            responses. What every door has (401, 403, 429, …) is added to it.
        hidden: not in the document: pages and their files.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope | None
    public: bool = False
    whole: bool = False
    operation: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False
