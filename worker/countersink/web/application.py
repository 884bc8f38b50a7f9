"""The ASGI application: opens what handlers work with, and puts the gate before them."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from countersink.producers import Producer
from countersink.reads import Reads
from countersink.store import Store
from countersink.stream.connection import connect
from countersink.web.door import Door
from countersink.web.gate import Gate
from countersink.web.options import WebOptions
from countersink.web.routing import Table
from countersink.web.services import Services


class Application:
    """The ASGI application.

    Args:
        options: its settings.
        producer: makes the one producer, when the application starts; it is closed at the end.
        system: see :class:`~countersink.web.services.Services`.
        doors: what there is.

    Attributes:
        services: what handlers work with, from the start to the end; not there before.
    """

    services: Services

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

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        options = self._options
        client = connect(options.redis_url, client_name="countersink-web")
        producer = self._producer()
        with client, Store(options.mysql_url) as store:
            self.services = Services(
                options=options,
                producer=producer,
                store=store,
                reads=Reads(store, client),
                redis=client,
                system=self._system,
                threads=anyio.CapacityLimiter(options.threads),
            )
            self._gate = Gate(self._table, self.services)
            try:
                yield
            finally:
                await anyio.to_thread.run_sync(producer.close)
