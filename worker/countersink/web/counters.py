"""``/v1/counters`` and ``/v1/counters/{counter}``: which counters there are, and how they count."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from countersink.reads.counter_document import document
from countersink.reads.layout import iso
from countersink.reads.overview import MAX_DAYS, Glance, Line
from countersink.stream.limits import MAX_COUNTER_LENGTH
from countersink.web import reading
from countersink.web.answers import freshness, json_answer
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.parameters import Parameter, read, whole, yes_or_no
from countersink.web.services import Services

MAX_COUNTERS: Final = 1_000
"""Counters in one answer."""
_DEFAULT_COUNTERS: Final = 100
_DEFAULT_DAYS: Final = 14


def _part_of_name(text: str) -> str:
    if len(text) > MAX_COUNTER_LENGTH:
        raise ValueError(f"a counter's name has at most {MAX_COUNTER_LENGTH} characters")
    return text


_NAME: Final = {"type": "string", "maxLength": MAX_COUNTER_LENGTH}
_PARAMETERS: Final = (
    Parameter(
        name="search",
        read=_part_of_name,
        description="Only counters that have this in their names.",
        schema=_NAME,
        default="",
    ),
    Parameter(
        name="after",
        read=_part_of_name,
        description="Only names after this one: `next` of the page before.",
        schema=_NAME,
        default="",
    ),
    Parameter(
        name="limit",
        read=whole(1, MAX_COUNTERS),
        description="Counters in this page.",
        schema={
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_COUNTERS,
            "default": _DEFAULT_COUNTERS,
        },
        default=_DEFAULT_COUNTERS,
    ),
    Parameter(
        name="days",
        read=whole(0, MAX_DAYS),
        description="How many last days of each, in its own time zone; 0 for none.",
        schema={"type": "integer", "minimum": 0, "maximum": MAX_DAYS, "default": _DEFAULT_DAYS},
        default=_DEFAULT_DAYS,
    ),
    Parameter(
        name="totals",
        read=yes_or_no,
        description="Whether to tell all that was ever counted.",
        schema={"type": "boolean", "default": True},
        default=True,
    ),
    reading.INCLUDE_PENDING,
)


async def counters(request: Request, services: Services, who: Identity) -> Response:
    """Counters by name, each with its total and its last days."""
    given = read(request, _PARAMETERS)
    glance = Glance(
        search=given["search"],
        after=given["after"],
        limit=given["limit"],
        days=given["days"],
        totals=given["totals"],
        visible=who.may_name,
    )
    pending = given["include_pending"]
    return await reading.answering(
        request,
        services,
        who,
        _overview,
        request,
        services,
        glance,
        pending,
        kind="pending" if pending else "one",
    )


def _overview(request: Request, services: Services, glance: Glance, pending: bool) -> Response:
    found = reading.asking(services.reads.overview, glance, include_pending=pending)
    seen = found.value
    return json_answer(
        request,
        {
            "rows": [_row(line) for line in seen.lines],
            "counters": seen.counters,
            "next": seen.lines[-1].counter if seen.more else None,
        },
        {"complete_up_to": iso(found.complete_up_to)},
        freshness(found.complete_up_to, None),
        pending=pending,
    )


def _row(line: Line) -> dict[str, Any]:
    days = line.days
    return {
        "counter": line.counter,
        "time_zone": line.time_zone,
        "resolution": line.resolution,
        "total": line.total,
        "today": days[-1][1] if days else None,
        "days": days and [{"day": day.isoformat(), "total": total} for day, total in days],
    }


async def counter(request: Request, services: Services, who: Identity) -> Response:
    """How one counter counts."""
    read(request, ())
    name = reading.own_counter(request.path_params["counter"], who)
    return await reading.answering(request, services, who, _settings, request, services, name)


def _settings(request: Request, services: Services, name: str) -> Response:
    found = reading.asking(services.store.counters.show, name)
    return json_answer(request, document(found), {}, {}, pending=False)


_ROW: Final = {
    "type": "object",
    "properties": {
        "counter": {"type": "string"},
        "time_zone": {"type": "string"},
        "resolution": {"type": "string", "enum": ["day", "hour", "quarter"]},
        "total": {"type": ["integer", "null"], "description": "null: not asked for"},
        "today": {"type": ["integer", "null"]},
        "days": {
            "type": ["array", "null"],
            "description": "Today's is the last. null: not asked for, or not to be told by day.",
            "items": {
                "type": "object",
                "properties": {
                    "day": {"type": "string", "format": "date"},
                    "total": {"type": "integer"},
                },
                "required": ["day", "total"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["counter", "time_zone", "resolution", "total", "today", "days"],
    "additionalProperties": False,
}
_OVERVIEW: Final = {
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": _ROW},
        "counters": {"type": "integer", "description": "All that the search finds."},
        "next": {
            "type": ["string", "null"],
            "description": "What to give as `after` for the next page; null: this is the last.",
        },
        "complete_up_to": {"type": ["string", "null"], "format": "date-time"},
    },
    "required": ["rows", "counters", "next", "complete_up_to"],
    "additionalProperties": False,
}
_SETTINGS: Final = {
    "type": "object",
    "properties": {
        "counter": {"type": "string"},
        "time_zone": {"type": "string"},
        "resolution": {"type": "string", "enum": ["day", "hour", "quarter"]},
        "keep_days": {"type": ["integer", "null"]},
        "max_keys": {"type": ["integer", "null"], "description": "its own; null: as for all"},
        "most_keys": {"type": ["integer", "null"], "description": "in force; null: any number"},
        "overflown": {"type": "integer", "description": "rows of today in the key __overflow__"},
        "app_slots": {"type": "integer"},
        "rolled_up_to": {"type": ["string", "null"], "format": "date"},
        "made": {"type": "boolean"},
        "policies": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["counter", "time_zone", "resolution", "policies"],
}

DOORS: Final = (
    Door(
        method="GET",
        path="/v1/counters",
        handler=counters,
        scope="read",
        operation={
            "operationId": "counters",
            "summary": "All counters, with totals and last days",
            "tags": ["reading"],
            "parameters": [parameter.document() for parameter in _PARAMETERS],
            "responses": reading.responses(_OVERVIEW, csv=False),
        },
    ),
    Door(
        method="GET",
        path="/v1/counters/{counter}",
        handler=counter,
        scope="read",
        operation={
            "operationId": "counter",
            "summary": "How a counter counts",
            "tags": ["reading"],
            "parameters": [reading.COUNTER],
            "responses": reading.responses(_SETTINGS, csv=False, one=True),
        },
    ),
)
"""The doors to counters."""
