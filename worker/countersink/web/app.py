"""The application: all doors behind one gate."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from countersink.producers import Producer
from countersink.reads import Reads
from countersink.store import Store
from countersink.stream.connection import connect
from countersink.web.door import Door
from countersink.web.identity import SCOPES, Identity
from countersink.web.options import WebOptions
from countersink.web.problem import Problem
from countersink.web.services import Services

DOORS: Final[tuple[Door, ...]] = ()
"""All doors, in the order of the document."""


def create_app(
    options: WebOptions,
    *,
    producer: Callable[[], Producer],
    system: Callable[[], Mapping[str, Any]],
    doors: Sequence[Door] = DOORS,
) -> Starlette:
    """The ASGI application.

    Args:
        options: its settings.
        producer: makes the one producer, when the application starts; it is closed at the end.
        system: see :class:`~countersink.web.services.Services`.
        doors: what there is.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        client = connect(options.redis_url, client_name="countersink-web")
        made = producer()
        with client, Store(options.mysql_url) as store:
            app.state.services = Services(
                options=options,
                producer=made,
                store=store,
                reads=Reads(store, client),
                redis=client,
                system=system,
                threads=anyio.CapacityLimiter(options.threads),
            )
            try:
                yield
            finally:
                await anyio.to_thread.run_sync(made.close)

    routes = [Route(door.path, _endpoint(door), methods=[door.method]) for door in doors]
    return Starlette(routes=routes, lifespan=lifespan)


def _endpoint(door: Door) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        services: Services = request.app.state.services
        who = Identity(scopes=frozenset(SCOPES))
        try:
            return await door.handler(request, services, who)
        except Problem as problem:
            return problem.response()

    return answer
