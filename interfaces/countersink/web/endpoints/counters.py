"""The endpoints ``/v1/counters``, the list of counters, and ``/v1/counters/{counter}``, the
settings of one. Also ``/v1/counters/{counter}/notes`` and ``/v1/notes``, notes on days. See
``store/notes.py`` for limits of notes."""

from dataclasses import asdict, replace
from datetime import date
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.counting.counters.all_counters import BETTER, Better, read_better
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.settings import Counter
from countersink.metrics.health import CachedAnswer
from countersink.reads import ANYTHING, Moment
from countersink.reads.formats import counter_document
from countersink.reads.overview import (
    CHANGES,
    MAX_DAYS,
    SORTS,
    Overview,
    OverviewLine,
    OverviewQuery,
    SortValues,
    overview,
    sort_values,
)
from countersink.runtime.limits import MAX_COUNTER_LENGTH
from countersink.runtime.texts import iso, read_day
from countersink.store import notes
from countersink.store.errors import TooManyNotes
from countersink.store.notes import ALL_COUNTERS, DayNote
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.http.answers import freshness, json_answer
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import Closed, Day, Time, doc, json_body, read_responses
from countersink.web.http.parameters import (
    END,
    INCLUDE_PENDING,
    START,
    choice,
    flag,
    number,
    permitted_counter,
    short_text,
)
from countersink.web.read_pool import read_problems
from countersink.web.services import Services

MAX_COUNTERS: Final = 1_000
"""Maximum number of counters in one answer."""
KEPT_S: Final = 2.0
"""Minimum seconds for which the numbers by which counters are sorted are kept."""
KEPT_FACTOR: Final = 20.0
"""The numbers by which counters are sorted are kept for the duration of their read times this
factor, if that is longer."""
_DEFAULT_COUNTERS: Final = 100
_DEFAULT_DAYS: Final = 14
_part_of_name: Final = partial(short_text, whose="a counter's name", most=MAX_COUNTER_LENGTH)
_PARAMETERS: Final = (
    _part_of_name("search", description="Only counters whose names contain this."),
    choice(
        "sort",
        SORTS,
        "`counter`: by name; else largest first: `today`: today's total; `total`: the total of all"
        " time; `change`: the last complete days (without today) relative to the days before,"
        " first counters with nothing in those. Counters without such a number come last. The order"
        " may be some seconds old.",
        default=SORTS[0],
    ),
    choice(
        "change",
        map(str, CHANGES),
        "Adds to each row the totals of so many last complete days and of as many days before."
        f" Also the days of `sort=change`, else {CHANGES[0]}.",
    ),
    flag("reverse", "Reverse the order."),
    _part_of_name("after", description="Only counters after this one: `next` of the last page."),
    number("limit", 1, MAX_COUNTERS, "Counters in this page.", default=_DEFAULT_COUNTERS),
    number(
        "days",
        0,
        MAX_DAYS,
        "Number of last days of each counter, in its time zone; 0: none.",
        default=_DEFAULT_DAYS,
    ),
    flag("totals", "Whether rows have the total of all time.", default=True),
    INCLUDE_PENDING,
)


async def counters(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/counters``: a page of the counters that the key may name, with totals."""
    given = request.scope["countersink.given"]
    sort, pending, change = given["sort"], given["include_pending"], int(given["change"] or 0)
    order = (sort, change or CHANGES[0]) if sort == "change" else (sort,)
    values = None if sort == SORTS[0] else services.single(cached_sort_values)[order]

    def answer() -> Response:
        with read_problems():
            query = OverviewQuery(
                search=given["search"],
                after=given["after"],
                limit=given["limit"],
                days=given["days"],
                totals=given["totals"],
                change=change,
                visible=who.may_name,
                reverse=given["reverse"],
                sort_values=None if values is None else values.get(),
            )
            page, better, complete = services.reads.read(
                lambda moment: _page(moment, query),
                replace(ANYTHING, include_pending=pending),
            )
        content = {
            "rows": [
                _row(line, better.get(line.counter, BETTER[0]))
                | ({"change": line.change} if change else {})
                for line in page.lines
            ],
            "counters": page.counters,
            "next": page.lines[-1].counter if page.more else None,
        }
        limits = {"complete_up_to": complete}
        return json_answer(request, content, limits, freshness(limits), pending=pending)

    return await services.read_pool.run(request, who, answer, pending=pending)


def _page(moment: Moment, query: OverviewQuery) -> tuple[Overview, dict[str, Better], str | None]:
    page = overview(moment.snapshot, query)
    better = read_better(moment.snapshot.session, [line.counter for line in page.lines])
    return page, better, iso(moment.complete_up_to)


def _row(line: OverviewLine, better: Better) -> dict[str, Any]:
    days = line.days
    return {
        "counter": line.counter,
        "time_zone": line.time_zone,
        "resolution": line.resolution,
        "better": better,
        "total": line.total,
        "today": days[-1][1] if days else None,
        "days": days and [{"day": day.isoformat(), "total": total} for day, total in days],
    }


def cached_sort_values(services: Services) -> dict[tuple[Any, ...], CachedAnswer[SortValues]]:
    """Return a cached answer for each sort order by numbers: ``("today",)``, ``("total",)`` and
    ``("change", days)`` for each of :data:`CHANGES`. It has the numbers of all counters; they are
    read when :func:`counters` needs them and the last read is too old. All pages share a read."""

    def ask(*order: Any) -> SortValues:
        return services.reads.read(lambda moment: sort_values(moment.snapshot, *order))

    seconds = services.options.read_timeout_s
    return {
        order: CachedAnswer(
            partial(ask, *order), kept_s=KEPT_S, within_s=seconds, kept_factor=KEPT_FACTOR
        )
        for order in (("today",), ("total",), *(("change", days) for days in CHANGES))
    }


async def counter(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/counters/{counter}`` with a counter's settings; 404 if it does not exist."""
    found = await require_counter(request, services, who, permitted_counter(request, who))
    return json_answer(request, counter_document(found), {}, {}, pending=False)


async def require_counter(
    request: Request, services: Services, who: Identity, name: str
) -> Counter:
    """Return the counter ``name``, read in the read pool, without a check that ``who`` may name it.
    The body of the request must have been read before: the pool would consume it.

    Raises:
        Problem: 404 no such counter; 429 too many unfinished reads of this client; 503 too slow.
        StoreError: MySQL does not answer.
    """

    def read() -> Counter:
        with read_problems():
            return services.store.counters.show(name)

    return await services.read_pool.run(request, who, read)


class DayTotal(Closed):
    """A day and its total."""

    day: Day
    total: int


_BETTER: Final = doc("Whether a rise is good (`up`), bad (`down`) or neither (`none`).")


class CounterRow(Closed):
    """A counter in the list of counters."""

    counter: str
    time_zone: str
    resolution: Resolution
    better: Annotated[Better, _BETTER]
    total: Annotated[int | None, doc("null: not asked for")]
    today: int | None
    days: Annotated[
        list[DayTotal] | None,
        doc("Today is the last. null: not asked for, or not known by days."),
    ]
    change: (
        Annotated[
            tuple[int, int] | None,
            doc("`change`: totals of the last days and of those before; null: unknown."),
        ]
        | UnsetType
    ) = UNSET


class CounterList(Closed):
    """A page of the list of counters."""

    rows: list[CounterRow]
    counters: Annotated[
        int | None,
        doc("Number of counters found; null: sorted by name, and more than about 10,000."),
    ]
    next: Annotated[str | None, doc("`after` of the next page; null: this is the last.")]
    complete_up_to: Time | None


class CounterBreakdown(Closed):
    """A breakdown of a counter: its dimensions, and since when it counts events."""

    dimensions: list[str]
    since: Annotated[Time | None, doc("It has the events from then on; null: all events.")]


class CounterSettings(msgspec.Struct):
    """The settings of a counter."""

    counter: str
    time_zone: str
    resolution: Resolution
    keep: Annotated[
        dict[str, str] | None,
        doc(
            "Time for which buckets of each width are kept, such as"
            ' `{"minute": "2d", "day": "400d"}`; null: for ever.'
        ),
    ]
    max_keys: Annotated[int | None, doc("The counter's own limit; null: the common one.")]
    most_keys: Annotated[int | None, doc("The limit in force; null: none.")]
    overflown: Annotated[int, doc("Today's amount in the key __overflow__.")]
    app_slots: int
    rolled_up_to: Annotated[
        dict[str, str],
        doc(
            "Time before which finer buckets are rolled up to each width, such as"
            ' `{"hour": "2026-11-01T00:00Z"}`.'
        ),
    ]
    made: bool
    dimensions: list[str]
    breakdowns: list[CounterBreakdown]
    salt_days: Annotated[
        int | None,
        doc("Days for which a salt is used, 0: for ever; null: it counts no different members."),
    ]
    better: Annotated[Better, _BETTER]


ROUTES: Final = (
    Route(
        "GET",
        "/v1/counters",
        counters,
        scope="read",
        parameters=_PARAMETERS,
        name="counters",
        summary="The list of counters, with totals and last days",
        responses=read_responses(CounterList, csv=False),
    ),
    Route(
        "GET",
        "/v1/counters/{counter}",
        counter,
        scope="read",
        shared=True,
        name="counter",
        summary="The settings of a counter",
        responses=read_responses(CounterSettings, csv=False, of_counter=True),
    ),
)
"""The routes of counters."""


class NoteText(Closed):
    """The text of a note."""

    note: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": notes.MAX_NOTE})]


class Note(Closed):
    """A note on a day."""

    counter: Annotated[str | None, doc("null: a note on all counters")]
    day: Day
    note: str
    author: Annotated[str | None, doc("name of the key that wrote it")]
    changed: Time


class NoteList(Closed):
    """Notes, sorted by day."""

    rows: list[Note]


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET …/notes`` with notes on the days ``from`` to ``to``, inclusive. For the path of
    a counter, they are the notes on this counter and, unless the request has a link, those common
    to all counters. For ``/v1/notes`` they are only those common to all counters."""
    given = request.scope["countersink.given"]
    counter = await _existing_counter(request, services, who)
    # A link gives access to its counter's own notes only.
    names = (
        [ALL_COUNTERS]
        if counter == ALL_COUNTERS
        else [counter]
        if who.link
        else [counter, ALL_COUNTERS]
    )
    found = await services.run_in_session(notes.notes, names, given["from"], given["to"])
    return JSONResponse({"rows": [_document(note, who) for note in found]})


async def write(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``PUT …/notes/{day}``: write or replace the note on a day, and return the note."""
    day = _day(request)
    # First the body: the read pool, which finds the counter, would consume it.
    asked = await read_object(request, services, NoteText)
    counter = await _existing_counter(request, services, who)
    try:
        text = notes.checked_note(asked.note)
        made = await services.run_in_session(notes.put, counter, day, text, who.name)
    except TooManyNotes as error:
        raise Problem(409, str(error)) from None
    except ValueError as error:
        raise Problem(422, str(error)) from None
    return JSONResponse(_document(made, who))


async def delete(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``DELETE …/notes/{day}``: delete the note on a day (204); 404 if there is none."""
    counter = _counter(request, who)
    day = _day(request)
    if not await services.run_in_session(notes.delete, counter, day):
        raise Problem(404, "There is no note on this day")
    return Response(status_code=204)


def _counter(request: Request, who: Identity) -> str:
    if "counter" not in request.path_params:
        return ALL_COUNTERS
    return permitted_counter(request, who)


async def _existing_counter(request: Request, services: Services, who: Identity) -> str:
    counter = _counter(request, who)
    if counter != ALL_COUNTERS:
        await require_counter(request, services, who, counter)
    return counter


def _day(request: Request) -> date:
    try:
        return read_day(request.path_params["day"])
    except ValueError as error:
        raise Problem(422, f"The day is not valid: {error}") from None


def _document(note: DayNote, who: Identity) -> dict[str, Any]:
    return asdict(note) | {
        "counter": note.counter or None,
        "day": iso(note.day),
        "author": None if who.link else note.author or None,
        "changed": iso(note.changed),
    }


def _routes(path: str, *, of_counter: bool) -> tuple[Route, ...]:
    """Return the routes of notes, GET ``path``, PUT and DELETE ``path/{day}``: on one counter if
    ``of_counter`` is True, else common to all counters."""
    prefix, name, owner = (
        ("counter", "Note", "a counter") if of_counter else ("common", "CommonNote", "all counters")
    )
    missing = {"404": "There is no such counter, or no note on this day."}
    return (
        Route(
            "GET",
            path,
            listed,
            scope="read",
            shared=of_counter,
            parameters=(START, END),
            name=f"{prefix}Notes",
            summary=f"The notes on days of {owner}",
            responses={"200": NoteList, **missing},
        ),
        Route(
            "PUT",
            f"{path}/{{day}}",
            write,
            scope="admin",
            installation_wide=not of_counter,
            name=f"put{name}",
            summary=f"Write the note on a day of {owner}",
            body=json_body(NoteText),
            responses={"200": Note, "409": "The maximum number of notes is reached.", **missing},
        ),
        Route(
            "DELETE",
            f"{path}/{{day}}",
            delete,
            scope="admin",
            installation_wide=not of_counter,
            name=f"delete{name}",
            summary=f"Delete the note on a day of {owner}",
            responses={"204": "The note is deleted.", **missing},
        ),
    )


NOTE_ROUTES: Final[tuple[Route, ...]] = (
    *_routes("/v1/counters/{counter}/notes", of_counter=True),
    *_routes("/v1/notes", of_counter=False),
)
"""The routes of notes."""
