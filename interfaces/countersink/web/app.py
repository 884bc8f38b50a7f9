"""The ASGI application. It has all routes, opens and closes the objects that handlers share, checks
each request and calls its handler, and answers OPTIONS with the allowed methods (there is no CORS).
It answers errors, too: with 503 if MySQL or Redis is away or a read takes too long, with 500 if an
exception is unexpected. See ``read_pool.py`` for errors of reads."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from countersink.database.errors import Conflict, ReadInterrupted, Unavailable
from countersink.database.sessions import is_cancelled
from countersink.producers import Producer
from countersink.reads import Bounds, Reads
from countersink.store import Store
from countersink.stream.connection import connect
from countersink.stream.errors import StreamUnavailable
from countersink.web.auth.authentication import Authenticator
from countersink.web.auth.credentials import LoginCookie, NameQuotas, TokenBuckets, WaitingPlaces
from countersink.web.auth.origins import Addresses, Hosts
from countersink.web.auth.register import Register
from countersink.web.endpoints import (
    boards,
    counters,
    dead,
    hits,
    increments,
    links,
    live,
    pages,
    sequences,
    system,
    totals,
)
from countersink.web.errors import Problem
from countersink.web.http import Route, RouteTable
from countersink.web.http.answers import (
    EncodedResponse,
    add_headers,
    compress,
    decode_target,
    read_headers,
)
from countersink.web.http.openapi import openapi_route
from countersink.web.http.parameters import read_parameters
from countersink.web.options import WebOptions
from countersink.web.read_pool import ReadPool
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
LOGIN_PATH: Final = "/login"
RETRY_AFTER_S: Final = 2
MINUTE_S: Final = 60.0
PENDING_ROWS_PER_ENTRY: Final = 25
"""Rows of the queue that one answer may read for each entry of ``max_pending_entries``. One entry
may have thousands of rows."""
_BY_TAG: Final = {
    "sending": (*increments.ROUTES, *hits.ROUTES),
    "sequences": sequences.ROUTES,
    "reading": (*counters.ROUTES, *totals.ROUTES),
    "system": (*live.ROUTES, *system.ROUTES, *dead.ROUTES),
    "notes": counters.NOTE_ROUTES,
    "boards": boards.ROUTES,
    "sharing": links.ROUTES,
    "health": system.HEALTH_ROUTES,
    "": pages.ROUTES,
}
ROUTES: Final = tuple(
    replace(route, tag=tag) for tag, routes in _BY_TAG.items() for route in routes
)
"""All routes, in the order of the OpenAPI document."""


class Application:
    """The ASGI application.

    Args:
        options: its settings.
        producer: is called at the start and returns a new producer; the application closes the
            producer at the end.
        system, schedule: see :class:`~countersink.web.services.Services`.
        routes: all routes except the route of their OpenAPI document, which is added.

    Attributes:
        services: the objects that handlers share; set at the start.
        complete: False until the application has ended; then whether all accepted increments are
            stored.
    """

    services: Services
    complete = False

    def __init__(
        self,
        options: WebOptions,
        *,
        producer: Callable[[], Producer],
        system: Callable[[], Mapping[str, Any]],
        schedule: Callable[[str, str], Mapping[str, Any]],
        routes: Sequence[Route] = ROUTES,
    ) -> None:
        self._options = options
        # Before the server listens: a URL may be invalid.
        self._store = Store(
            options.mysql_url,
            read_url=options.mysql_read_url,
            statement_seconds=options.read_timeout_s,
        )
        self._producer = producer
        self._system = system
        self._schedule = schedule
        self._table = RouteTable((*routes, openapi_route(routes)))
        self._hosts = Hosts(options.host, options.allowed_hosts)
        self._addresses = Addresses(options.trusted_proxies)
        self._authenticator: Authenticator
        self._lifespan_app = Router(lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or ASGI's lifespan, which starts and ends the application."""
        if scope["type"] != "http":
            await self._lifespan_app(scope, receive, send)
            return
        try:
            response = await self._answer(scope, receive, send)
            await compress(scope, response, self.services)
        except Exception as error:
            response = error_response(error)
        self.services.answers[response.status_code] += 1
        try:
            if not (isinstance(response, EncodedResponse) and scope["countersink.write"](response)):
                await add_headers(response)(scope, receive, send)
        except Exception as error:
            error_response(error)  # for its log line; the server ends the connection

    def stop(self) -> None:
        """Make endless answers (``/v1/live``) and reads of the queue end, because the server is
        about to stop. Call it in the event loop's thread."""
        self.services.stopping.set()

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        options = self._options
        client = connect(options.redis_url, client_name="countersink-web")
        store = self._store
        with client, store:
            register = Register(store, options.mysql_url)
            await register.try_read()  # MySQL may be away
            failures = options.failures_per_minute
            stopping = asyncio.Event()
            bounds = Bounds(
                entries=options.max_pending_entries,
                rows=options.max_pending_entries * PENDING_ROWS_PER_ENTRY,
                stop=lambda: stopping.is_set() or is_cancelled(),
            )
            self.services = Services(
                options=options,
                producer=self._producer(),
                store=store,
                reads=Reads(store, client, bounds),
                redis=client,
                system=self._system,
                schedule=self._schedule,
                read_pool=ReadPool(options.threads, options.read_timeout_s),
                register=register,
                cookie=LoginCookie(register),
                failures=TokenBuckets(failures / MINUTE_S, failures),
                places=WaitingPlaces(options.max_connections),
                quotas=NameQuotas(options.max_counters),
                stopping=stopping,
            )
            self._authenticator = Authenticator(self.services)
            refreshing = asyncio.create_task(register.keep_fresh())
            try:
                yield
            finally:
                refreshing.cancel()
                producer = self.services.producer
                self.complete = await anyio.to_thread.run_sync(
                    producer.close, producer.exit_timeout
                )
                await register.write_uses()

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
            holder = scope["countersink.holder"] = who.key_id or client
            request = Request(scope, receive, send)
            if not route.waits:
                return await route.handler(request, self.services, who)
            with self.services.places.needed(holder):
                return await route.handler(request, self.services, who)
        except Exception as error:
            page = _error_page(route, error) if route.hidden and _is_browser(scope) else None
            if page is None:
                raise
            return RedirectResponse(page, 303)


def error_response(error: Exception) -> Response:
    """Return the answer to a request that raised ``error``: that of a :class:`Problem`; 400 if the
    client has disconnected; 503 if MySQL or Redis is away or busy, or a read took too long. Any
    other error gets 500: it is logged under a random number, and the answer has this number in
    place of details."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)  # nobody reads it
    return _problem_of(error).response()


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, ReadInterrupted | TimeoutError):
        LOGGER.warning("a read took too long: %s", error, extra={"action": "too_slow"})
        return Problem(
            503,
            "The request took too long and was stopped: ask for less, or try again later",
            retry_after=RETRY_AFTER_S,
        )
    if isinstance(error, Unavailable | StreamUnavailable | Conflict):
        LOGGER.warning("MySQL or Redis is away or busy: %s", error, extra={"action": "unavailable"})
        text = "MySQL or Redis is away or busy: try again"
        return Problem(503, text, retry_after=RETRY_AFTER_S)
    incident = secrets.token_hex(4)
    LOGGER.error(
        "a request failed",
        extra={"action": "request_failed", "fields": {"incident": incident}},
        exc_info=error,
    )
    return Problem(
        500,
        f"Internal error: the server's log has details under the number {incident}",
        extra={"incident": incident},
    )


def _error_page(route: Route, error: Exception) -> str | None:
    """Return the path to which a browser is redirected after an ``error`` of a page of the
    dashboard; None if it is not redirected, and the answer is that of the error.

    After a failed login, the path is that of the login form with the error's status, which the form
    explains: ``/login?wrong=401``. For any other page, it is the login form if the status is 401,
    because the request has no valid key.
    """
    if route.path == LOGIN_PATH and route.method == "POST":
        return f"{LOGIN_PATH}?wrong={error_response(error).status_code}"
    return LOGIN_PATH if isinstance(error, Problem) and error.status == 401 else None


def _is_browser(scope: Scope) -> bool:
    """Return whether the client is a browser that will show the answer as a page: its header
    Accept contains text/html."""
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
