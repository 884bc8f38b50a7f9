"""The ASGI application: opens what handlers work with, and puts the gate before them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from countersink.producers import Producer
from countersink.reads import Reads
from countersink.reads.queue import Bounds
from countersink.store import Store
from countersink.store.cancellation import is_cancelled
from countersink.store.migrate import identity
from countersink.stream.connection import connect
from countersink.web.credentials import LoginCookie
from countersink.web.door import Door
from countersink.web.gate import Gate
from countersink.web.limits import Buckets
from countersink.web.options import WebOptions
from countersink.web.read_places import ReadPlaces
from countersink.web.register import Register
from countersink.web.routing import Table
from countersink.web.services import Services

MINUTE_S: Final = 60.0
ROWS_PER_ENTRY: Final = 25
"""Rows that are read for one answer, for each of ``max_pending_entries``: an entry may have
thousands."""


class Application:
    """The ASGI application.

    Args:
        options: its settings.
        producer: makes the one producer, when the application starts; it is closed at the end.
        system: see :class:`~countersink.web.services.Services`.
        doors: what there is.

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
        doors: Sequence[Door],
    ) -> None:
        self._options = options
        self._producer = producer
        self._system = system
        self._table = Table(doors)
        self._life = Router(lifespan=self._lifespan)
        self._gate: Gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        if scope["type"] == "http":
            await self._gate(scope, receive, send)
        else:
            await self._life(scope, receive, send)

    def stop(self) -> None:
        """Tell answers that go on without end to end; in the event loop's thread."""
        self.services.stopping.set()

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        options = self._options
        client = connect(options.redis_url, client_name="countersink-web")
        seconds = options.read_timeout_s
        with client, Store(options.mysql_url, statement_seconds=seconds) as store:
            register = Register(store, options.mysql_url)
            await register.read()
            failures = options.failures_per_minute
            stopping = asyncio.Event()
            bounds = Bounds(
                entries=options.max_pending_entries,
                rows=options.max_pending_entries * ROWS_PER_ENTRY,
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
                read_places=ReadPlaces(options.threads),
                register=register,
                cookie=LoginCookie(await anyio.to_thread.run_sync(store.snapshot, identity)),
                failures=Buckets(failures / MINUTE_S, failures),
                stopping=stopping,
            )
            self._gate = Gate(self._table, self.services)
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
