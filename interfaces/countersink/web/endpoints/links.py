"""``/v1/links`` (make, list, revoke links to one counter) and the page ``/shared``: members, days
by default, texts of 404 and 422; form of tokens: ``store/api_keys.py``, most links:
``store/links.py``.

The token is in the part of the address behind ``#``, which browsers send to nobody: neither a
proxy's log nor the header Referer has it. The page sends it as ``Authorization: Bearer``.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.runtime.texts import iso
from countersink.store import links
from countersink.store.errors import NoSuchLink, TooManyLinks
from countersink.store.links import ShareLink
from countersink.web.auth.register import Identity
from countersink.web.endpoints.counters import require_counter
from countersink.web.endpoints.pages import page
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import Closed, Time, json_body, words
from countersink.web.http.parameters import COUNTER_NAME, require_own
from countersink.web.services import Services

DEFAULT_DAYS: Final = 7


class LinkAsked(Closed):
    """Which link to make."""

    counter: Annotated[str, Meta(pattern=COUNTER_NAME["pattern"])]
    days: Annotated[int, Meta(ge=1, le=links.MOST_DAYS)] = DEFAULT_DAYS


class Link(Closed):
    """A link, without its token."""

    id: str
    counter: str
    key: Annotated[str | None, words("id of the key it was made with")]
    created: Time
    expires: Time


class NewLink(Link):
    """A link that was made just now."""

    token: Annotated[str, words("shown once: send it as a Bearer key")]
    path: Annotated[str, words("behind the address of the server: the link")]


class LinkList(Closed):
    """Links that are valid, without their tokens."""

    rows: list[Link]


async def create(request: Request, services: Services, who: Identity) -> Response:
    """``POST /v1/links``."""
    asked = await read_object(request, services, LinkAsked)
    counter = require_own(asked.counter, who)
    await require_counter(request, services, who, counter)
    expires = datetime.now(UTC) + timedelta(days=asked.days)
    try:
        made, token = await services.run_in_session(
            links.create, counter, expires, api_key=who.key_id
        )
    except TooManyLinks as error:
        raise Problem(409, str(error)) from None
    document = {**_document(made), "token": token, "path": links.path_of(counter, token)}
    return JSONResponse(document, 201)


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/links``."""
    found = await services.run_in_session(links.list_links)
    return JSONResponse({"rows": [_document(one) for one in found if _is_theirs(one, who)]})


async def revoke(request: Request, services: Services, who: Identity) -> Response:
    """``DELETE /v1/links/{id}``."""
    id = request.path_params["id"]
    found = await services.run_in_session(links.list_links)
    if not any(one.id == id and _is_theirs(one, who) for one in found):
        raise Problem(404, "There is no such link, or no longer")
    with suppress(NoSuchLink):  # ended meanwhile
        await services.run_in_session(links.revoke, id)
    await services.register.look_again()
    return Response(status_code=204)


async def shared_page(request: Request, services: Services, who: Identity) -> Response:
    """``GET /shared``: the dashboard's page, for whoever has a link."""
    answer = page(request, "index.html")
    answer.headers["Referrer-Policy"] = "no-referrer"
    answer.headers["X-Robots-Tag"] = "noindex"
    return answer


def _is_theirs(link: ShareLink, who: Identity) -> bool:
    own = link.api_key == who.key_id
    return who.may_name(link.counter) and (own or who.may("admin"))


def _document(link: ShareLink) -> dict[str, Any]:
    return {
        "id": link.id,
        "counter": link.counter,
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
        summary="Make a link that shows a counter, read-only, until it ends",
        description="It ends with the key that it is made with, too.",
        body=json_body(LinkAsked),
        responses={
            "201": NewLink,
            "404": "Nothing was ever counted under this name.",
            "409": "There are as many links as there may be.",
        },
    ),
    Route(
        "GET",
        "/v1/links",
        listed,
        scope="read",
        name="links",
        summary="The links that are valid: one's own, or with the scope admin all",
        responses={"200": LinkList},
    ),
    Route(
        "DELETE",
        "/v1/links/{id}",
        revoke,
        scope="read",
        name="revokeLink",
        summary="End a link: within two seconds it is refused",
        responses={
            "204": "It has ended.",
            "404": "There is no such link, or no longer.",
        },
    ),
    Route("GET", links.PAGE, shared_page, scope=None, hidden=True),
)
"""The routes to links."""
