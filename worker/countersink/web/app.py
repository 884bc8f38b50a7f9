"""The ASGI application: the list of all routes, what is opened at the start and closed at the end,
and the limits of wrong keys and of queue rows per answer made from the options."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import anyio
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from countersink.producers import Producer
from countersink.reads import Reads
from countersink.reads.pending import Bounds
from countersink.store import Store
from countersink.store.migrate import identity
from countersink.store.sessions import is_cancelled
from countersink.stream.connection import connect
from countersink.web.auth.credentials import LoginCookie, TokenBuckets
from countersink.web.auth.register import Register
from countersink.web.endpoints import (
    counters,
    dead,
    hits,
    increments,
    links,
    live,
    notes,
    pages,
    sequences,
    system,
    totals,
)
from countersink.web.http.dispatcher import Dispatcher
from countersink.web.http.openapi import openapi_route
from countersink.web.http.route import Route, RouteTable
from countersink.web.options import WebOptions
from countersink.web.read_pool import ReadPool
from countersink.web.services import Services

MINUTE_S: Final = 60.0
PENDING_ROWS_PER_ENTRY: Final = 25
"""Rows that are read for one answer, for each of ``max_pending_entries``: an entry may have
thousands."""
_BY_TAG: Final = {
    "sending": (*increments.ROUTES, *hits.ROUTES),
    "sequences": sequences.ROUTES,
    "reading": (*counters.ROUTES, *totals.ROUTES),
    "system": (*live.ROUTES, *system.ROUTES, *dead.ROUTES),
    "notes": notes.ROUTES,
    "sharing": links.ROUTES,
    "health": system.HEALTH_ROUTES,
    "": pages.ROUTES,
}
ROUTES: Final = tuple(
    replace(route, tag=tag) for tag, routes in _BY_TAG.items() for route in routes
)
"""All routes, in the order of the document."""


class Application:
    """The ASGI application.

    Args:
        options: its settings.
        producer: makes the one producer, when the application starts; it is closed at the end.
        system: see :class:`~countersink.web.services.Services`.
        routes: what there is besides the OpenAPI document of it.

    Attributes:
        services: what handlers work with, from the start to the end; not there before.
        complete: after the end, whether all that was accepted is stored.
    """

    services: Services
    complete = False

    def __init__(
        self,
        options: WebOptions,
        *,
        producer: Callable[[], Producer],
        system: Callable[[], Mapping[str, Any]],
        routes: Sequence[Route] = ROUTES,
    ) -> None:
        self._options = options
        # Before anything listens: its URLs may be none.
        self._store = Store(
            options.mysql_url,
            read_url=options.mysql_read_url,
            statement_seconds=options.read_timeout_s,
        )
        self._producer = producer
        self._system = system
        self._table = RouteTable((*routes, openapi_route(routes)))
        self._life = Router(lifespan=self._lifespan)
        self._dispatcher: Dispatcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        if scope["type"] == "http":
            await self._dispatcher(scope, receive, send)
        else:
            await self._life(scope, receive, send)

    def stop(self) -> None:
        """Tell answers that go on without end to end; in the event loop's thread."""
        self.services.stopping.set()

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        options = self._options
        client = connect(options.redis_url, client_name="countersink-web")
        store = self._store
        with client, store:
            register = Register(store, options.mysql_url)
            await register.read()
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
                threads=anyio.CapacityLimiter(options.threads),
                read_pool=ReadPool(options.threads, options.read_timeout_s),
                register=register,
                cookie=LoginCookie(await anyio.to_thread.run_sync(store.snapshot, identity)),
                failures=TokenBuckets(failures / MINUTE_S, failures),
                stopping=stopping,
            )
            self._dispatcher = Dispatcher(self._table, self.services)
            keeping = asyncio.create_task(register.keep())
            try:
                yield
            finally:
                keeping.cancel()
                producer = self.services.producer
                self.complete = await anyio.to_thread.run_sync(
                    producer.close, producer.exit_timeout
                )
                await register.write_uses()
