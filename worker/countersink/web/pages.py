"""The dashboard: a page, a page to log in at, and their files."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from countersink.web.assets import Asset, load
from countersink.web.compression import accepts_gzip
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.problem import Problem
from countersink.web.services import Services

FOREVER: Final = "public, max-age=31536000, immutable"
"""For what is named by its hash."""
ASK_FIRST: Final = "no-cache"
"""To be kept, and asked for by its ETag before each use."""


async def dashboard(request: Request, services: Services, who: Identity) -> Response:
    """``GET /``."""
    return _answer(request, load().files["index.html"], ASK_FIRST)


async def login_page(request: Request, services: Services, who: Identity) -> Response:
    """``GET /login``."""
    return _answer(request, load().files["login.html"], ASK_FIRST)


async def icon(request: Request, services: Services, who: Identity) -> Response:
    """``GET /favicon.ico``, which browsers ask for whatever a page says."""
    return _answer(request, load().files["icon.svg"], "public, max-age=86400")


async def static(request: Request, services: Services, who: Identity) -> Response:
    """``GET /static/{version}/{file}``."""
    assets = load()
    found = assets.files.get(request.path_params["file"])
    if found is None or request.path_params["version"] != assets.version:
        raise Problem(404, "There is no such file: the page that asked for it is an old one")
    return _answer(request, found, FOREVER)


def _answer(request: Request, asset: Asset, kept: str) -> Response:
    packed = accepts_gzip(request.headers.get("accept-encoding", ""))
    # Packed or not, they are two representations: an ETag must not be that of both.
    etag = f'{asset.etag[:-1]}-gz"' if packed else asset.etag
    headers = {"Cache-Control": kept, "ETag": etag, "Vary": "Accept-Encoding"}
    if etag in (one.strip() for one in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    if packed:
        headers["Content-Encoding"] = "gzip"
    body = asset.packed if packed else asset.body
    return Response(body, headers=headers, media_type=asset.media_type)


DOORS: Final[tuple[Door, ...]] = (
    Door(method="GET", path="/", handler=dashboard, scope="read", hidden=True),
    Door(method="GET", path="/login", handler=login_page, scope=None, hidden=True),
    Door(method="GET", path="/favicon.ico", handler=icon, scope=None, hidden=True),
    Door(
        method="GET",
        path="/static/{version}/{file:path}",
        handler=static,
        scope=None,
        hidden=True,
    ),
)
