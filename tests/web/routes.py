"""Routes of tests: they say who came in, and what arrived."""

from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.database.errors import Refused, Unavailable
from countersink.web.auth.register import Identity
from countersink.web.http import Route, bodies
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


lenient = partial(Route, parameters=None)
ROUTES = (
    lenient("GET", "/read", echo, scope="read"),
    lenient("GET", "/read/{name}", echo, scope="read"),
    lenient("POST", "/read/{name}", echo, scope="ingest"),
    lenient("POST", "/ingest", echo, scope="ingest"),
    lenient("POST", "/admin", echo, scope="admin"),
    lenient("GET", "/hit/{name}/{key:path}.gif", echo, scope="ingest", public=True),
    lenient("POST", "/hit/{name}", echo, scope="ingest", public=True),
    lenient("GET", "/live", echo, scope=None),
    lenient("POST", "/live", echo, scope=None),
    lenient("GET", "/page", echo, scope="read", hidden=True),
    lenient("GET", "/broken", broken, scope=None),
    lenient("GET", "/away", away, scope=None),
    lenient("GET", "/refused", refused, scope=None),
)
