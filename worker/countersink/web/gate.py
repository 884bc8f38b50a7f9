"""The gate: what every request goes through before, and every answer after, a door's handler."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from countersink.web import compression, heads, origins
from countersink.web.addresses import Addresses
from countersink.web.credentials import holder_of, shown_key
from countersink.web.door import Door
from countersink.web.failures import answer_of
from countersink.web.headers import complete
from countersink.web.hosts import Hosts, is_loopback, is_of_this_machine
from countersink.web.identity import EVERYBODY, NOBODY, Identity
from countersink.web.limits import Buckets, retry_after
from countersink.web.problem import Problem
from countersink.web.routing import Table
from countersink.web.services import Services

LOGIN_PATH: Final = "/login"
BURST_S: Final = 2.0
"""Seconds of the allowed rate that may come at once."""
_READING: Final = ("GET", "HEAD")
_CHALLENGE: Final = 'Bearer realm="countersink"'
_WHY: Final = (
    "; without one only this machine's own programs are let in, by a name or address of loopback,"
    " with HTTP/1.1 and not through a proxy"
)


class Gate:
    """Lets requests in.

    Args:
        table: the doors.
        services: what their handlers work with.
    """

    def __init__(self, table: Table, services: Services) -> None:
        options = services.options
        self._table = table
        self._services = services
        self._register = services.register
        self._failures = services.failures
        self._answers = services.answers
        self._hosts = Hosts(options.host, options.allowed_hosts)
        self._addresses = Addresses(options.trusted_proxies)
        self._per_key = _buckets(options.rate_per_key)
        self._per_address = _buckets(options.rate_per_address)
        self._without_keys = options.without_keys
        self._open = options.may_be_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        try:
            response = await self._answer(scope, receive, send)
            await compression.pack(scope, response, self._services)
        except Exception as error:
            response = answer_of(error)
        complete(response)
        self._answers[response.status_code] += 1
        try:
            await response(scope, receive, send)
        except Exception as error:
            answer_of(error)  # it is in the log; the server ends the connection

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Response:
        found = heads.read(scope)
        host = found.get(b"host")
        if host is not None or scope["http_version"] != "1.0":
            self._hosts.check((host or b"").decode("latin-1"))
        heads.decode_target(scope)
        peer = scope["client"]
        client = self._addresses.find(peer and peer[0], _text(found.get(b"x-forwarded-for")))
        if b"x-forwarded-proto" in found and self._addresses.is_trusted(peer and peer[0]):
            scope["scheme"] = "https" if found[b"x-forwarded-proto"] == b"https" else "http"
        method = scope["method"]
        scope["countersink.client"] = client
        scope["countersink.heads"] = found
        if method == "OPTIONS":
            self._within(self._per_address, client)
            return Response(status_code=204, headers={"Allow": self._table.allowed(scope["path"])})
        try:
            door, scope["path_params"] = self._table.find(method, scope["path"])
        except Problem:
            self._within(self._per_address, client)
            raise
        try:
            who = await self._admit(door, found, client, scope)
            return await door.handler(Request(scope, receive, send), self._services, who)
        except Exception as error:
            page = _page_instead(door, error) if door.hidden and _is_browser(scope) else None
            if page is None:
                raise
            return RedirectResponse(page, 303)

    async def _admit(
        self, door: Door, found: Mapping[bytes, bytes], client: str, scope: Scope
    ) -> Identity:
        """Whose request this is.

        Raises:
            Problem: 401, 403 or 429.
        """
        method, scheme = scope["method"], scope["scheme"]
        if door.scope is None and not door.public:
            self._within(self._per_address, client)
            if method not in _READING and not origins.is_own(found, scheme, silent=True):
                raise origins.refused()
            return NOBODY
        shown = shown_key(found)
        if shown is not None:
            who = await self._holder(shown, client)
            self._within(self._per_key, who.key_id)
            self._register.note_use(who.key_id)
        else:
            who = self._without_key(door, found, client, scope)
        if not (who.public or door.scope is None or who.may(door.scope)):
            if door.public:
                return replace(who, public=True)
            raise Problem(403, f"This takes a key with the scope {door.scope}")
        if door.whole and who.counters:
            raise Problem(
                403, "This key is for some counters only, and this is about the whole installation"
            )
        return who

    async def _holder(self, shown: str, client: str) -> Identity:
        """Whose key this is.

        Raises:
            Problem: 401 nobody's; 429 nor were many others from there.
        """
        known = await holder_of(shown, client, self._register, self._failures)
        if known is not None:
            return known.identity
        raise Problem(
            401,
            "The key is wrong, revoked or expired: countersink key create makes another one",
            headers={"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'},
        )

    def _without_key(
        self, door: Door, found: Mapping[bytes, bytes], client: str, scope: Scope
    ) -> Identity:
        """Whose request without a key this is: of a login, everybody's, or nobody's."""
        method, scheme = scope["method"], scope["scheme"]
        login = self._services.cookie.login(found, scheme, self._register)
        if login is not None:
            who: Identity | None = login.identity
            self._within(self._per_key, login.identity.key_id)
        elif self._is_open(found, scope):
            who = EVERYBODY
            self._within(self._per_key, client)
        else:
            who = None
            self._within(self._per_address, client)
        foreign = who is EVERYBODY and not self._without_keys and origins.is_from_elsewhere(found)
        if who is not None and not foreign:
            reading = method in _READING
            # What is public may count by GET, too: a pixel on somebody else's page.
            if reading and not door.public:
                return who
            silent = login is None and (not reading or origins.may_be_silent(found, scheme))
            if origins.is_own(found, scheme, silent=silent):
                return who
        if door.public:
            return NOBODY
        if who is not None:
            raise origins.refused()
        raise Problem(
            401,
            "This takes a key: send Authorization: Bearer and the key, which"
            f" countersink key create makes{'' if self._register.keys_needed else _WHY}",
            headers={"WWW-Authenticate": _CHALLENGE},
        )

    def _is_open(self, found: Mapping[bytes, bytes], scope: Scope) -> bool:
        """Whether everybody may do everything: no key was ever made, and who asks is a program or
        a browser of this machine, as far as can be told.

        What comes through a proxy is not: it has the proxy's address, which may be loopback's.
        """
        if self._register.keys_needed or not self._open:
            return False
        if self._without_keys:
            return True
        peer = scope["client"]
        return (
            peer is not None
            and is_loopback(peer[0])
            and is_of_this_machine(found.get(b"host", b"").decode("latin-1"))
            and not heads.is_proxied(scope)
        )

    def _within(self, buckets: Buckets, name: str) -> None:
        wait = buckets.take(name)
        if wait:
            raise Problem(
                429,
                "Too many requests: wait as long as Retry-After says, or send more in each one",
                headers={"Retry-After": retry_after(wait)},
            )


def _buckets(rate: float) -> Buckets:
    return Buckets(rate, max(1.0, rate * BURST_S))


def _page_instead(door: Door, error: Exception) -> str | None:
    """The page for a person whose request failed; None where there is none.

    A login that failed, for whatever reason, leads to its form, which says why by the status.
    """
    if door.path == LOGIN_PATH and door.method == "POST":
        return f"{LOGIN_PATH}?wrong={answer_of(error).status_code}"
    return LOGIN_PATH if isinstance(error, Problem) and error.status == 401 else None


def _is_browser(scope: Scope) -> bool:
    """Whether a person is to see the answer."""
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
