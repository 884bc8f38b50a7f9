"""Headers of requests (repeated ones get 400), their path and query as UTF-8, and the headers that
every answer has (Content-Security-Policy, Cache-Control, nosniff)."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.responses import Response
from starlette.types import Scope

from countersink.web.errors import Problem

MAX_HEADERS: Final = 100
_SINGLE: Final = frozenset(
    (
        b"host",
        b"authorization",
        b"x-api-key",
        b"origin",
        b"referer",
        b"sec-fetch-site",
        b"x-forwarded-proto",
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"idempotency-key",
    )
)
"""Headers that may occur once: a proxy before us may have read the other one of two."""
_JOINED: Final = {
    b"cookie": b"; ",
    b"x-forwarded-for": b", ",
    b"user-agent": b" ",
}
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)
_NEVER_GUESSED: Final = (b"x-content-type-options", b"nosniff")
_NEVER_KEPT: Final = (b"cache-control", b"no-store")
PAGE: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    _NEVER_GUESSED,
    _NEVER_KEPT,
)
"""Headers of HTML answers."""
DATA: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    _NEVER_GUESSED,
    _NEVER_KEPT,
)
"""Headers of all other answers, which no browser shows as a page; few, as each takes time."""
_NOT_MODIFIED: Final = 304


def read_headers(scope: Scope) -> dict[bytes, bytes]:
    """The values of the headers that this server reads, by lower-case name.

    Raises:
        Problem: 400 a header of :data:`_SINGLE` is repeated.
    """
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _SINGLE:
            if name in found:
                raise Problem(400, f"The request has the header {name.decode()} twice")
            found[name] = value
        elif name in _JOINED:
            found[name] = found[name] + _JOINED[name] + value if name in found else value
    return found


def decode_target(scope: Scope) -> None:
    """Set ``scope["path"]`` to the path, decoded strictly, and check that the query is UTF-8.

    uvicorn would decode invalid bytes as replacement characters, which may be another key's name.

    Raises:
        Problem: 400 the path or the query is not UTF-8.
    """
    raw, query = scope["raw_path"], scope["query_string"]
    try:
        if b"%" in raw:
            scope["path"] = unquote_to_bytes(raw).decode()
        if query and (b"%" in query or not query.isascii()):
            query.decode("ascii")
            unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        raise Problem(400, "The path and the query must be percent-encoded UTF-8") from None


def add_headers(response: Response) -> Response:
    """``response`` with the headers that every answer has, where it did not set its own."""
    raw = response.raw_headers
    present = dict(raw)
    if present.get(b"content-type", b"").startswith(b"text/html"):
        headers = PAGE
    elif response.status_code == _NOT_MODIFIED:
        headers = (_NEVER_KEPT,)  # others would replace those of the client's copy
    else:
        headers = DATA
    raw += [each for each in headers if each[0] not in present]
    return response


def policy(scripts: Sequence[str]) -> str:
    """The content security policy of a page with inline scripts of the given hashes."""
    return f"{CONTENT_SECURITY_POLICY}; script-src 'self' {' '.join(scripts)}"
