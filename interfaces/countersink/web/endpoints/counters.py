"""``/v1/counters`` and ``/v1/counters/{counter}``: parameters, most counters and days per answer,
members of the rows and settings, how long the sorting is kept. ``/v1/counters/{counter}/notes`` and
``/v1/notes``: read, write and delete notes on days, with statuses and texts; limits of notes are in
``store/notes.py``."""

from dataclasses import asdict, replace
from datetime import date
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.settings import Counter
from countersink.metrics.health import CachedAnswer
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
from countersink.runtime.texts import iso, read_day
from countersink.store import notes
from countersink.store.errors import TooManyNotes
from countersink.store.notes import EVERY, DayNote
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.http.answers import freshness, json_answer
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import Closed, Day, Time, json_body, read_responses, words
from countersink.web.http.parameters import (
    END,
    INCLUDE_PENDING,
    START,
    choice,
    flag,
    number,
    own_counter,
    short_text,
)
from countersink.web.read_pool import read_problems
from countersink.web.services import Services

MAX_COUNTERS: Final = 1_000
"""Counters in one answer."""
KEPT_S: Final = 2.0
"""Seconds for which the order of counters holds, at least."""
REST: Final = 20.0
"""What takes long to ask holds so many times as long."""
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
    sort, pending = given["sort"], given["include_pending"]
    order = None if sort == SORTS[0] else services.one(standings)[sort]

    def answer() -> Response:
        with read_problems():
            glance = Glance(
                search=given["search"],
                after=given["after"],
                limit=given["limit"],
                days=given["days"],
                totals=given["totals"],
                visible=who.may_name,
                reverse=given["reverse"],
                standing=None if order is None else order.get(),
            )
            seen, complete = services.reads.read(
                lambda moment: (overview(moment.snapshot, glance), iso(moment.complete_up_to)),
                replace(ANYTHING, include_pending=pending),
            )
        content = {
            "rows": [_row(line) for line in seen.lines],
            "counters": seen.counters,
            "next": seen.lines[-1].counter if seen.more else None,
        }
        limits = {"complete_up_to": complete}
        return json_answer(request, content, limits, freshness(limits), pending=pending)

    return await services.read_pool.run(request, who, answer, pending=pending)


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


def standings(services: Services) -> dict[str, CachedAnswer[Standing]]:
    """What counters are sorted by, kept for a moment: who goes through many pages asks once."""

    def ask(by: str) -> Standing:
        return services.reads.read(lambda moment: standing(moment.snapshot, by))

    seconds = services.options.read_timeout_s
    return {
        by: CachedAnswer(partial(ask, by), kept_s=KEPT_S, within_s=seconds, rest=REST)
        for by in SORTS[1:]
    }


async def counter(request: Request, services: Services, who: Identity) -> Response:
    """How one counter counts."""
    found = await require_counter(request, services, who, own_counter(request, who))
    return json_answer(request, counter_document(found), {}, {}, pending=False)


async def require_counter(
    request: Request, services: Services, who: Identity, name: str
) -> Counter:
    """The counter that has this name.

    Raises:
        Problem: 404 nothing was ever counted under it; 503 it cannot be told now.
    """

    def look() -> Counter:
        with read_problems():
            return services.store.counters.show(name)

    return await services.read_pool.run(request, who, look)


class DayTotal(Closed):
    """A day, and what it has."""

    day: Day
    total: int


class CounterRow(Closed):
    """A counter in the list of all."""

    counter: str
    time_zone: str
    resolution: Resolution
    total: Annotated[int | None, words("null: not asked for")]
    today: int | None
    days: Annotated[
        list[DayTotal] | None,
        words("Today's is the last. null: not asked for, or not to be told by day."),
    ]


class CounterList(Closed):
    """A page of the list of all counters."""

    rows: list[CounterRow]
    counters: Annotated[
        int | None,
        words("All that the search finds; null: sorted by name, and more than 10,000 or so."),
    ]
    next: Annotated[
        str | None, words("What to give as `after` for the next page; null: this is the last.")
    ]
    complete_up_to: Time | None


class CounterBreakdown(Closed):
    """Dimensions by which a counter counts."""

    dimensions: list[str]
    since: Annotated[Time | None, words("It holds the events from then on; null: all.")]


class CounterSettings(msgspec.Struct):
    """How a counter counts."""

    counter: str
    time_zone: str
    resolution: Resolution
    keep: Annotated[
        dict[str, str] | None,
        words(
            "How long buckets of each width are kept, such as"
            ' `{"minute": "2d", "day": "400d"}`; null: for ever.'
        ),
    ]
    max_keys: Annotated[int | None, words("its own; null: as for all")]
    most_keys: Annotated[int | None, words("in force; null: any number")]
    overflown: Annotated[int, words("of today in the key __overflow__")]
    app_slots: int
    rolled_up_to: Annotated[
        dict[str, str],
        words(
            "Up to when finer buckets are in those of each width, such as"
            ' `{"hour": "2026-11-01T00:00Z"}`.'
        ),
    ]
    made: bool
    dimensions: list[str]
    breakdowns: list[CounterBreakdown]
    salt_days: Annotated[
        int | None,
        words(
            "how many days a salt of its members lasts, 0: for ever; null: its"
            " different members are not counted"
        ),
    ]


ROUTES: Final = (
    Route(
        "GET",
        "/v1/counters",
        counters,
        scope="read",
        parameters=_PARAMETERS,
        name="counters",
        summary="All counters, with totals and last days",
        responses=read_responses(CounterList, csv=False),
    ),
    Route(
        "GET",
        "/v1/counters/{counter}",
        counter,
        scope="read",
        shared=True,
        name="counter",
        summary="How a counter counts",
        responses=read_responses(CounterSettings, csv=False, one=True),
    ),
)
"""The routes to counters."""


class NoteText(Closed):
    """What to write on a day."""

    note: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": notes.MAX_NOTE})]


class Note(Closed):
    """A note on a day."""

    counter: Annotated[str | None, words("null: of all counters")]
    day: Day
    note: str
    author: Annotated[str | None, words("name of the key that wrote it")]
    changed: Time


class NoteList(Closed):
    """Notes, by day."""

    rows: list[Note]


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """The notes on a counter's days, and those on the days of all counters."""
    given = request.scope["countersink.given"]
    counter = await _known_counter(request, services, who)
    # Whoever has a link to one counter sees what is of that counter alone.
    names = [EVERY] if counter == EVERY else [counter] if who.link else [counter, EVERY]
    found = await services.run_in_session(notes.notes, names, given["from"], given["to"])
    return JSONResponse({"rows": [_document(one) for one in found]})


async def write(request: Request, services: Services, who: Identity) -> Response:
    """Write the note on a day, in place of one that is there."""
    day = _day(request)
    # Before the look at the counter, which takes from the client what it does not wait for.
    asked = await read_object(request, services, NoteText)
    counter = await _known_counter(request, services, who)
    try:
        text = notes.checked_note(asked.note)
        made = await services.run_in_session(notes.put, counter, day, text, who.name)
    except TooManyNotes as error:
        raise Problem(409, str(error)) from None
    except ValueError as error:
        raise Problem(422, str(error)) from None
    return JSONResponse(_document(made))


async def delete(request: Request, services: Services, who: Identity) -> Response:
    """Delete the note on a day."""
    counter = _counter(request, who)
    day = _day(request)
    if not await services.run_in_session(notes.delete, counter, day):
        raise Problem(404, "There is no note on this day")
    return Response(status_code=204)


def _counter(request: Request, who: Identity) -> str:
    if "counter" not in request.path_params:
        return EVERY
    return own_counter(request, who)


async def _known_counter(request: Request, services: Services, who: Identity) -> str:
    counter = _counter(request, who)
    if counter != EVERY:
        await require_counter(request, services, who, counter)
    return counter


def _day(request: Request) -> date:
    try:
        return read_day(request.path_params["day"])
    except ValueError as error:
        raise Problem(422, f"The day: {error}") from None


def _document(note: DayNote) -> dict[str, Any]:
    return asdict(note) | {
        "counter": note.counter or None,
        "day": iso(note.day),
        "author": note.author or None,
        "changed": iso(note.changed),
    }


def _routes(path: str, *, one: bool) -> tuple[Route, ...]:
    """The routes to the notes of one counter, or of all."""
    of, name, words = (
        ("counter", "Note", "a counter's") if one else ("common", "CommonNote", "every counter's")
    )
    refused = {"404": "There is no such counter, or no note on this day."}
    return (
        Route(
            "GET",
            path,
            listed,
            scope="read",
            shared=one,
            parameters=(START, END),
            name=f"{of}Notes",
            summary=f"The notes on {words} days",
            responses={"200": NoteList, **refused},
        ),
        Route(
            "PUT",
            f"{path}/{{day}}",
            write,
            scope="admin",
            whole=not one,
            name=f"put{name}",
            summary=f"Write the note on one of {words} days",
            body=json_body(NoteText),
            responses={
                "200": Note,
                "409": "There are as many notes as there may be.",
                **refused,
            },
        ),
        Route(
            "DELETE",
            f"{path}/{{day}}",
            delete,
            scope="admin",
            whole=not one,
            name=f"delete{name}",
            summary=f"Delete the note on one of {words} days",
            responses={"204": "It is gone.", **refused},
        ),
    )


NOTE_ROUTES: Final[tuple[Route, ...]] = (
    *_routes("/v1/counters/{counter}/notes", one=True),
    *_routes("/v1/notes", one=False),
)
"""The routes to notes."""
