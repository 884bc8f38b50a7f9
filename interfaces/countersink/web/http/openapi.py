"""The OpenAPI document: its introduction, texts and headers of statuses that every route has,
schema of errors; texts of an endpoint stand in its module.

Every route is in it, but those of pages and their files, and nothing else is.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, Final
from zoneinfo import available_timezones

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from countersink.metrics.health import installed_version
from countersink.web.auth.register import Identity
from countersink.web.errors import MEDIA_TYPE
from countersink.web.http import Described, Route
from countersink.web.http.answers import CSV, FRESHNESS
from countersink.web.http.parameters import IN_PATH, TEXT
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
    422: "A parameter is not valid, or the numbers do not tell what is asked for.",
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

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Day = Annotated[str, Meta(extra_json_schema={"format": "date"})]
Count = Annotated[int, Meta(ge=0)]
_SCHEMAS: Final[dict[str, Any]] = {}
"""Schemas of all structs that :func:`schema_of` was asked for, by name."""


def words(description: str) -> Meta:
    """What the document says of a member."""
    return Meta(description=description)


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    """An object that has no other members."""


class ItemError(msgspec.Struct):
    """What is wrong with one item."""

    detail: str
    index: Annotated[int, Meta(ge=0, description="of the item")] | UnsetType = UNSET
    parameter: Annotated[str, words("of the query")] | UnsetType = UNSET


class ProblemDocument(msgspec.Struct):
    """What is wrong, and what to do (RFC 9457)."""

    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    incident: Annotated[str, words("With status 500: find it in the log.")] | UnsetType = UNSET
    rolled_up_to: (
        Annotated[Day, words("With status 422: the first day that can be asked for by day.")]
        | UnsetType
    ) = UNSET
    errors: Annotated[list[ItemError], words("What is wrong with which item.")] | UnsetType = UNSET


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a struct, or of a type with structs in it, which become parts of the document;
    what is a schema already stays as it is.
    """
    if isinstance(kind, Mapping):
        return dict(kind)
    template = "#/components/schemas/{name}"
    (schema,), parts = msgspec.json.schema_components([kind], ref_template=template)
    _SCHEMAS.update(parts)
    return schema


_INTRODUCTION: Final = (
    "Increments in, totals out. A key goes into `Authorization: Bearer ck_…` or `X-API-Key`; what"
    " is wrong is told as `application/problem+json`."
)


def document(routes: Iterable[Route], *, keys: bool = True) -> dict[str, Any]:
    """The document of ``routes``.

    Args:
        routes: what there is.
        keys: whether keys are needed.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not route.hidden:
            path = _PARAMETER.sub(r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = operation(route, keys=keys)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "countersink",
            "version": installed_version() or "0",
            "description": _INTRODUCTION,
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**_SCHEMAS, "TimeZone": _time_zone()},
            "responses": {f"Problem{status}": problem(status) for status in _WORDS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def operation(route: Route, *, keys: bool = True) -> dict[str, Any]:
    """A route's operation, with what every route has."""
    scope = route.scope and f"Scope: `{route.scope}`."
    made: dict[str, Any] = {
        "operationId": route.name or route.path.strip("/"),
        "tags": [route.tag] if route.tag else [],
        "summary": route.summary,
        "description": "\n\n".join(filter(None, (route.description, scope))),
        "security": _security(route, keys),
        "parameters": _parameters(route),
        "responses": {status: _response(status, told) for status, told in route.responses.items()},
    }
    if route.body is not None:
        made["requestBody"] = route.body
    for code in _statuses(route):
        made["responses"].setdefault(str(code), {"$ref": f"#/components/responses/Problem{code}"})
    return made


def _response(status: str, told: Described) -> Mapping[str, Any]:
    """A struct is a body in JSON, described by its docstring; words alone are of a problem."""
    if isinstance(told, type):
        return response(told.__doc__ or "", told)
    if not isinstance(told, str):
        return told
    code = int(status)
    return {**(problem(code) if code >= HTTPStatus.BAD_REQUEST else {}), "description": told}


def response(description: str, body: Any, *media_types: str) -> dict[str, Any]:
    """A response whose body is of a schema or a type; JSON where no media type is named."""
    schema = schema_of(body)
    types = media_types or ("application/json",)
    return {"description": description, "content": {each: {"schema": schema} for each in types}}


def json_body(kind: Any, *, required: bool = True) -> dict[str, Any]:
    """A request's JSON body, which is read as a type."""
    return {"required": required, "content": {"application/json": {"schema": schema_of(kind)}}}


def closed_object(
    properties: Mapping[str, Any], required: Iterable[str] | None = None
) -> dict[str, Any]:
    """The schema of an object with these members and no others.

    Args:
        properties: the members.
        required: those that are always there; default: all.
    """
    return {
        "type": "object",
        "properties": properties,
        "required": [*(properties if required is None else required)],
        "additionalProperties": False,
    }


def _time_zone() -> dict[str, Any]:
    """A name that the server knows: its list of zones is that of its machine, or package tzdata."""
    names = sorted(available_timezones())
    return {"type": "string", "enum": names, "examples": ["UTC", "Europe/Berlin"]}


def problem(status: int) -> dict[str, Any]:
    """A response that is a problem document."""
    made = response(_WORDS.get(status, HTTPStatus(status).phrase), ProblemDocument, MEDIA_TYPE)
    if status in _HEADERS:
        made["headers"] = _HEADERS[status]
    return made


def openapi_route(routes: Iterable[Route]) -> Route:
    """The route to the document of ``routes`` and itself."""
    others = tuple(routes)

    @cache
    def body(keys: bool) -> bytes:
        return json.dumps(document((*others, own), keys=keys)).encode()

    async def answer(request: Request, services: Services, who: Identity) -> Response:
        return Response(body(not services.options.without_keys), media_type="application/json")

    own = Route(
        "GET",
        PATH,
        answer,
        scope=None,
        parameters=None,
        summary="This document",
        responses={"200": response("OpenAPI 3.1.", {"type": "object"})},
    )
    return own


def _statuses(route: Route) -> list[int]:
    found = [*_EVERYWHERE]
    if route.body is not None:
        found += _WITH_BODY
    if route.parameters is not None:
        found.append(422)
    if route.scope is not None or route.public:
        found += _WITH_KEY
    return sorted(found)


def _security(route: Route, keys: bool) -> list[dict[str, list[str]]]:
    if route.scope is None:
        return []
    needed: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}]
    return needed if keys and not route.public else [{}, *needed]


def _parameters(route: Route) -> list[Mapping[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, **IN_PATH.get(name, {"schema": TEXT})}
        for name in _PARAMETER.findall(route.path)
    ]
    query = [each.document() for each in route.parameters or ()]
    return [*in_path, *route.headers, *query]


def read_responses(document: Any, *, csv: bool = True, one: bool = False) -> dict[str, Any]:
    """The responses of a read's operation, besides those that every route has."""
    headers: dict[str, Any] = {
        "ETag": {"description": "Of the numbers.", "schema": {"type": "string"}},
        "Cache-Control": {"schema": {"type": "string"}},
        "Vary": {"schema": {"type": "string"}},
    }
    for header, meaning, schema in FRESHNESS.values():
        headers[header] = {"description": meaning, "schema": schema}
    found = response("The answer.", document) | {"headers": headers}
    if csv:
        found["content"][CSV] = {"schema": {"type": "string"}}
    made: dict[str, Any] = {
        "200": found,
        "304": {"description": "It is as If-None-Match has it.", "headers": headers},
    }
    if one:
        made["404"] = "Nothing was ever counted under this name."
    return made
