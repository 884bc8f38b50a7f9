"""From a request to its route's handler: what is checked in which order, the answer to OPTIONS (no
CORS), and which status unforeseen errors and servers that are away become (500, 503); errors of
reads: ``web/read_pool.py``.

It is the ASGI application behind the server. Whatever a handler raises becomes an answer here.
"""

import logging
import secrets
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from countersink.store.errors import Conflict, ReadInterrupted, Unavailable
from countersink.stream.errors import StreamUnavailable
from countersink.web.auth.authentication import Authenticator
from countersink.web.auth.origins import Addresses, Hosts
from countersink.web.errors import Problem
from countersink.web.http.answers import compress
from countersink.web.http.headers import complete, decode_target, read_headers
from countersink.web.http.parameters import read_parameters
from countersink.web.http.route import Route, RouteTable
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
LOGIN_PATH: Final = "/login"
RETRY_AFTER_S: Final = 2


class Dispatcher:
    """Answers requests: checks them, calls the route's handler, turns errors into answers.

    Args:
        table: the routes.
        services: what their handlers work with.
    """

    def __init__(self, table: RouteTable, services: Services) -> None:
        options = services.options
        self._table = table
        self._services = services
        self._answers = services.answers
        self._authenticator = Authenticator(services)
        self._hosts = Hosts(options.host, options.allowed_hosts)
        self._addresses = Addresses(options.trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        try:
            response = await self._answer(scope, receive, send)
            await compress(scope, response, self._services)
        except Exception as error:
            response = answer_of(error)
        complete(response)
        self._answers[response.status_code] += 1
        try:
            await response(scope, receive, send)
        except Exception as error:
            answer_of(error)  # it is in the log; the server ends the connection

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Response:
        headers = read_headers(scope)
        host = headers.get(b"host")
        if host is not None or scope["http_version"] != "1.0":
            self._hosts.check((host or b"").decode("latin-1"))
        decode_target(scope)
        peer = scope["client"] and scope["client"][0]
        forwarded = headers.get(b"x-forwarded-for")
        client = self._addresses.find(
            peer, None if forwarded is None else forwarded.decode("latin-1")
        )
        if b"x-forwarded-proto" in headers and self._addresses.is_trusted(peer):
            scope["scheme"] = "https" if headers[b"x-forwarded-proto"] == b"https" else "http"
        scope["countersink.client"] = client
        scope["countersink.headers"] = headers
        method, path = scope["method"], scope["path"]
        if method == "OPTIONS":
            self._authenticator.limit_address(client)
            return Response(status_code=204, headers={"Allow": self._table.allowed(path)})
        try:
            route, scope["path_params"] = self._table.find(method, path)
        except Problem:
            self._authenticator.limit_address(client)
            raise
        try:
            who = await self._authenticator.admit(route, headers, client, scope)
            if route.parameters is not None and not route.hidden:
                scope["countersink.given"] = read_parameters(scope, route.parameters)
            return await route.handler(Request(scope, receive, send), self._services, who)
        except Exception as error:
            page = _page_instead(route, error) if route.hidden and _is_browser(scope) else None
            if page is None:
                raise
            return RedirectResponse(page, 303)


def answer_of(error: Exception) -> Response:
    """The answer for ``error``; of what nobody foresaw only a number that is in the log, too."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)  # nobody is there to read it
    return _problem_of(error).response()


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, ReadInterrupted):
        LOGGER.warning("a read took too long: %s", error, extra={"action": "too_slow"})
        return Problem(
            503,
            "This took too long and was given up: ask for less, or again in a while",
            retry_after=RETRY_AFTER_S,
        )
    if isinstance(error, Unavailable | StreamUnavailable | Conflict):
        LOGGER.warning("a server is away: %s", error, extra={"action": "unavailable"})
        return Problem(
            503,
            "A server behind this one is away or busy: try again",
            retry_after=RETRY_AFTER_S,
        )
    incident = secrets.token_hex(4)
    LOGGER.error(
        "a request failed",
        extra={"action": "request_failed", "fields": {"incident": incident}},
        exc_info=error,
    )
    return Problem(
        500,
        f"This should not have happened; the log has it under the number {incident}",
        extra={"incident": incident},
    )


def _page_instead(route: Route, error: Exception) -> str | None:
    """The page for a person whose request failed; None where there is none.

    A login that failed, for whatever reason, leads to its form, which says why by the status.
    """
    if route.path == LOGIN_PATH and route.method == "POST":
        return f"{LOGIN_PATH}?wrong={answer_of(error).status_code}"
    return LOGIN_PATH if isinstance(error, Problem) and error.status == 401 else None


def _is_browser(scope: Scope) -> bool:
    """Whether a person is to see the answer."""
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
