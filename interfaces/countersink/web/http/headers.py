"""Headers: most headers of a request, and repeated ones (400), and those that every answer has
(Content-Security-Policy, Cache-Control, nosniff)."""

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
"""Headers that mean something to us and of which there is one: with two, whoever stands between
could have looked at the other one."""
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
"""Of HTML."""
DATA: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    _NEVER_GUESSED,
    _NEVER_KEPT,
)
"""Of everything else, which no browser shows as a page: each header of an answer takes time."""
_NOT_MODIFIED: Final = 304


def read_headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers that matter, by lower-case name.

    Raises:
        Problem: 400 one is there twice.
    """
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _SINGLE:
            if name in found:
                raise Problem(400, f"The header {name.decode()} is there twice")
            found[name] = value
        elif name in _JOINED:
            found[name] = found[name] + _JOINED[name] + value if name in found else value
    return found


def decode_target(scope: Scope) -> None:
    """Make ``scope["path"]`` the path as UTF-8, and see to it that the query is, too.

    The server would put a replacement character where there is none: another key's name.

    Raises:
        Problem: 400 one is not UTF-8.
    """
    raw, query = scope["raw_path"], scope["query_string"]
    try:
        if b"%" in raw:
            scope["path"] = unquote_to_bytes(raw).decode()
        if query and (b"%" in query or not query.isascii()):
            query.decode("ascii")
            unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        raise Problem(400, "The path and the query are UTF-8, percent-encoded") from None


def complete(response: Response) -> Response:
    """``response`` with what it lacks."""
    raw = response.raw_headers
    there = dict(raw)
    if there.get(b"content-type", b"").startswith(b"text/html"):
        lacking = PAGE
    elif response.status_code == _NOT_MODIFIED:
        lacking = (_NEVER_KEPT,)  # the rest is that of the copy, which this would replace
    else:
        lacking = DATA
    raw += [each for each in lacking if each[0] not in there]
    return response


def policy(scripts: Sequence[str]) -> str:
    """The policy of a page that has scripts with these hashes in it."""
    return f"{CONTENT_SECURITY_POLICY}; script-src 'self' {' '.join(scripts)}"
