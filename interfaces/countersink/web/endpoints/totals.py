"""``/v1/counters/{counter}/totals, daily, hourly, minutely, top``, ``/v1/totals`` and
``/v1/export/openmetrics``: parameters, most rows, schemas, the file name of a CSV, what a shared
link shows; names of columns: ``counting/totals/query.py``, statuses: ``web/read_pool.py``.

The options, the rows and the errors are those of ``countersink totals``. The same totals, of chosen
counters, for Prometheus to scrape: ``/v1/export/openmetrics``.
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
from countersink.counting.totals.selection import Selection, checked_where
from countersink.reads import Moment
from countersink.reads.formats import CONTENT_TYPE, TotalSample, csv_text, openmetrics_text
from countersink.runtime.dimensions import MAX_DIMENSIONS
from countersink.runtime.limits import check_counter
from countersink.runtime.texts import iso, read_day
from countersink.web.auth.register import Identity
from countersink.web.http import Handler, Route
from countersink.web.http.answers import FRESHNESS, csv_answer, freshness, json_answer, wants_csv
from countersink.web.http.openapi import Closed, Day, Time, read_responses, response, words
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
    own_counter,
    picked_keys,
    refuse,
    require_own,
)
from countersink.web.read_pool import read_problems
from countersink.web.services import Services

MAX_NAMES: Final = 10_000
"""Keys or counters in one answer, the largest of them; ``countersink export`` has them all."""
MAX_ROWS: Final = 100_000
"""Rows of one answer."""
DEFAULT_TOP: Final = 10
MAX_COUNTERS: Final = 100
"""Counters of one scrape."""
MAX_SAMPLES: Final = 10_000
"""Samples of one scrape: keys are an open set, and every one becomes a time series."""

_NAME: Final = "[a-z][a-z0-9_]{0,31}"
_NAMES: Final = f"{_NAME}(,{_NAME}){{0,{MAX_DIMENSIONS - 1}}}"
BY: Final = Parameter(
    "by",
    read_by,
    f"What the rows are: {', '.join(COLUMNS)}; or dimensions of the counter, such as page,country."
    " Default: key with top; else day, or counter of all counters.",
    {"type": "string", "pattern": f"^{_NAMES}$", "examples": [*COLUMNS, "page,country"]},
)
WHERE: Final = Parameter(
    "where",
    read_where,
    "Only events with this value of a dimension: DIMENSION=VALUE; may be given several times, of"
    " other dimensions. An empty value: those without one.",
    {"type": "string", "pattern": f"^{_NAME}=", "examples": ["country=DE"]},
    repeatable=True,
    most=MAX_DIMENSIONS,
)
TOP: Final = number("top", 1, MAX_NAMES, "The so many keys or counters with the largest totals.")
N: Final = number("n", 1, MAX_NAMES, "How many keys.", default=DEFAULT_TOP)


def _days(text: str) -> tuple[date, date]:
    start, _, end = text.partition("..")
    try:
        found = read_day(start), read_day(end)
    except ValueError:
        found = date.max, date.min
    if found[1] < found[0]:
        raise ValueError("give two days, such as 2026-10-01..2026-10-31")
    return found


ALSO: Final = Parameter(
    "also",
    _days,
    "Other days, FIRST..LAST: what each of the keys has in these is in `also` of its"
    " row, in this order; null where that cannot be told. Not for CSV.",
    {"type": "string", "examples": ["2026-10-01..2026-10-31"]},
    repeatable=True,
    most=4,
)
AGAINST: Final = choice(
    "against",
    ("previous",),
    "Beside each total that of the window of the same length before, in `previous`; null where that"
    " cannot be told. With `last`, or with both `from` and `to`; not for series.",
)
UNIQUE: Final = flag(
    "unique",
    "How many different members there were, of one counter, in `total`; it is exact, or, where"
    " `estimate` is true, lies between `low` and `high` with 95 %. Not with `include_pending`,"
    " `against` and `also`.",
)
_RANGE: Final = (SINCE, UNTIL, LAST, TIME_ZONE)
_REST: Final = (INCLUDE_PENDING, FORMAT, SPREADSHEET)
_SERIES: Final = (*PICKED, WHERE, *_RANGE, UNIQUE, *_REST)
_TOTALS: Final = (BY, *PICKED, WHERE, *_RANGE, UNIQUE, TOP, AGAINST, *_REST)
_TOP: Final = (N, BY, *PICKED, WHERE, *_RANGE, UNIQUE, ALSO, AGAINST, *_REST)


async def totals(
    request: Request, services: Services, who: Identity, by: str | None = None
) -> Response:
    """Totals of a counter or of all, by what the query says, or else ``by``."""
    given = request.scope["countersink.given"]
    counter = own_counter(request, who) if "counter" in request.path_params else None
    query = _query(counter, who, given if by is None else {**given, "by": (by, ())})
    pending, spreadsheet = query.include_pending, given["spreadsheet"]
    csv = wants_csv(request, given["format"])
    if spreadsheet and not csv:
        raise refuse("spreadsheet", "it goes with format=csv")
    if query.also and csv:
        raise refuse("also", "it goes with format=json")

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

    # Laying out a long answer takes a while, too: in the thread.
    return await services.read_pool.run(request, who, answer, pending=pending)


def _query(counter: str | None, who: Identity, given: Mapping[str, Any]) -> Query:
    top = given.get("top") or given.get("n")
    standard = "counter" if counter is None else "key" if top else "day"
    by, dimensions = given.get("by") or (standard, ())
    if top and by not in ("key", "counter", DIMENSIONS):
        raise refuse("top", f"it goes with by=key, by=counter or dimensions, not by={by}")
    if given.get("also") and by != "key":
        raise refuse("also", "it goes with keys, not with dimensions")
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
    """What the document says of a limit, which is a header, too."""
    return words(FRESHNESS[name][1])


class TotalRow(msgspec.Struct):
    """A total, and what it is of; also the values of dimensions, by their names."""

    total: int
    counter: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    day: Day | UnsetType = UNSET
    hour: Annotated[str, words("With its UTC offset: 2026-11-21T08:00+01:00")] | UnsetType = UNSET
    minute: Annotated[str, words("With its UTC offset: 2026-11-21T08:17+01:00")] | UnsetType = UNSET
    month: Annotated[str, words("Such as 2026-11.")] | UnsetType = UNSET
    previous: Annotated[int | None, words("With `against`: in the window before.")] | UnsetType = (
        UNSET
    )
    also: Annotated[list[int | None], words("In the days of `also`.")] | UnsetType = UNSET
    estimate: Annotated[bool, words("With `unique`: `total` is an estimate.")] | UnsetType = UNSET
    low: Annotated[int, words("With `unique`: at least so many, with 95 %.")] | UnsetType = UNSET
    high: Annotated[int, words("With `unique`: at most so many, with 95 %.")] | UnsetType = UNSET


class TotalsWindow(Closed, rename={"start": "from", "end": "to"}):
    """What `last` meant: days, both inclusive, or times in UTC, without the second one."""

    start: str
    end: str


class TotalList(Closed):
    """Totals, and how fresh and how whole they are."""

    counter: Annotated[str | None, words("null: all of them")]
    rows: list[TotalRow]
    rolled_up_to: Annotated[
        Day | None, words("Days before this one are in months; null: no day is.")
    ]
    truncated: Annotated[bool, _limit("truncated")]
    complete_up_to: Annotated[
        Time | None, words("Everything that reached Redis before this time is in the rows.")
    ]
    window: TotalsWindow | UnsetType = UNSET
    since: Annotated[Time, _limit("since")] | UnsetType = UNSET
    told_from: Annotated[str, _limit("told_from")] | UnsetType = UNSET


_SCRAPE_COUNTERS: Final = Parameter(
    "counter",
    check_counter,
    "A counter; may be given several times, and has to be given once.",
    COUNTER_NAME,
    repeatable=True,
    most=MAX_COUNTERS,
    required=True,
)
_SCRAPE_TOP: Final = number(
    "top", 1, 1_000, "One sample for each of the so many keys with the largest totals."
)
_SCRAPE: Final = (_SCRAPE_COUNTERS, KEYS, _SCRAPE_TOP, INCLUDE_PENDING)


async def openmetrics(request: Request, services: Services, who: Identity) -> Response:
    """Totals as ``countersink_events_total{counter="…"}``."""
    given = request.scope["countersink.given"]
    names = list(dict.fromkeys(given["counter"]))
    if not names:
        raise refuse("counter", f"choose 1 to {MAX_COUNTERS} counters")
    keys = list(dict.fromkeys(given["key"]))
    if keys and given["top"]:
        raise refuse("top", "give key or top, not both")
    if len(names) * max(len(keys), given["top"] or 1) > MAX_SAMPLES:
        raise refuse("counter", f"that could be more than {MAX_SAMPLES:,} samples: ask for less")
    for name in names:
        require_own(name, who)
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
                # One that was not counted yet fails no scrape of the others.
                with suppress(UnknownCounter):
                    selection = replace(query.selection, counter=name)
                    found[name] = moment.ask(replace(query, selection=selection))
        return found, moment.complete_up_to

    def answer() -> Response:
        # All counters are of one moment: the queue is read once for them, and so are their tables.
        with read_problems(without_pending=not pending):
            found, up_to = services.reads.read(asked, query)
            if not found:
                raise UnknownCounter("nothing was ever counted as any of these")
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
        responses=read_responses(TotalList, one=True),
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
                "OpenMetrics 1.0 text. A counter that nothing was ever counted as has no sample.",
                {"type": "string"},
                "application/openmetrics-text",
            ),
            "404": "Nothing was ever counted as any of these.",
        },
    ),
)
"""The routes to totals."""
