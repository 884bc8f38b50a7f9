"""The endpoints ``/v1/links``, which create, list and revoke links to a counter or a board; and the
page ``/shared``. See ``store/api_keys.py`` for the form of tokens, ``store/links.py`` for limits.

A link's token is in the fragment of its URL (behind ``#``), which browsers do not send. So neither
a proxy's log nor the header Referer has the token. The page sends it as ``Authorization: Bearer``.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.runtime.texts import iso
from countersink.store import boards, links
from countersink.store.errors import BoardRefused, NoSuchBoard, NoSuchLink, TooManyLinks
from countersink.store.links import ShareLink
from countersink.web.auth.register import Identity
from countersink.web.endpoints.counters import require_counter
from countersink.web.endpoints.pages import load, page
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.http.answers import policy
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import Closed, Time, doc, json_body
from countersink.web.http.parameters import COUNTER_NAME, require_permitted
from countersink.web.read_pool import sentence
from countersink.web.services import Services

DEFAULT_DAYS: Final = 7


class LinkAsked(Closed):
    """The link to create: to a counter, or to a board."""

    counter: Annotated[str, Meta(extra_json_schema=COUNTER_NAME)] | UnsetType = UNSET
    board: Annotated[str, Meta(extra_json_schema={"pattern": boards.NAME.pattern})] | UnsetType = (
        UNSET
    )
    days: Annotated[int, Meta(ge=1, le=links.MAX_DAYS)] = DEFAULT_DAYS


class Link(Closed):
    """A link, without its token."""

    id: str
    counter: Annotated[str | None, doc("null: it shows a board")]
    board: Annotated[str | None, doc("null: it shows a counter")]
    key: Annotated[str | None, doc("id of the key that created it")]
    created: Time
    expires: Time


class NewLink(Link):
    """A new link, with its token."""

    token: Annotated[str, doc("shown once; sent as a Bearer key")]
    path: Annotated[str, doc("the link's path and fragment on this server")]


class LinkList(Closed):
    """Valid links, without their tokens."""

    rows: list[Link]


async def create(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /v1/links``: create a link to a counter that the key may name, or to a board if
    the key is not limited to some counters. Return the link with its token (201). A key without
    these rights gets 403; 404 if the counter or board does not exist; 409 if there are too many
    links, or a counter of the board was deleted; 422 if the body does not name exactly one."""
    asked = await read_object(request, services, LinkAsked)
    if (asked.counter is UNSET) is (asked.board is UNSET):
        raise Problem(422, "Give one of the members counter and board")
    name, make = asked.board, links.create_to_board
    if asked.counter is not UNSET:
        name, make = require_permitted(asked.counter, who), links.create
        await require_counter(request, services, who, name)
    elif who.counters:
        raise Problem(403, "A link to a board needs a key for all counters")
    expires = datetime.now(UTC) + timedelta(days=asked.days)
    try:
        made, token = await services.run_in_session(make, name, expires, api_key=who.key_id)
    except NoSuchBoard as error:
        raise Problem(404, sentence(error)) from None
    except (BoardRefused, TooManyLinks) as error:
        raise Problem(409, sentence(error)) from None
    document = {**_document(made), "token": token, "path": links.path_of(made, token)}
    return JSONResponse(document, 201)


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/links`` with the valid links that the key may revoke. A key with the scope
    admin may revoke all links, another key those that it created. In both cases, links to counters
    that the key may not name are left out, and, if it is limited to some counters, links to boards.
    """
    found = await services.run_in_session(links.list_links)
    return JSONResponse({"rows": [_document(link) for link in found if _may_manage(who, link)]})


async def revoke(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``DELETE /v1/links/{id}``: end a link (204); 404 if it does not exist or has ended, or
    if the key may not revoke it, see :func:`listed`."""
    id = request.path_params["id"]
    found = await services.run_in_session(links.list_links)
    if not any(link.id == id and _may_manage(who, link) for link in found):
        raise Problem(404, "There is no such link, or it has ended")
    with suppress(NoSuchLink):  # it has ended meanwhile
        await services.run_in_session(links.revoke, id)
    await services.register.refresh()
    return Response(status_code=204)


async def shared_page(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /shared`` with the dashboard's page, which shows the counter or board of a link.
    Pages of the origins in the option ``frame_ancestors`` may embed it. This is safe: the page's
    requests have the link's token and no cookie, so an embedding page cannot use a visitor's login.
    """
    answer = page(request, "index.html")
    scripts = load()[1]["index.html"].scripts
    # Also in a 304: the browser's copy may be from before a change of the setting.
    answer.headers["Content-Security-Policy"] = policy(scripts, services.options.frame_ancestors)
    answer.headers["Referrer-Policy"] = "no-referrer"
    answer.headers["X-Robots-Tag"] = "noindex"
    return answer


def _may_manage(who: Identity, link: ShareLink) -> bool:
    is_creator = link.api_key == who.key_id
    may_see = not who.counters if link.board else who.may_name(link.counter)
    return may_see and (is_creator or who.may("admin"))


def _document(link: ShareLink) -> dict[str, Any]:
    return {
        "id": link.id,
        "counter": link.counter or None,
        "board": link.board or None,
        "key": link.api_key or None,
        "created": iso(link.created),
        "expires": iso(link.expires),
    }


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/links",
        create,
        scope="read",
        name="createLink",
        summary="Create a link that gives read access to a counter or a board until it expires",
        description="It also ends with the key that created it. A link to a board shows the"
        " counters that the board has, also after a change of it.",
        body=json_body(LinkAsked),
        responses={
            "201": NewLink,
            "404": "There is no such counter or board.",
            "409": "The maximum number of links is reached, or a counter of the board was deleted.",
        },
    ),
    Route(
        "GET",
        "/v1/links",
        listed,
        scope="read",
        name="links",
        summary="The valid links that the key created; with the scope admin, of all keys",
        responses={"200": LinkList},
    ),
    Route(
        "DELETE",
        "/v1/links/{id}",
        revoke,
        scope="read",
        name="revokeLink",
        summary="End a link; all processes refuse it within two seconds",
        responses={
            "204": "The link has ended.",
            "404": "There is no such link, or it has ended.",
        },
    ),
    Route("GET", links.PAGE, shared_page, scope=None, hidden=True),
)
"""The routes of links."""
