"""The OpenAPI document. It describes every route except those of pages and their files.

This module has its introduction, the schema of problems, and the responses that every route has,
such as 429. The texts about an endpoint are in the endpoint's module.
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
_PROBLEM_TEXTS: Final[Mapping[int, str]] = {
    400: "The request is malformed: a repeated header, or a path that is not UTF-8.",
    401: "A key is required, or the key is wrong, revoked or expired.",
    403: "The key may not do this, or the request came from a page of another origin.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The Content-Type or Content-Encoding of the body is not supported.",
    421: "The name in the Host header is not one of this server's.",
    422: "A parameter is not valid, or the stored numbers cannot answer the request.",
    429: "Too many requests, or too many wrong keys.",
    431: "The headers are too many, or too large.",
    500: "An internal error. The server's log has details under the number `incident`.",
    503: "MySQL or Redis is away, or the server is busy: try again.",
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
"""Schemas of all structs that :func:`schema_of` was called with, by name."""


def doc(description: str) -> Meta:
    """Return an annotation that gives a struct's member this description in OpenAPI."""
    return Meta(description=description)


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON object that may have no members besides its declared ones."""


class ItemError(msgspec.Struct):
    """An error of an item or a parameter."""

    detail: str
    index: Annotated[int, Meta(ge=0, description="The item's, from 0.")] | UnsetType = UNSET
    parameter: Annotated[str, doc("The parameter's name.")] | UnsetType = UNSET


class ProblemDocument(msgspec.Struct):
    """An error, and what to do about it (RFC 9457)."""

    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    incident: (
        Annotated[str, doc("With status 500: the number in the server's log.")] | UnsetType
    ) = UNSET
    rolled_up_to: (
        Annotated[Day, doc("With status 422: the first day that has a total of its own.")]
        | UnsetType
    ) = UNSET
    errors: Annotated[list[ItemError], doc("Errors of items or parameters.")] | UnsetType = UNSET


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type: a struct, or a type that includes structs. Schemas of the
    structs are added to :data:`_SCHEMAS`, from which :func:`document` takes its components; the
    result refers to them. Where ``kind`` is a schema already, return a shallow copy of it."""
    if isinstance(kind, Mapping):
        return dict(kind)
    template = "#/components/schemas/{name}"
    (schema,), parts = msgspec.json.schema_components([kind], ref_template=template)
    _SCHEMAS.update(parts)
    return schema


_INTRODUCTION: Final = (
    "Counts increments and returns totals. Send a key as `Authorization: Bearer ck_…` or"
    " `X-API-Key`; errors are `application/problem+json`."
)


def document(routes: Iterable[Route], *, keys: bool = True) -> dict[str, Any]:
    """Return the OpenAPI document of ``routes``.

    Args:
        routes: the routes to describe; hidden ones are left out.
        keys: whether the server requires API keys. If False, the document says that a key is
            optional.
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
            "responses": {f"Problem{status}": problem(status) for status in _PROBLEM_TEXTS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def operation(route: Route, *, keys: bool = True) -> dict[str, Any]:
    """Return OpenAPI's operation object of a route, with the responses of :attr:`Route.responses`
    and the problems that routes of its kind have, such as 429. ``keys``: whether the server
    requires API keys; if False, the object says that a key is optional."""
    scope = route.scope and f"Scope: `{route.scope}`."
    made: dict[str, Any] = {
        "operationId": route.name or route.path.strip("/"),
        "tags": [route.tag] if route.tag else [],
        "summary": route.summary,
        "description": "\n\n".join(filter(None, (route.description, scope))),
        "security": _security(route, keys),
        "parameters": _parameters(route),
        "responses": {
            status: _response(status, declared) for status, declared in route.responses.items()
        },
    }
    if route.body is not None:
        made["requestBody"] = route.body
    for code in _statuses(route):
        made["responses"].setdefault(str(code), {"$ref": f"#/components/responses/Problem{code}"})
    return made


def _response(status: str, declared: Described) -> Mapping[str, Any]:
    """Return OpenAPI's response object for one entry of :attr:`Route.responses`: ``status`` is its
    HTTP status, ``declared`` its value: a text, a struct, or a response object, which is returned
    unchanged."""
    if isinstance(declared, type):
        return response(declared.__doc__ or "", declared)
    if not isinstance(declared, str):
        return declared
    code = int(status)
    return {**(problem(code) if code >= HTTPStatus.BAD_REQUEST else {}), "description": declared}


def response(description: str, body: Any, *media_types: str) -> dict[str, Any]:
    """Return OpenAPI's response object for a body, which is given as a schema or a type. Its media
    type is JSON unless others are given."""
    schema = schema_of(body)
    types = media_types or ("application/json",)
    return {"description": description, "content": {each: {"schema": schema} for each in types}}


def json_body(kind: Any, *, required: bool = True) -> dict[str, Any]:
    """Return OpenAPI's request body object for a JSON body. ``kind`` is its schema or type;
    ``required`` says whether a request must have a body."""
    return {"required": required, "content": {"application/json": {"schema": schema_of(kind)}}}


def closed_object(
    properties: Mapping[str, Any], required: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return the schema of an object that may have no members besides ``properties``.

    Args:
        properties: the schemas of its members, by name.
        required: names of the required members; default: all.
    """
    return {
        "type": "object",
        "properties": properties,
        "required": [*(properties if required is None else required)],
        "additionalProperties": False,
    }


def _time_zone() -> dict[str, Any]:
    """Return the schema of a time zone: any name in the time zone database of this machine or of
    the package tzdata."""
    names = sorted(available_timezones())
    return {"type": "string", "enum": names, "examples": ["UTC", "Europe/Berlin"]}


def problem(status: int) -> dict[str, Any]:
    """Return OpenAPI's response object for a problem with the HTTP status ``status``, described by
    :data:`_PROBLEM_TEXTS` or else by the name of the status."""
    text = _PROBLEM_TEXTS.get(status, HTTPStatus(status).phrase)
    made = response(text, ProblemDocument, MEDIA_TYPE)
    if status in _HEADERS:
        made["headers"] = _HEADERS[status]
    return made


def openapi_route(routes: Iterable[Route]) -> Route:
    """Return the route that answers ``GET /openapi.json`` with the OpenAPI document. The document
    describes ``routes`` and this route, and is made at the first request."""
    others = tuple(routes)

    @cache
    def body(keys: bool) -> bytes:
        return json.dumps(document((*others, document_route), keys=keys)).encode()

    async def answer(request: Request, services: Services, who: Identity) -> Response:
        return Response(body(not services.options.without_keys), media_type="application/json")

    document_route = Route(
        "GET",
        PATH,
        answer,
        scope=None,
        parameters=None,
        summary="This document",
        responses={"200": response("OpenAPI 3.1.", {"type": "object"})},
    )
    return document_route


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


def read_responses(document: Any, *, csv: bool = True, of_counter: bool = False) -> dict[str, Any]:
    """Return :attr:`Route.responses` of a route whose answers have an ETag and headers for
    freshness (see ``answers.py``): 200 and 304, and with ``of_counter`` also 404.

    Args:
        document: the type or the schema of the JSON answer.
        csv: whether the route also answers in CSV.
        of_counter: whether its path names a counter.
    """
    headers: dict[str, Any] = {
        "ETag": {"description": "Changes with the numbers.", "schema": {"type": "string"}},
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
        "304": {"description": "Unchanged: If-None-Match has its ETag.", "headers": headers},
    }
    if of_counter:
        made["404"] = "There is no such counter."
    return made
