"""The endpoints ``/v1/boards``, which create, list, show, change and delete boards. See
``store/boards.py`` for their limits.

A key that is limited to some counters sees a board only if it may name all counters of the board.
Such a key cannot create, change or delete a board, even one with only these counters, because links
to a board show whatever is on it. Only an admin key without such a limit can.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.counting.errors import UnknownCounter
from countersink.runtime.texts import iso
from countersink.store import boards
from countersink.store.boards import Board, BoardItem
from countersink.store.errors import BoardRefused, NoSuchBoard
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import Closed, Time, doc, json_body
from countersink.web.read_pool import sentence
from countersink.web.services import Services

T = TypeVar("T")


class BoardItems(Closed):
    """The items of a board, in the order in which they are shown."""

    items: Annotated[list[BoardItem], Meta(min_length=1, max_length=boards.MAX_ITEMS)]


class NewBoard(BoardItems):
    """The board to create."""

    board: Annotated[str, Meta(extra_json_schema={"pattern": boards.NAME.pattern})]


class BoardDocument(Closed):
    """A board."""

    board: str
    items: list[BoardItem]
    author: Annotated[str | None, doc("name of the key that changed it last")]
    changed: Time


class BoardList(Closed):
    """Boards, sorted by name."""

    rows: list[BoardDocument]


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/boards`` with the boards all of whose counters the key may name."""
    found = await services.run_in_session(boards.list_boards)
    may_name = cache(who.may_name)  # few counters are on many boards
    seen = (board for board in found if all(map(may_name, boards.counters_of(board))))
    return JSONResponse({"rows": [_document(board, who) for board in seen]})


async def shown(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/boards/{board}`` with a board; 404 if it does not exist or the key may not
    name all of its counters, 403 if the request has a link to something else."""
    name = request.path_params["board"]
    if who.link and who.board != name:
        raise Problem(403, "A link shows its counter only, or its board only")
    board = await _run(services, boards.show, name)
    if not all(map(who.may_name, boards.counters_of(board))):
        raise Problem(404, f"There is no board {name!r}")
    return JSONResponse(_document(board, who))


async def create(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /v1/boards``: create a board with the name and the items in the body, and
    return it (201); 404 if a counter does not exist, 409 if the name is taken or there are too many
    boards."""
    asked = await read_object(request, services, NewBoard)
    made = await _run(services, boards.create, asked.board, asked.items, _author(who))
    return JSONResponse(_document(made, who), 201)


async def change(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``PUT /v1/boards/{board}``: replace the items of a board by those in the body, and
    return the board; 404 if the board or a counter does not exist. Links to the board then give
    access to its new counters, and no longer to the others."""
    asked = await read_object(request, services, BoardItems)
    name = request.path_params["board"]
    made = await _run(services, boards.change, name, asked.items, _author(who))
    await services.register.refresh()  # its links have other counters now
    return JSONResponse(_document(made, who))


async def delete(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``DELETE /v1/boards/{board}``: delete a board and its links (204); 404 if it does not
    exist."""
    await _run(services, boards.delete, request.path_params["board"])
    await services.register.refresh()
    return Response(status_code=204)


def _author(who: Identity) -> str:
    return who.name if who.key_id else ""


async def _run(services: Services, work: Callable[..., T], *args: Any) -> T:
    """Call ``work``, a function of ``store/boards.py``, with a new session and ``args`` in a
    thread, and return its result.

    Raises:
        Problem: 404 the board or a counter does not exist; 409 the name is taken, or there are too
            many boards; 422 the name or the number of items is not valid.
    """
    try:
        return await services.run_in_session(work, *args)
    except (NoSuchBoard, UnknownCounter) as error:
        raise Problem(404, sentence(error)) from None
    except BoardRefused as error:
        raise Problem(409, sentence(error)) from None
    except ValueError as error:
        raise Problem(422, sentence(error)) from None


def _document(board: Board, who: Identity) -> dict[str, Any]:
    return {
        "board": board.name,
        "items": msgspec.to_builtins(board.items),
        "author": None if who.link else board.author or None,
        "changed": iso(board.changed),
    }


_MISSING: Final = {"404": "The board does not exist, or the key may not name all of its counters."}
_change: Final = partial(Route, scope="admin", installation_wide=True)

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/boards",
        listed,
        scope="read",
        name="boards",
        summary="The boards of the dashboard whose counters the key may name",
        responses={"200": BoardList},
    ),
    _change(
        "POST",
        "/v1/boards",
        create,
        name="createBoard",
        summary="Create a board: a page of the dashboard that shows several counters",
        body=json_body(NewBoard),
        responses={
            "201": BoardDocument,
            "404": "A counter of the board does not exist.",
            "409": "A board of this name exists, or the maximum number of boards is reached.",
        },
    ),
    Route(
        "GET",
        "/v1/boards/{board}",
        shown,
        scope="read",
        shared=True,
        name="board",
        summary="A board: its counters, and how they are shown",
        responses={"200": BoardDocument, **_MISSING},
    ),
    _change(
        "PUT",
        "/v1/boards/{board}",
        change,
        name="changeBoard",
        summary="Replace the items of a board; its links show the new counters",
        body=json_body(BoardItems),
        responses={"200": BoardDocument, "404": "The board or one of its counters does not exist."},
    ),
    _change(
        "DELETE",
        "/v1/boards/{board}",
        delete,
        name="deleteBoard",
        summary="Delete a board and its links; its counters stay",
        responses={"204": "The board is deleted.", "404": "The board does not exist."},
    ),
)
"""The routes of boards."""
