"""The OpenAPI document (3.1), made from the doors: what is not a door is not in it, and the other
way round.
"""

import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final
from zoneinfo import available_timezones

from starlette.requests import Request
from starlette.responses import Response

from countersink.web.credentials import COOKIE
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.problem import MEDIA_TYPE, TITLES
from countersink.web.services import Services

PATH: Final = "/openapi.json"
_PARAMETER: Final = re.compile(r"\{([a-z_]+)(?::path)?\}")

_RETRY_AFTER: Final = {
    "description": "Seconds to wait.",
    "schema": {"type": "integer", "minimum": 1},
    "required": True,
}
_CHALLENGE: Final = {"schema": {"type": "string"}, "required": True}
_WORDS: Final[Mapping[int, str]] = {
    400: "The request cannot be read: a header twice, a path that is no UTF-8.",
    401: "A key is needed, or the one shown is wrong, revoked or expired.",
    403: "The key is not for this, or the request came from a page of another origin.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The body is packed, or typed, in a way that is not known.",
    421: "The name in the Host header is not one of this server's.",
    429: "Too many requests, or too many wrong keys.",
    431: "The headers are too many, or too large.",
    500: "A bug. The number in it is in the server's log, too.",
    503: "A server behind this one is away or busy: try again.",
}
_HEADERS: Final[Mapping[int, Mapping[str, Any]]] = {
    401: {"WWW-Authenticate": _CHALLENGE},
    429: {"Retry-After": _RETRY_AFTER},
    503: {"Retry-After": _RETRY_AFTER},
}
_EVERYWHERE: Final = (400, 408, 421, 429, 431, 500, 503)
_WITH_BODY: Final = (413, 415)
_WITH_KEY: Final = (401, 403)

_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "What is wrong, and what to do (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "const": "about:blank"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "incident": {"type": "string", "description": "With status 500: find it in the log."},
        "errors": {
            "type": "array",
            "description": "What is wrong with which item.",
            "items": {
                "type": "object",
                "required": ["detail"],
                "properties": {
                    "index": {"type": "integer", "minimum": 0, "description": "of the item"},
                    "parameter": {"type": "string", "description": "of the query"},
                    "detail": {"type": "string"},
                },
            },
        },
    },
}
_INTRODUCTION: Final = (
    "Increments in, totals out. A key goes into `Authorization: Bearer ck_…` or `X-API-Key`; what"
    " is wrong is told as `application/problem+json`."
)


def document(doors: Iterable[Door], *, keys: bool = True, cookie: str = COOKIE) -> dict[str, Any]:
    """The document of ``doors``.

    Args:
        doors: what there is.
        keys: whether keys are needed.
        cookie: the name of that of a login.
    """
    paths: dict[str, dict[str, Any]] = {}
    for door in doors:
        if not door.hidden:
            path = _PARAMETER.sub(r"{\1}", door.path)
            paths.setdefault(path, {})[door.method.lower()] = operation(door, keys=keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "countersink", "version": _version(), "description": _INTRODUCTION},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM, "TimeZone": _time_zone()},
            "responses": {f"Problem{status}": problem(status) for status in _WORDS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "login": {"type": "apiKey", "in": "cookie", "name": cookie},
            },
        },
    }


def operation(door: Door, *, keys: bool = True) -> dict[str, Any]:
    """A door's own operation with what every door has."""
    made: dict[str, Any] = deepcopy(dict(door.operation))
    made.setdefault("operationId", _operation_id(door))
    if door.scope is not None:
        made.setdefault("description", "")
        made["description"] = f"{made['description']}\n\nScope: `{door.scope}`.".strip()
    made["security"] = _security(door, keys)
    _complete_parameters(door, made.setdefault("parameters", []))
    responses: dict[str, Any] = made.setdefault("responses", {})
    for status in _statuses(door, "requestBody" in made):
        responses.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    for code, response in responses.items():
        # Whoever only says in words what is wrong means a problem.
        plain = "content" not in response and "$ref" not in response
        if plain and code.isdigit() and int(code) in TITLES:
            responses[code] = {**problem(int(code)), **response}
    return made


def _time_zone() -> dict[str, Any]:
    """A name that the server knows: its list of zones is that of its machine, or package tzdata."""
    names = sorted(available_timezones())
    return {"type": "string", "enum": names, "examples": ["UTC", "Europe/Berlin"]}


def problem(status: int) -> dict[str, Any]:
    """A response that is a problem document."""
    made: dict[str, Any] = {
        "description": _WORDS.get(status, TITLES[status]),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status in _HEADERS:
        made["headers"] = deepcopy(dict(_HEADERS[status]))
    return made


def door_of(doors: Iterable[Door]) -> Door:
    """The door to the document of ``doors`` and itself."""
    others = tuple(doors)

    @cache
    def body(keys: bool, cookie: str) -> bytes:
        return json.dumps(document((*others, own), keys=keys, cookie=cookie)).encode()

    async def answer(request: Request, services: Services, who: Identity) -> Response:
        keys = services.register.keys_needed or not services.options.may_be_open
        cookie = services.cookie.name(request.scope["scheme"])
        return Response(body(keys, cookie), media_type="application/json")

    own = Door(
        method="GET",
        path=PATH,
        handler=answer,
        scope=None,
        operation={
            "summary": "This document",
            "responses": {
                "200": {
                    "description": "OpenAPI 3.1.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                }
            },
        },
    )
    return own


def _statuses(door: Door, has_body: bool) -> list[int]:
    found = [*_EVERYWHERE]
    if has_body:
        found += _WITH_BODY
    if door.scope is not None or door.public:
        found += _WITH_KEY
    return sorted(found)


def _security(door: Door, keys: bool) -> list[dict[str, list[str]]]:
    if door.scope is None:
        return []
    needed: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}, {"login": []}]
    return needed if keys and not door.public else [{}, *needed]


def _complete_parameters(door: Door, parameters: list[dict[str, Any]]) -> None:
    described = {each.get("name") for each in parameters if each.get("in") == "path"}
    for name in _PARAMETER.findall(door.path):
        if name not in described:
            parameters.append(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            )


def _operation_id(door: Door) -> str:
    words = re.findall(r"[a-z0-9]+", _PARAMETER.sub(r"\1", door.path).lower())
    return "_".join([door.method.lower(), *words])


def _version() -> str:
    try:
        return version("countersink")
    except PackageNotFoundError:
        return "0"
