"""Headers of requests (repeated ones get 400), their path and query as UTF-8, and the headers of
every answer (Content-Security-Policy, Cache-Control, nosniff); answers of the read API as JSON or
CSV (``format``, Accept), with headers for freshness, ETag and 304, Cache-Control; and gzip.

The ETag is weak and depends on the numbers, not on the time: a page that polls gets 304 until a
number changes. The time up to which the answer is complete is in a header, too, which a 304 renews.

Answers are compressed with gzip if the client accepts it and they are large enough. An attacker who
sees the lengths of compressed answers, and makes a browser send requests whose text comes back in
them, could guess the rest of the answer (BREACH). So an answer is not compressed if a page of
another origin may have made a browser request it: a request with Sec-Fetch-Site must come from a
page of this server or from no page, and a request without it must have no cookie.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from countersink.web.errors import Problem
from countersink.web.services import Services

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


_TEXT: Final = {"type": "string"}
_TIME: Final = {"type": "string", "format": "date-time"}
FRESHNESS: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "complete_up_to": (
        "Countersink-Complete-Up-To",
        "Everything that reached Redis before this time is in the answer; `unknown`: no reply.",
        _TEXT,
    ),
    "rolled_up_to": (
        "Countersink-Rolled-Up-To",
        "The first day with days of its own: earlier ones are rolled up to months.",
        {"type": "string", "format": "date"},
    ),
    "since": (
        "Countersink-Since",
        "Events before this time are missing: the breakdown that answers was declared then.",
        _TIME,
    ),
    "told_from": (
        "Countersink-Told-From",
        "Days, hours or minutes before this one are missing: they are rolled up to wider buckets.",
        _TIME,
    ),
    "truncated": (
        "Countersink-Truncated",
        "The answer has only the largest totals; of a series only the days with the most counts.",
        {"type": "string", "enum": ["true"]},
    ),
}
"""By the member of an answer: the header with the same value, its meaning, and its schema."""
FRESH_S: Final = 1
"""Seconds for which a browser may use its copy without a request."""
CSV: Final = "text/csv"
LEAST_BYTES: Final = 1_024
"""Smallest compressed body: a smaller one fits into one packet uncompressed."""
IN_THREAD_BYTES: Final = 64 << 10
"""Bytes of a body from which on a thread compresses it, not the event loop."""
_TYPES: Final = frozenset(
    ("application/json", "text/csv", "text/plain", "application/openmetrics-text")
)
_LEVEL: Final = 1
"""Compresses JSON to a tenth; higher levels take several times as long and save little more."""


def wants_csv(request: Request, format: str | None) -> bool:
    """Whether the request asks for CSV, by the parameter ``format``, else by the header Accept."""
    if format is not None:
        return format == "csv"
    accept = request.headers.get("accept", "")
    return CSV in accept and "application/json" not in accept


def freshness(limits: dict[str, Any]) -> dict[str, str]:
    """The headers of :data:`FRESHNESS` for an answer, in JSON and CSV alike.

    Args:
        limits: all or some of :meth:`countersink.counting.totals.query.Answer.limits`.
    """
    values = limits | {"complete_up_to": limits["complete_up_to"] or "unknown"}
    return {
        header: "true" if value is True else value
        for name, (header, *_) in FRESHNESS.items()
        if (value := values.get(name))
    }


def json_answer(
    request: Request,
    content: Mapping[str, Any],
    fresh: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    pending: bool,
) -> Response:
    """A JSON document, in ASCII, which keeps keys that are not UTF-8.

    Args:
        request: the request.
        content: the members that the ETag depends on.
        fresh: further members, which may change while the numbers do not.
        headers: from :func:`freshness`.
        pending: the answer includes pending rows: browsers must ask before they use a copy.
    """
    known = json.dumps(content)
    body = f"{known[:-1]}, {json.dumps(fresh)[1:]}" if fresh else known
    return _answer(request, known, body, "application/json", headers, pending)


def csv_answer(
    request: Request, text: str, headers: Mapping[str, str], *, name: str, pending: bool
) -> Response:
    """A text in CSV (RFC 4180) with the file name ``name``."""
    named = {**headers, "Content-Disposition": f'inline; filename="{name}"'}
    return _answer(request, text, text, f"{CSV}; charset=utf-8; header=present", named, pending)


def _answer(
    request: Request,
    known: str,
    body: str,
    media_type: str,
    headers: Mapping[str, str],
    pending: bool,
) -> Response:
    # Keys that are not UTF-8 have lone surrogates, which surrogateescape turns into their bytes.
    digest = blake2b(media_type.encode(), digest_size=16)
    digest.update(known.encode("utf-8", "surrogateescape"))
    tag = f'W/"{digest.hexdigest()}"'
    every = {
        **headers,
        "ETag": tag,
        "Cache-Control": "private, no-cache" if pending else f"private, max-age={FRESH_S}",
        "Vary": "Accept, Accept-Encoding, Authorization, X-API-Key, Cookie",
    }
    if _matches(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=every)
    return Response(
        body.encode("utf-8", "surrogateescape"), headers={**every, "Content-Type": media_type}
    )


def _matches(condition: str | None, tag: str) -> bool:
    """Whether If-None-Match has a tag, by weak comparison (RFC 9110, 8.8.3.2)."""
    if condition is None:
        return False
    bare = tag.removeprefix("W/")
    return any(each.strip().removeprefix("W/") == bare for each in condition.split(","))


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client accepts gzip (RFC 9110, 12.5.3)."""
    for part in accept_encoding.lower().split(","):
        coding, *parameters = (each.strip() for each in part.split(";"))
        if coding in ("gzip", "x-gzip"):
            weights = [each[2:].strip() for each in parameters if each.startswith("q=")]
            return not any(weight.strip("0.") == "" for weight in weights)
    return False


async def compress(scope: Scope, response: Response, services: Services) -> None:
    """Compress the body of ``response`` with gzip, if it is large enough and the client accepts it
    and BREACH is no risk. Streamed bodies (server-sent events) stay uncompressed.
    """
    body = getattr(response, "body", b"")
    if len(body) < LEAST_BYTES:
        return
    headers = response.headers
    media_type = headers.get("content-type", "").partition(";")[0]
    if media_type not in _TYPES or "content-encoding" in headers:
        return
    asked = Headers(scope=scope)
    if not (accepts_gzip(asked.get("accept-encoding", "")) and _is_same_origin(asked)):
        return
    if len(body) < IN_THREAD_BYTES:
        response.body = _gzipped(body)
    else:
        response.body = await services.run(_gzipped, body)
    headers["content-length"] = str(len(response.body))
    headers["content-encoding"] = "gzip"
    headers.add_vary_header("Accept-Encoding")


def _is_same_origin(asked: Headers) -> bool:
    """Whether no page of another origin can have made a browser send the request."""
    site = asked.get("sec-fetch-site")
    return "cookie" not in asked if site is None else site in ("same-origin", "none")


def _gzipped(body: bytes | memoryview) -> bytes:
    packer = zlib.compressobj(_LEVEL, wbits=16 + zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()
