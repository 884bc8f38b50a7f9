"""Doors of tests: they say who came in, and what arrived."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.store.errors import Refused, Unavailable
from countersink.web import bodies
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.services import Services

SECRET = "the inside of the server"


async def echo(request: Request, services: Services, who: Identity) -> Response:
    """Who asks, with what."""
    body = await bodies.read(request, services)
    return JSONResponse(
        {
            "body": len(body),
            "path": request.path_params,
            "query": dict(request.query_params),
            "key": who.key_id,
            "name": who.name,
            "public": who.public,
        }
    )


async def broken(request: Request, services: Services, who: Identity) -> Response:
    """A bug."""
    raise RuntimeError(SECRET)


async def away(request: Request, services: Services, who: Identity) -> Response:
    """MySQL is away."""
    raise Unavailable(SECRET)


async def refused(request: Request, services: Services, who: Identity) -> Response:
    """MySQL does not want to."""
    raise Refused(SECRET)


DOORS = (
    Door(method="GET", path="/read", handler=echo, scope="read"),
    Door(method="GET", path="/read/{name}", handler=echo, scope="read"),
    Door(method="POST", path="/read/{name}", handler=echo, scope="ingest"),
    Door(method="POST", path="/ingest", handler=echo, scope="ingest"),
    Door(method="POST", path="/admin", handler=echo, scope="admin"),
    Door(
        method="GET", path="/hit/{name}/{key:path}.gif", handler=echo, scope="ingest", public=True
    ),
    Door(method="POST", path="/hit/{name}", handler=echo, scope="ingest", public=True),
    Door(method="GET", path="/live", handler=echo, scope=None),
    Door(method="POST", path="/live", handler=echo, scope=None),
    Door(method="GET", path="/page", handler=echo, scope="read", hidden=True),
    Door(method="GET", path="/broken", handler=broken, scope=None),
    Door(method="GET", path="/away", handler=away, scope=None),
    Door(method="GET", path="/refused", handler=refused, scope=None),
)
