"""``/v1/counters/{counter}/notes`` and ``/v1/notes``: read, write and delete notes on days, with
statuses and texts; limits of notes are in ``store/notes.py``."""

from dataclasses import asdict
from datetime import date
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.runtime.times import iso, read_day
from countersink.store import notes
from countersink.store.errors import TooManyNotes
from countersink.store.notes import EVERY, DayNote
from countersink.web.auth.register import Identity
from countersink.web.endpoints.counters import require_counter
from countersink.web.errors import Problem
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import Closed, Day, Time, json_body, words
from countersink.web.http.parameters import END, START, own_counter
from countersink.web.http.route import Route
from countersink.web.services import Services


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


ROUTES: Final[tuple[Route, ...]] = (
    *_routes("/v1/counters/{counter}/notes", one=True),
    *_routes("/v1/notes", one=False),
)
"""The routes to notes."""
