"""``/v1/counters`` and ``/v1/counters/{counter}``: parameters, most counters and days per answer,
members of the rows and settings, how long the sorting is kept."""

import time
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from countersink.reads import ANYTHING
from countersink.reads.formats import counter_document
from countersink.reads.overview import (
    MAX_DAYS,
    SORTS,
    WEEK,
    Glance,
    OverviewLine,
    Standing,
    overview,
    standing,
)
from countersink.runtime.limits import MAX_COUNTER_LENGTH
from countersink.runtime.times import iso
from countersink.store.counters.buckets import RESOLUTIONS
from countersink.web.auth.register import Identity
from countersink.web.http.answers import freshness, json_answer
from countersink.web.http.openapi import closed_object, object_schema, read_responses
from countersink.web.http.parameters import (
    INCLUDE_PENDING,
    choice,
    flag,
    number,
    own_counter,
    short_text,
)
from countersink.web.http.route import Route
from countersink.web.read_pool import read_problems
from countersink.web.services import Services

MAX_COUNTERS: Final = 1_000
"""Counters in one answer."""
KEPT_S: Final = 2.0
"""Seconds for which it holds, at least."""
REST: Final = 20.0
"""What takes long to ask holds so many times as long."""
MOST_S: Final = 60.0
"""Seconds for which it holds, at most."""
_DEFAULT_COUNTERS: Final = 100
_DEFAULT_DAYS: Final = 14


_part_of_name: Final = partial(short_text, whose="a counter's name", most=MAX_COUNTER_LENGTH)
_PARAMETERS: Final = (
    _part_of_name("search", description="Only counters that have this in their names."),
    choice(
        "sort",
        SORTS,
        "By name, or, of all counters, the largest first by today's total, by all that was ever"
        f" counted, or by how the last {WEEK} whole days (without today, which is not over) differ"
        f" from the {WEEK} before, as a part of these; what had nothing in these comes first, what"
        " has no such number last. The order may be some seconds old.",
        default=SORTS[0],
    ),
    flag("reverse", "The other way round."),
    _part_of_name("after", description="Only counters after this one: `next` of the page before."),
    number("limit", 1, MAX_COUNTERS, "Counters in this page.", default=_DEFAULT_COUNTERS),
    number(
        "days",
        0,
        MAX_DAYS,
        "How many last days of each, in its own time zone; 0 for none.",
        default=_DEFAULT_DAYS,
    ),
    flag("totals", "Whether to tell all that was ever counted.", default=True),
    INCLUDE_PENDING,
)


async def counters(request: Request, services: Services, who: Identity) -> Response:
    """Counters, each with its total and its last days."""
    given = request.scope["countersink.given"]
    glance = Glance(
        search=given["search"],
        after=given["after"],
        limit=given["limit"],
        days=given["days"],
        totals=given["totals"],
        visible=who.may_name,
        reverse=given["reverse"],
    )
    pending = given["include_pending"]
    return await services.read_pool.run(
        request,
        who,
        _overview,
        request,
        services,
        glance,
        given["sort"],
        services.one(Standings),
        pending,
        kind="pending" if pending else "one" if given["sort"] == SORTS[0] else "all",
    )


def _overview(
    request: Request,
    services: Services,
    glance: Glance,
    sort: str,
    standings: "Standings",
    pending: bool,
) -> Response:
    with read_problems():
        if sort != SORTS[0]:
            glance = replace(glance, standing=standings.of(sort))
        seen, complete = services.reads.read(
            lambda moment: (overview(moment.snapshot, glance), iso(moment.complete_up_to)),
            replace(ANYTHING, include_pending=pending),
        )
    return json_answer(
        request,
        {
            "rows": [_row(line) for line in seen.lines],
            "counters": seen.counters,
            "next": seen.lines[-1].counter if seen.more else None,
        },
        {"complete_up_to": complete},
        freshness({"complete_up_to": complete}),
        pending=pending,
    )


def _row(line: OverviewLine) -> dict[str, Any]:
    days = line.days
    return {
        "counter": line.counter,
        "time_zone": line.time_zone,
        "resolution": line.resolution,
        "total": line.total,
        "today": days[-1][1] if days else None,
        "days": days and [{"day": day.isoformat(), "total": total} for day, total in days],
    }


class Standings:
    """What counters are sorted by, kept for a moment: who goes through many pages asks once.

    Any thread may ask; two at once may both ask the server.

    Args:
        services: of the process.
    """

    def __init__(self, services: Services) -> None:
        self._reads = services.reads
        self._kept: dict[str, tuple[float, Standing]] = {}

    def of(self, by: str) -> Standing:
        """That by ``today``, ``total`` or ``change``.

        Raises:
            StoreError: MySQL did not do its part.
        """
        until, found = self._kept.get(by, (0.0, {}))
        began = time.monotonic()
        if began < until:
            return found
        found = self._reads.read(lambda moment: standing(moment.snapshot, by))
        ended = time.monotonic()
        self._kept[by] = (ended + min(MOST_S, max(KEPT_S, REST * (ended - began))), found)
        return found


async def counter(request: Request, services: Services, who: Identity) -> Response:
    """How one counter counts."""
    name = own_counter(request, who)
    return await services.read_pool.run(request, who, _settings, request, services, name)


def _settings(request: Request, services: Services, name: str) -> Response:
    with read_problems():
        found = services.store.counters.show(name)
    return json_answer(request, counter_document(found), {}, {}, pending=False)


async def require_counter(request: Request, services: Services, who: Identity, name: str) -> None:
    """Whether anything was ever counted under this name.

    Raises:
        Problem: 404 nothing was; 503 it cannot be told now.
    """

    def look() -> None:
        with read_problems():
            services.store.counters.show(name)

    await services.read_pool.run(request, who, look)


_ROW: Final = closed_object(
    {
        "counter": {"type": "string"},
        "time_zone": {"type": "string"},
        "resolution": {"type": "string", "enum": [*RESOLUTIONS]},
        "total": {"type": ["integer", "null"], "description": "null: not asked for"},
        "today": {"type": ["integer", "null"]},
        "days": {
            "type": ["array", "null"],
            "description": "Today's is the last. null: not asked for, or not to be told by day.",
            "items": closed_object(
                {"day": {"type": "string", "format": "date"}, "total": {"type": "integer"}}
            ),
        },
    }
)
_OVERVIEW: Final = closed_object(
    {
        "rows": {"type": "array", "items": _ROW},
        "counters": {
            "type": ["integer", "null"],
            "description": "All that the search finds; null: sorted by name, and more than 10,000"
            " or so.",
        },
        "next": {
            "type": ["string", "null"],
            "description": "What to give as `after` for the next page; null: this is the last.",
        },
        "complete_up_to": {"type": ["string", "null"], "format": "date-time"},
    }
)
_SETTINGS: Final = object_schema(
    {
        "counter": {"type": "string"},
        "time_zone": {"type": "string"},
        "resolution": {"type": "string", "enum": [*RESOLUTIONS]},
        "keep": {
            "type": ["object", "null"],
            "description": "How long buckets of each width are kept, such as"
            ' `{"minute": "2d", "day": "400d"}`; null: for ever.',
            "additionalProperties": {"type": "string"},
        },
        "max_keys": {"type": ["integer", "null"], "description": "its own; null: as for all"},
        "most_keys": {"type": ["integer", "null"], "description": "in force; null: any number"},
        "overflown": {"type": "integer", "description": "of today in the key __overflow__"},
        "app_slots": {"type": "integer"},
        "rolled_up_to": {
            "type": "object",
            "description": "Up to when finer buckets are in those of each width, such as"
            ' `{"hour": "2026-11-01T00:00Z"}`.',
            "additionalProperties": {"type": "string"},
        },
        "made": {"type": "boolean"},
        "dimensions": {"type": "array", "items": {"type": "string"}},
        "breakdowns": {
            "type": "array",
            "items": closed_object(
                {
                    "dimensions": {"type": "array", "items": {"type": "string"}},
                    "since": {
                        "type": ["string", "null"],
                        "format": "date-time",
                        "description": "It holds the events from then on; null: all.",
                    },
                },
                required=["dimensions", "since"],
            ),
        },
        "salt_days": {
            "type": ["integer", "null"],
            "description": "how many days a salt of its members lasts, 0: for ever; null: its"
            " different members are not counted",
        },
    },
    required=["counter", "time_zone", "resolution", "keep", "rolled_up_to"],
)
ROUTES: Final = (
    Route(
        "GET",
        "/v1/counters",
        counters,
        scope="read",
        parameters=_PARAMETERS,
        name="counters",
        summary="All counters, with totals and last days",
        responses=read_responses(_OVERVIEW, csv=False),
    ),
    Route(
        "GET",
        "/v1/counters/{counter}",
        counter,
        scope="read",
        shared=True,
        name="counter",
        summary="How a counter counts",
        responses=read_responses(_SETTINGS, csv=False, one=True),
    ),
)
"""The routes to counters."""
