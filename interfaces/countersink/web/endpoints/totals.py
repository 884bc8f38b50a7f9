"""The endpoints ``/v1/counters/{counter}/totals, daily, hourly, minutely, top``, ``/v1/totals``,
and ``/v1/export/openmetrics``, which has totals of chosen counters for Prometheus.

Rows and errors of totals are those of ``countersink totals``, and most options, too. See
``counting/totals/query.py`` for names of columns, ``web/read_pool.py`` for statuses of errors.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from countersink.counting.errors import UnknownCounter
from countersink.counting.totals.query import (
    COLUMNS,
    DIMENSIONS,
    Answer,
    Query,
    read_by,
    read_where,
)
from countersink.counting.totals.selection import Selection, check_range, checked_where
from countersink.reads import Moment
from countersink.reads.formats import CONTENT_TYPE, TotalSample, csv_text, openmetrics_text
from countersink.runtime.dimensions import MAX_DIMENSIONS
from countersink.runtime.limits import check_counter
from countersink.runtime.texts import iso
from countersink.web.auth.register import Identity
from countersink.web.http import Handler, Route
from countersink.web.http.answers import FRESHNESS, csv_answer, freshness, json_answer, wants_csv
from countersink.web.http.openapi import Closed, Day, Time, doc, read_responses, response
from countersink.web.http.parameters import (
    COUNTER_NAME,
    FORMAT,
    INCLUDE_PENDING,
    KEYS,
    LAST,
    PICKED,
    SINCE,
    SPREADSHEET,
    TIME_ZONE,
    UNTIL,
    Parameter,
    choice,
    flag,
    number,
    permitted_counter,
    picked_keys,
    refuse,
    require_permitted,
)
from countersink.web.read_pool import read_problems
from countersink.web.services import Services

MAX_NAMES: Final = 10_000
"""Maximum number of keys or counters in one answer, those with the largest totals. ``countersink
export`` has no limit."""
MAX_ROWS: Final = 100_000
"""Maximum number of rows in one answer."""
DEFAULT_TOP: Final = 10
MAX_COUNTERS: Final = 100
"""Maximum number of counters in one scrape."""
MAX_SAMPLES: Final = 10_000
"""Maximum number of samples in one scrape: a counter may have any number of keys, and each becomes
a time series in Prometheus."""

_NAME: Final = "[a-z][a-z0-9_]{0,31}"
_NAMES: Final = f"{_NAME}(,{_NAME}){{0,{MAX_DIMENSIONS - 1}}}"
BY: Final = Parameter(
    "by",
    read_by,
    f"The rows: {', '.join(COLUMNS)}; or dimensions of the counter, such as page,country. Default:"
    " key with top; else day, or, for all counters, counter.",
    {"type": "string", "pattern": f"^{_NAMES}$", "examples": [*COLUMNS, "page,country"]},
)
WHERE: Final = Parameter(
    "where",
    read_where,
    "Only events with this value of a dimension: DIMENSION=VALUE; may be given several times, for"
    " different dimensions. An empty value: events without the dimension.",
    {"type": "string", "pattern": f"^{_NAME}=", "examples": ["country=DE"]},
    repeatable=True,
    most=MAX_DIMENSIONS,
)
TOP: Final = number("top", 1, MAX_NAMES, "Only this many keys or counters, the largest totals.")
N: Final = number("n", 1, MAX_NAMES, "The number of keys.", default=DEFAULT_TOP)


def _other_range(text: str) -> tuple[date, date]:
    start, _, end = text.partition("..")
    try:
        found = SINCE.read(start), UNTIL.read(end)
        check_range(*found)
    except ValueError:
        raise ValueError("give two days or times, such as 2026-10-01..2026-10-31") from None
    return found


ALSO: Final = Parameter(
    "also",
    _other_range,
    "Other days, FIRST..LAST, or times, the second excluded: each row has its totals of these in"
    " `also`, in the same order; null if they cannot be determined. Not for CSV.",
    {"type": "string", "examples": ["2026-10-01..2026-10-31"]},
    repeatable=True,
    most=4,
)
AGAINST: Final = choice(
    "against",
    ("previous",),
    "Adds to each total that of the preceding window of the same length, as `previous`; null if it"
    " cannot be determined. With `last`, or with both `from` and `to`. For days, weeks and months,"
    " it is the whole one before; null if the row's own is not over, or cut off by the range.",
)
UNIQUE: Final = flag(
    "unique",
    "The number of different members of a counter as `total`: exact, or, if `estimate` is true,"
    " between `low` and `high` with a probability of 95 %. Not with `include_pending`, `against`"
    " and `also`.",
)
_RANGE: Final = (SINCE, UNTIL, LAST, TIME_ZONE)
_REST: Final = (INCLUDE_PENDING, FORMAT, SPREADSHEET)
_SERIES: Final = (*PICKED, WHERE, *_RANGE, UNIQUE, *_REST)
_TOTALS: Final = (BY, *PICKED, WHERE, *_RANGE, UNIQUE, TOP, AGAINST, *_REST)
_TOP: Final = (N, BY, *PICKED, WHERE, *_RANGE, UNIQUE, ALSO, AGAINST, *_REST)


async def totals(
    request: Request, services: Services, who: Identity, by: str | None = None
) -> Response:
    """Answer with totals of the counter in the path, in JSON or CSV. If the path names no counter,
    the totals are those of all counters that the request's API key may name. ``by`` says what a row
    of the answer is, such as ``day``. If it is None, the request's parameter ``by`` says this, or
    its default (see :data:`BY`).

    Raises:
        Problem: 403 the API key may not name the counter; 404 there is no such counter; 422 the
            parameters do not fit together; also the problems of :func:`read_problems` and of
            :meth:`~countersink.web.read_pool.ReadPool.run`.
    """
    given = request.scope["countersink.given"]
    counter = permitted_counter(request, who) if "counter" in request.path_params else None
    query = _query(counter, who, given if by is None else {**given, "by": (by, ())})
    pending, spreadsheet = query.include_pending, given["spreadsheet"]
    csv = wants_csv(request, given["format"])
    if spreadsheet and not csv:
        raise refuse("spreadsheet", "it needs format=csv")
    if query.also and csv:
        raise refuse("also", "it needs format=json")

    def answer() -> Response:
        with read_problems(without_pending=not pending):
            found = services.reads.ask(query)
        limits, rows = found.limits(), list(found.documents())
        headers = freshness(limits)
        if csv:
            name = f"{counter or 'all'}-{query.by}.csv".replace(":", "_")
            text = "".join(csv_text(found.columns, rows, spreadsheet=spreadsheet))
            return csv_answer(request, text, headers, name=name, pending=pending)
        fresh = {"complete_up_to": limits.pop("complete_up_to")}
        content = {"counter": counter, "rows": rows, **limits}
        return json_answer(request, content, fresh, headers, pending=pending)

    # In the thread: formatting a long answer takes a while.
    return await services.read_pool.run(request, who, answer, pending=pending)


def _query(counter: str | None, who: Identity, given: Mapping[str, Any]) -> Query:
    top = given.get("top") or given.get("n")
    default = "counter" if counter is None else "key" if top else "day"
    by, dimensions = given.get("by") or (default, ())
    if top and by not in ("key", "counter", DIMENSIONS):
        raise refuse("top", f"it needs by=key, by=counter or dimensions, not by={by}")
    with read_problems():
        return Query(
            Selection(
                counter,
                keys=picked_keys(given),
                start=given["from"],
                end=given["to"],
                last=given["last"],
                time_zone=given["time_zone"],
                where=checked_where(given["where"]),
                visible=who.may_name,
            ),
            by=by,
            dimensions=dimensions,
            top=top,
            most=MAX_NAMES,
            max_rows=MAX_ROWS,
            also=given.get("also", ()),
            against_previous=given.get("against") is not None,
            include_pending=given["include_pending"],
            unique=given["unique"],
        )


def _limit(name: str) -> Meta:
    """Return the OpenAPI description of the member ``name`` of :class:`TotalList`. It is the
    description in :data:`FRESHNESS` of the header that repeats the member's value."""
    return doc(FRESHNESS[name][1])


class TotalRow(msgspec.Struct):
    """A total, and what it is the total of: counter, key, bucket, or values of dimensions."""

    total: int
    counter: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    day: Day | UnsetType = UNSET
    hour: Annotated[str, doc("With UTC offset: 2026-11-21T08:00+01:00")] | UnsetType = UNSET
    minute: Annotated[str, doc("With UTC offset: 2026-11-21T08:17+01:00")] | UnsetType = UNSET
    week: Annotated[str, doc("ISO week, from Monday on: 2026-W48.")] | UnsetType = UNSET
    month: Annotated[str, doc("Such as 2026-11.")] | UnsetType = UNSET
    previous: (
        Annotated[int | None, doc("`against`: of the window, day, week or month before.")]
        | UnsetType
    ) = UNSET
    also: Annotated[list[int | None], doc("Of the ranges in `also`.")] | UnsetType = UNSET
    estimate: Annotated[bool, doc("`unique`: `total` is an estimate.")] | UnsetType = UNSET
    low: Annotated[int, doc("`unique`: lower bound, with 95 %.")] | UnsetType = UNSET
    high: Annotated[int, doc("`unique`: upper bound, with 95 %.")] | UnsetType = UNSET


class TotalsWindow(Closed, rename={"start": "from", "end": "to"}):
    """The range of `last`: two days, both inclusive, or two times in UTC, the second exclusive."""

    start: str
    end: str


class TotalList(Closed):
    """Totals, with the time up to which they are complete, and what is missing."""

    counter: Annotated[str | None, doc("null: all counters")]
    rows: list[TotalRow]
    rolled_up_to: Annotated[
        Day | None, doc("Earlier days are rolled up to months; null: no days are.")
    ]
    truncated: Annotated[bool, _limit("truncated")]
    complete_up_to: Annotated[
        Time | None, doc("Everything that reached Redis before this time is in the rows.")
    ]
    window: TotalsWindow | UnsetType = UNSET
    since: Annotated[Time, _limit("since")] | UnsetType = UNSET
    told_from: Annotated[str, _limit("told_from")] | UnsetType = UNSET


_SCRAPE_COUNTERS: Final = Parameter(
    "counter",
    check_counter,
    "A counter; required, may be given several times.",
    COUNTER_NAME,
    repeatable=True,
    most=MAX_COUNTERS,
    required=True,
)
_SCRAPE_TOP: Final = number(
    "top", 1, 1_000, "Samples of this many keys, the largest totals, instead of one of the counter."
)
_SCRAPE: Final = (_SCRAPE_COUNTERS, KEYS, _SCRAPE_TOP, INCLUDE_PENDING)


async def openmetrics(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/export/openmetrics`` with the total of each counter that the parameter
    ``counter`` names, as ``countersink_events_total{counter="…"}``. With the parameter ``key``, the
    answer has totals of the given keys of each counter instead. With ``top``, it has the totals of
    each counter's largest keys instead, at most ``top`` keys. Totals of keys also have the label
    ``key``. A total below zero is in the metric ``countersink_balance`` instead. Counters that do
    not exist are left out.

    Raises:
        Problem: 403 the API key may not name one of the counters; 404 none of the counters exists;
            422 no counter, both ``key`` and ``top``, or too many samples; also the problems of
            :func:`read_problems` and of :meth:`~countersink.web.read_pool.ReadPool.run`.
    """
    given = request.scope["countersink.given"]
    names = list(dict.fromkeys(given["counter"]))
    if not names:
        raise refuse("counter", f"give 1 to {MAX_COUNTERS} counters")
    keys = list(dict.fromkeys(given["key"]))
    if keys and given["top"]:
        raise refuse("top", "give key or top, not both")
    if len(names) * max(len(keys), given["top"] or 1) > MAX_SAMPLES:
        raise refuse("counter", f"this could return more than {MAX_SAMPLES:,} samples: give fewer")
    for name in names:
        require_permitted(name, who)
    top, pending = given["top"], given["include_pending"]
    query = Query(
        Selection(keys=keys or None),
        by="key" if keys or top else "total",
        top=top,
        include_pending=pending,
    )

    def asked(moment: Moment) -> tuple[dict[str, Answer], datetime | None]:
        found: dict[str, Answer] = {}
        with moment.snapshot.together(sorted(names)):
            for name in sorted(names):
                # An unknown counter must not fail the scrape of the others.
                with suppress(UnknownCounter):
                    selection = replace(query.selection, counter=name)
                    found[name] = moment.ask(replace(query, selection=selection))
        return found, moment.complete_up_to

    def answer() -> Response:
        # One moment for all counters: the queue and the tables are read once.
        with read_problems(without_pending=not pending):
            found, up_to = services.reads.read(asked, query)
            if not found:
                raise UnknownCounter("none of these counters exists")
        samples = [
            TotalSample(name, key[0] if key else None, total)
            for name in filter(found.__contains__, names)
            for *key, total in found[name].rows
        ]
        headers = freshness({"complete_up_to": iso(up_to)})
        headers |= {"Cache-Control": "private, no-cache", "Content-Type": CONTENT_TYPE}
        return Response(openmetrics_text(samples, up_to).encode(), headers=headers)

    return await services.read_pool.run(request, who, answer, pending=pending)


def _of_counter(
    name: str,
    handler: Handler,
    parameters: Sequence[Parameter],
    summary: str,
) -> Route:
    return Route(
        "GET",
        f"/v1/counters/{{counter}}/{name}",
        handler,
        scope="read",
        shared=True,
        parameters=parameters,
        name=name,
        summary=summary,
        responses=read_responses(TotalList, of_counter=True),
    )


ROUTES: Final = (
    _of_counter("totals", totals, _TOTALS, "A counter's totals"),
    *(
        _of_counter(name, partial(totals, by=by), _SERIES, f"A counter's {by}s")
        for name, by in (("daily", "day"), ("hourly", "hour"), ("minutely", "minute"))
    ),
    _of_counter("top", totals, _TOP, "A counter's largest keys"),
    Route(
        "GET",
        "/v1/totals",
        totals,
        scope="read",
        parameters=_TOTALS,
        name="allTotals",
        summary="Totals of all counters",
        responses=read_responses(TotalList),
    ),
    Route(
        "GET",
        "/v1/export/openmetrics",
        openmetrics,
        scope="read",
        parameters=_SCRAPE,
        name="openmetrics",
        summary="Totals of chosen counters, for Prometheus",
        responses={
            "200": response(
                "OpenMetrics 1.0 text. A counter that does not exist has no sample.",
                {"type": "string"},
                "application/openmetrics-text",
            ),
            "404": "None of these counters exists.",
        },
    ),
)
"""The routes of totals."""
