"""``/v1/counters/{counter}/notes`` and ``/v1/notes``: read, write and delete notes on days, with
statuses and texts; limits of notes are in ``store/counters/notes.py``."""

from collections.abc import Sequence
from datetime import UTC, date
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.reads.formats import iso
from countersink.store.counters import notes
from countersink.store.counters.notes import EVERY, DayNote
from countersink.store.errors import TooManyNotes
from countersink.web.auth.register import Identity
from countersink.web.endpoints.counters import require_counter
from countersink.web.errors import Problem
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import NOT_VALID, closed_object, json_body, json_response
from countersink.web.http.parameters import COUNTER, END, START, day, own_counter, read_parameters
from countersink.web.http.route import Route
from countersink.web.services import Services


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    note: str


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """The notes on a counter's days, and those on the days of all counters."""
    given = read_parameters(request, (START, END))
    counter = await _known_counter(request, services, who)
    # Whoever has a link to one counter sees what is of that counter alone.
    names = [EVERY] if counter == EVERY else [counter] if who.link else [counter, EVERY]
    found = await services.run_in_session(notes.notes, names, given["from"], given["to"])
    return JSONResponse({"rows": [_document(one) for one in found]})


async def write(request: Request, services: Services, who: Identity) -> Response:
    """Write the note on a day, in place of one that is there."""
    read_parameters(request, ())
    day = _day(request)
    # Before the look at the counter, which takes from the client what it does not wait for.
    asked = await read_object(request, services, _Asked)
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
    read_parameters(request, ())
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
        return day(request.path_params["day"])
    except ValueError as error:
        raise Problem(422, f"The day: {error}") from None


def _document(note: DayNote) -> dict[str, Any]:
    return {
        "counter": note.counter or None,
        "day": note.day.isoformat(),
        "note": note.note,
        "author": note.author or None,
        "changed": iso(note.changed.replace(tzinfo=UTC)),
    }


_NOTE: Final = closed_object(
    {
        "counter": {"type": ["string", "null"], "description": "null: of all counters"},
        "day": {"type": "string", "format": "date"},
        "note": {"type": "string"},
        "author": {"type": ["string", "null"], "description": "name of the key that wrote it"},
        "changed": {"type": "string", "format": "date-time"},
    }
)
_LIST: Final = closed_object({"rows": {"type": "array", "items": _NOTE}})
_BODY: Final = closed_object(
    {"note": {"type": "string", "minLength": 1, "maxLength": notes.MAX_NOTE}}
)
_DAY: Final = {
    "name": "day",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "format": "date"},
}


def _routes(of: str, path: str, parameters: Sequence[Any], **more: Any) -> tuple[Route, ...]:
    """The routes to the notes of one counter, or of all."""
    name, words = ("Note", "a counter's") if "{" in path else ("CommonNote", "every counter's")
    missing = {"404": {"description": "There is no such counter, or no note on this day."}}
    not_valid = {"422": NOT_VALID}
    on_day = [*parameters, _DAY]
    days = [START.document(), END.document()]
    return (
        Route(
            "GET",
            path,
            listed,
            scope="read",
            shared=bool(parameters),
            operation={
                "operationId": f"{of}Notes",
                "tags": ["notes"],
                "summary": f"The notes on {words} days",
                "parameters": [*parameters, *days],
                "responses": {
                    "200": json_response("Notes, by day.", _LIST),
                    **missing,
                    **not_valid,
                },
            },
        ),
        Route(
            "PUT",
            f"{path}/{{day}}",
            write,
            scope="admin",
            operation={
                "operationId": f"put{name}",
                "tags": ["notes"],
                "summary": f"Write the note on one of {words} days",
                "parameters": on_day,
                "requestBody": json_body(_BODY),
                "responses": {
                    "200": json_response("The note.", _NOTE),
                    "409": {"description": "There are as many notes as there may be."},
                    **missing,
                    **not_valid,
                },
            },
            **more,
        ),
        Route(
            "DELETE",
            f"{path}/{{day}}",
            delete,
            scope="admin",
            operation={
                "operationId": f"delete{name}",
                "tags": ["notes"],
                "summary": f"Delete the note on one of {words} days",
                "parameters": on_day,
                "responses": {"204": {"description": "It is gone."}, **missing, **not_valid},
            },
            **more,
        ),
    )


ROUTES: Final[tuple[Route, ...]] = (
    *_routes("counter", "/v1/counters/{counter}/notes", [COUNTER]),
    *_routes("common", "/v1/notes", [], whole=True),
)
"""The routes to notes."""
