"""Pages and files of the dashboard; login and logout. See ``static/login.html`` and ``js/login.js``
for the texts of the login page.

The login's cookie is hidden from scripts, and browsers send it for pages of this server only. It
has 256 random bits; MySQL has their hash. A login ends after ``session_hours``, by logout, or with
its key.

The JavaScript modules of the first view are sent as one file, and all styles as one; scripts that
must run before these arrive are in the page itself. So a browser needs few requests, one after the
other, before it can show a page.

The JavaScript modules are joined into one without a build tool: each comes after the modules that
it imports. This works as all are ours, use the same form of import, and no two define the same
name. Comments and indentation are removed from scripts and styles, so no string may span lines. A
module that is imported with ``await import``, and each that only such modules import, is sent as a
file of its own when it is needed. It imports the others from the joined file.
"""

import gzip
import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from countersink.store import api_keys
from countersink.web.auth.credentials import find_credential
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route, bodies
from countersink.web.http.answers import accepts_gzip, matches, policy
from countersink.web.services import Services

FOREVER: Final = "public, max-age=31536000, immutable"
"""Cache-Control of files whose URL has the hash of all files."""
ASK_FIRST: Final = "no-cache"
"""Cache-Control of pages: before each use of its copy, the browser asks with the copy's ETag."""
MEDIA_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
"""Media types by the extension of a file's name. Files with other extensions are not served."""
PLACEHOLDER: Final = b"/static/0/"
"""The folder of files in the source of pages. In answers, a folder named by the hash of all files
takes its place."""
SCRIPT: Final = "js/dashboard.js"
"""Path of the joined modules of the dashboard."""
STYLE: Final = "css/dashboard.css"
"""Path of the joined styles of the dashboard."""
MAX_FORM_BYTES: Final = 4_096
FORM: Final = "application/x-www-form-urlencoded"
WRONG: Final = "/login?wrong=1"
"""URL of the page to which a form without scripts leads after a wrong key."""
HOUR_S: Final = 3_600.0
_STATIC: Final = Path(__file__).parents[1] / "static"
_STYLES: Final = (
    "vendor/uplot/uPlot.min.css",
    "css/base.css",
    "css/parts.css",
    "css/views.css",
)
_INLINE: Final = re.compile(rb'<script src="/static/0/([^"]+)" data-inline></script>')
_IMPORT: Final = re.compile(r'^import .* from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_IMPORTED: Final = re.compile(r'(?<=} )from "\./([a-z_]+\.js)"')
_COMMENT: Final = r" *(?://.*|/\*\*(?:[^*]|\*(?!/))*\*/)\n"
_LEFT_OUT: Final = re.compile(rf"^(?:{_COMMENT}| +)|(?<=[;,)({{]) // .*$", re.MULTILINE)
_LEFT_OUT_OF_STYLES: Final = re.compile(rb"^ +|/\*.*?\*/\n*", re.MULTILINE | re.DOTALL)


async def html(request: Request, services: Services, who: Identity, name: str) -> Response:
    """Answer ``GET /`` with ``index.html``, or ``GET /login`` with ``login.html``: ``name`` is the
    file's name."""
    return page(request, name)


async def icon(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /favicon.ico``, which browsers request for any page."""
    return _answer(request, load()[1]["icon.svg"], "public, max-age=86400")


async def static(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /static/{version}/{file}`` with a file of the dashboard; 404 if there is no such
    file, or ``version`` is not the present hash of all files."""
    version, files = load()
    found = files.get(request.path_params["file"])
    if found is None or request.path_params["version"] != version:
        raise Problem(404, "There is no such file in this version: reload the page")
    return _answer(request, found, FOREVER)


async def login(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /login``: begin a login with the key in the form, set its cookie, and redirect
    to the dashboard. A key that is not valid or lacks the scope read, and a link's token, get 403.
    An address that has sent too many wrong keys gets 429. A client that accepts HTML, a browser, is
    redirected to the form instead."""
    text = await _form_key(request, services)
    client: str = request.scope["countersink.client"]
    known = await find_credential(
        text, client, services.register, services.failures, services.places
    )
    if known is None or known.identity.link or not known.identity.may("read"):
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(WRONG, 303)
        raise Problem(403, "The key is wrong, revoked or expired, or lacks the scope read")
    key_id = known.identity.key_id
    seconds = services.options.session_hours * HOUR_S
    token = await services.run_in_session(api_keys.begin_login, key_id, seconds)
    await services.register.refresh()
    services.register.note_use(key_id)
    name = services.cookie.name(request.scope["scheme"])
    return _redirect(request, "/", name, token, int(seconds))


async def logout(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /logout``: end the login of the request's cookie, if there is one, delete the
    cookie, and redirect to the login page."""
    scheme = request.scope["scheme"]
    shown = services.cookie.shown(request.scope["countersink.headers"], scheme)
    if shown is not None:
        token_hash = api_keys.hash_of(shown)
        if services.register.login(token_hash) is None:
            await services.register.refresh()
        if services.register.login(token_hash) is not None:
            await services.run_in_session(api_keys.end_login, token_hash)
            await services.register.refresh()
    return _redirect(request, "/login", services.cookie.name(scheme), "", 0)


async def _form_key(request: Request, services: Services) -> str:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Problem(415, f"The body must be a form: {FORM}")
    body = await bodies.read(request, services, MAX_FORM_BYTES)
    try:
        fields = parse_qs(body.decode("ascii"), strict_parsing=bool(body), max_num_fields=4)
    except ValueError:
        raise Problem(400, "The body is not a valid form") from None
    if len(fields.get("key", ())) != 1:
        raise Problem(422, "The form must have one field: key")
    return fields["key"][0].strip()


def _redirect(request: Request, path: str, name: str, token: str, seconds: int) -> Response:
    response = RedirectResponse(path, 303)
    response.set_cookie(
        name,
        token,
        max_age=seconds,
        path="/",
        secure=request.scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def page(request: Request, name: str) -> Response:
    """Return the page in the file ``name`` as an answer, or 304 if the browser's copy is current.
    Browsers have to ask the server each time before they use a cached copy."""
    return _answer(request, load()[1][name], ASK_FIRST)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the dashboard.

    Attributes:
        body: its bytes.
        packed: its bytes, compressed with gzip.
        media_type: its Content-Type.
        etag: its ETag, which changes with the bytes.
        scripts: hashes of the inline scripts of a page, for its content security policy; empty for
            other files.
    """

    body: bytes
    packed: bytes
    media_type: str
    etag: str
    scripts: tuple[str, ...] = ()


@cache
def load() -> tuple[str, Mapping[str, Asset]]:
    """Return the hash of all files of the dashboard, which is the version in their URLs, and the
    files by path, such as ``js/app.js``, as they are sent: with joined modules and styles, and
    inline scripts. They are read once in the life of the process."""
    found = {
        path.relative_to(_STATIC).as_posix(): path.read_bytes()
        for path in _STATIC.rglob("*.*")
        if path.suffix[1:] in MEDIA_TYPES
    }
    modules = {
        path.removeprefix("js/"): body.decode()
        for path, body in found.items()
        if path.startswith("js/")
    }
    joined = _joined(modules, "app.js")

    def imported(match: re.Match[str]) -> str:
        return f'from "./{Path(SCRIPT).name}"' if match[1] in joined else match[0]

    for name, text in modules.items():
        found[f"js/{name}"] = _IMPORTED.sub(imported, _LEFT_OUT.sub("", text)).encode()
    found[SCRIPT] = "\n".join(joined.values()).encode()
    found[STYLE] = _LEFT_OUT_OF_STYLES.sub(b"", b"\n".join(found[path] for path in _STYLES))
    digest = hashlib.sha256()
    for path, body in sorted(found.items()):
        digest.update(b"%d %b %d " % (len(path), path.encode(), len(body)) + body)
    version = digest.hexdigest()[:16]
    return version, {
        path: _page(body, found, version) if path.endswith(".html") else _asset(path, body)
        for path, body in found.items()
    }


def _answer(request: Request, asset: Asset, kept: str) -> Response:
    packed = accepts_gzip(request.headers.get("accept-encoding", ""))
    # The compressed and the plain representation must have different ETags.
    etag = f'{asset.etag[:-1]}-gz"' if packed else asset.etag
    headers = {"Cache-Control": kept, "ETag": etag, "Vary": "Accept-Encoding"}
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    if packed:
        headers["Content-Encoding"] = "gzip"
    if asset.scripts:
        headers["Content-Security-Policy"] = policy(asset.scripts)
    body = asset.packed if packed else asset.body
    return Response(body, headers=headers, media_type=asset.media_type)


def _page(body: bytes, found: Mapping[str, bytes], version: str) -> Asset:
    """Return the page ``body`` with each ``<script src=… data-inline>`` replaced by the text of the
    script, which is in ``found`` by its path, and :data:`PLACEHOLDER` replaced by the folder of
    ``version``. The asset has the hashes of these scripts."""
    hashes: list[str] = []

    def inline(match: re.Match[bytes]) -> bytes:
        text = found[match[1].decode()]
        hashes.append(f"'sha256-{b64encode(hashlib.sha256(text).digest()).decode()}'")
        return b"<script>" + text + b"</script>"

    folder = f"/static/{version}/".encode()
    body = _INLINE.sub(inline, body).replace(PLACEHOLDER, folder)
    return _asset("a.html", body, tuple(hashes))


def _asset(path: str, body: bytes, scripts: tuple[str, ...] = ()) -> Asset:
    packed = gzip.compress(body, mtime=0)
    media_type = MEDIA_TYPES[path.rpartition(".")[2]]
    return Asset(body, packed, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"', scripts)


def _joined(modules: Mapping[str, str], entry: str) -> dict[str, str]:
    """Return the texts of the module ``entry`` and of the modules that it imports, also through
    others, but not with ``await import``. They are by file name, each after those that it imports
    (``entry`` is last), without import lines, comments and indentation.

    Args:
        modules: texts of all modules by file name.
        entry: file name of the module that imports the others.

    Raises:
        KeyError: a module is missing.
    """
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in done:
            for other in _IMPORT.findall(modules[name]):
                add(other)
            done[name] = _LEFT_OUT.sub("", _IMPORT.sub("", modules[name]))

    add(entry)
    return done


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/", partial(html, name="index.html"), scope="read", hidden=True),
    Route("GET", "/login", partial(html, name="login.html"), scope=None, hidden=True),
    Route("GET", "/favicon.ico", icon, scope=None, waits=False, hidden=True),
    Route("GET", "/static/{version}/{file:path}", static, scope=None, waits=False, hidden=True),
    Route("POST", "/login", login, scope=None, hidden=True),
    Route("POST", "/logout", logout, scope=None, hidden=True),
)
