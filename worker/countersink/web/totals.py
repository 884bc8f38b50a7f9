"""``/v1/counters/{counter}/totals|daily|hourly|top`` and ``/v1/totals``: what was counted.

The options, the rows and the errors are those of ``countersink totals``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from countersink.reads.layout import iso
from countersink.reads.query import COLUMNS, Answer, Query, ask
from countersink.store.key_match import KeyMatch
from countersink.web import reading
from countersink.web.answers import csv_answer, freshness, json_answer, wants_csv
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.parameters import Parameter, one_of, read, refuse, whole
from countersink.web.read_places import Kind
from countersink.web.services import Services

MAX_NAMES: Final = 10_000
"""Keys or counters in one answer, the largest of them; ``countersink export`` has them all."""
MAX_ROWS: Final = 100_000
"""Rows of one answer."""
DEFAULT_TOP: Final = 10

_NUMBER: Final = {"type": "integer", "minimum": 1, "maximum": MAX_NAMES}
BY: Final = Parameter(
    name="by",
    read=one_of(*COLUMNS),
    description="What the rows are. Default: key with top; else day, or counter of all counters.",
    schema={"type": "string", "enum": list(COLUMNS)},
)
TOP: Final = Parameter(
    name="top",
    read=whole(1, MAX_NAMES),
    description="The so many keys or counters with the largest totals.",
    schema=_NUMBER,
)
N: Final = Parameter(
    name="n",
    read=whole(1, MAX_NAMES),
    description="How many keys.",
    schema={**_NUMBER, "default": DEFAULT_TOP},
    default=DEFAULT_TOP,
)
_RANGE: Final = (reading.START, reading.END, reading.TIME_ZONE)
_REST: Final = (reading.INCLUDE_PENDING, reading.FORMAT)
_SERIES: Final = (reading.KEYS, *_RANGE, *_REST)
_TOTALS: Final = (BY, reading.KEYS, *_RANGE, TOP, reading.PREFIX, reading.SEARCH, *_REST)
_TOP: Final = (N, *_RANGE, reading.PREFIX, reading.SEARCH, *_REST)


async def totals(request: Request, services: Services, who: Identity) -> Response:
    """Totals of a counter or of all, by day, hour, month or key, or one figure."""
    return await _answered(request, services, who, read(request, _TOTALS))


async def daily(request: Request, services: Services, who: Identity) -> Response:
    """A counter's days."""
    return await _answered(request, services, who, {**read(request, _SERIES), "by": "day"})


async def hourly(request: Request, services: Services, who: Identity) -> Response:
    """A counter's hours."""
    return await _answered(request, services, who, {**read(request, _SERIES), "by": "hour"})


async def top(request: Request, services: Services, who: Identity) -> Response:
    """A counter's keys with the largest totals."""
    given = read(request, _TOP)
    return await _answered(request, services, who, {**given, "by": "key", "top": given["n"]})


async def _answered(
    request: Request, services: Services, who: Identity, given: Mapping[str, Any]
) -> Response:
    name = request.path_params.get("counter")
    counter = None if name is None else reading.own_counter(name, who)
    query = _query(counter, who, given)
    # Laying out a long answer takes a while, too: in the thread.
    kind: Kind = "pending" if query.include_pending else "one" if counter else "all"
    return await reading.answering(
        request, services, who, _answer, request, services, query, given["format"], kind=kind
    )


def _query(counter: str | None, who: Identity, given: Mapping[str, Any]) -> Query:
    top = given.get("top")
    by = given.get("by") or ("counter" if counter is None else "key" if top else "day")
    match = KeyMatch(prefix=given.get("prefix", ""), contains=given.get("search", ""))
    keys: Sequence[str] = given.get("key", ())
    start, end = given["from"], given["to"]
    if top and by not in ("key", "counter"):
        raise refuse("top", f"it goes with by=key or by=counter, not by={by}")
    for name in ("prefix", "search"):
        if given.get(name) and (by != "key" or keys):
            raise refuse(name, "it goes with by=key, and without key")
    if start and end and end < start:
        raise refuse("to", f"the range ends ({end}) before it begins ({start})")
    return Query(
        counter=counter,
        by=by,
        keys=keys,
        start=start,
        end=end,
        time_zone=given["time_zone"],
        top=top,
        match=match,
        most=MAX_NAMES,
        max_rows=MAX_ROWS,
        visible=who.may_name,
        include_pending=given["include_pending"],
    )


def _answer(request: Request, services: Services, query: Query, format: str | None) -> Response:
    answer = reading.asking(ask, services.reads, query)
    headers = freshness(answer.complete_up_to, answer.rolled_up_to, truncated=answer.truncated)
    if wants_csv(request, format):
        name = f"{query.counter or 'all'}-{query.by}.csv".replace(":", "_")
        return csv_answer(
            request, answer.columns, answer.rows, headers, name=name, pending=query.include_pending
        )
    return json_answer(
        request,
        _content(query, answer),
        {"complete_up_to": iso(answer.complete_up_to)},
        headers,
        pending=query.include_pending,
    )


def _content(query: Query, answer: Answer) -> dict[str, Any]:
    return {
        "counter": query.counter,
        "rows": answer.rows,
        "rolled_up_to": answer.rolled_up_to and answer.rolled_up_to.isoformat(),
        "truncated": answer.truncated,
    }


_ROW_SCHEMAS: Final = {
    "counter": {"type": "string"},
    "day": {"type": "string", "format": "date"},
    "hour": {"type": "string", "description": "With its UTC offset: 2026-11-21T08:00+01:00"},
    "month": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
    "key": {"type": "string"},
    "total": {"type": "integer"},
}


def _document(*columns: str) -> dict[str, Any]:
    """The schema of an answer whose rows may have these columns besides ``total``."""
    row = {
        "type": "object",
        "properties": {name: _ROW_SCHEMAS[name] for name in (*columns, "total")},
        "required": ["total"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "counter": {"type": ["string", "null"], "description": "null: all of them"},
            "rows": {"type": "array", "items": row},
            "rolled_up_to": {
                "type": ["string", "null"],
                "format": "date",
                "description": "Days before this one are in months; null: no day is.",
            },
            "truncated": {
                "type": "boolean",
                "description": f"There are more than the {MAX_NAMES:,} largest, which are here; or,"
                f" without `from`, more than the latest {MAX_ROWS:,} days or hours.",
            },
            "complete_up_to": {
                "type": ["string", "null"],
                "format": "date-time",
                "description": "Everything that reached Redis before this time is in the rows.",
            },
        },
        "required": ["counter", "rows", "rolled_up_to", "truncated", "complete_up_to"],
        "additionalProperties": False,
    }


def _operation(
    name: str, summary: str, parameters: Sequence[Parameter], *columns: str, one: bool = True
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "tags": ["reading"],
        "parameters": [
            *([reading.COUNTER] if one else []),
            *(parameter.document() for parameter in parameters),
        ],
        "responses": reading.responses(_document(*columns), one=one),
    }


_ANY: Final = ("counter", "day", "hour", "month", "key")

DOORS: Final = (
    Door(
        method="GET",
        path="/v1/counters/{counter}/totals",
        handler=totals,
        scope="read",
        operation=_operation("totals", "A counter's totals", _TOTALS, *_ANY),
    ),
    Door(
        method="GET",
        path="/v1/counters/{counter}/daily",
        handler=daily,
        scope="read",
        operation=_operation("daily", "A counter's days", _SERIES, "day"),
    ),
    Door(
        method="GET",
        path="/v1/counters/{counter}/hourly",
        handler=hourly,
        scope="read",
        operation=_operation("hourly", "A counter's hours", _SERIES, "hour"),
    ),
    Door(
        method="GET",
        path="/v1/counters/{counter}/top",
        handler=top,
        scope="read",
        operation=_operation("top", "A counter's largest keys", _TOP, "key"),
    ),
    Door(
        method="GET",
        path="/v1/totals",
        handler=totals,
        scope="read",
        operation=_operation("allTotals", "Totals of all counters", _TOTALS, *_ANY, one=False),
    ),
)
"""The doors to totals."""
