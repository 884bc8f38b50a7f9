"""Logging in to the dashboard with a key, and out again.

The cookie is out of reach of scripts, is sent by pages of ours alone, and holds 256 random bits of
which the table has the hash. A login ends after ``session_hours``, or with the key.
"""

from typing import Any, Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from countersink.store import web_sessions
from countersink.store.tables import open_tables
from countersink.web import bodies, heads
from countersink.web.credentials import holder_of
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.problem import Problem
from countersink.web.services import Services

MAX_FORM_BYTES: Final = 4_096
FORM: Final = "application/x-www-form-urlencoded"
WRONG: Final = "/login?wrong=1"
"""Where a form without scripts leads after a wrong key."""
HOUR_S: Final = 3_600.0


async def login(request: Request, services: Services, who: Identity) -> Response:
    """``POST /login``: a form with a key."""
    text = await _form_key(request, services)
    client: str = request.scope["countersink.client"]
    known = await holder_of(text, client, services.register, services.failures)
    if known is None or not known.identity.may("read"):
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(WRONG, 303)
        raise Problem(403, "The key is wrong, revoked or expired, or has not the scope read")
    key_id = known.identity.key_id
    seconds = services.options.session_hours * HOUR_S
    token = await services.run(_begin, services.options.mysql_url, key_id, seconds)
    await services.register.look_again()
    services.register.note_use(key_id)
    name = services.cookie.name(request.scope["scheme"])
    return _sent_on(request, "/", name, token, int(seconds))


async def logout(request: Request, services: Services, who: Identity) -> Response:
    """``POST /logout``: ends the login of the cookie."""
    scheme = request.scope["scheme"]
    name = services.cookie.name(scheme)
    shown = services.cookie.shown(heads.read(request.scope), scheme)
    if shown is not None:
        token_hash = web_sessions.hash_of(shown[1])
        if services.register.login(token_hash) is not None:
            name = shown[0]  # else it may be that of another installation
        services.register.forget_login(token_hash)
        await services.run(_end, services.options.mysql_url, token_hash)
    return _sent_on(request, "/login", name, "", 0)


async def _form_key(request: Request, services: Services) -> str:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Problem(415, f"Send a form: {FORM}")
    body = await bodies.read(request, services, MAX_FORM_BYTES)
    try:
        fields = parse_qs(body.decode("ascii"), strict_parsing=bool(body), max_num_fields=4)
    except ValueError:
        raise Problem(400, "The form cannot be read") from None
    keys = fields.get("key", [])
    if len(keys) != 1:
        raise Problem(422, "The form has one field, key, with a key in it")
    return keys[0].strip()


def _begin(mysql_url: str, key_id: str, seconds: float) -> str:
    with open_tables(mysql_url) as session:
        return web_sessions.create(session, key_id, seconds)


def _end(mysql_url: str, token_hash: bytes) -> None:
    with open_tables(mysql_url) as session:
        web_sessions.end(session, token_hash)


def _sent_on(request: Request, path: str, name: str, token: str, seconds: int) -> Response:
    response = RedirectResponse(path, 303)
    response.set_cookie(
        name,
        token,
        max_age=seconds,
        path="/",
        secure=request.scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )
    return response


_FORM_OPERATION: Final[dict[str, Any]] = {
    "summary": "Log in to the dashboard with a key",
    "requestBody": {
        "required": True,
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "required": ["key"],
                    "properties": {"key": {"type": "string"}},
                }
            }
        },
    },
    "responses": {},
}

DOORS: Final[tuple[Door, ...]] = (
    Door(
        method="POST",
        path="/login",
        handler=login,
        scope=None,
        operation=_FORM_OPERATION,
        hidden=True,
    ),
    Door(method="POST", path="/logout", handler=logout, scope=None, hidden=True),
)
