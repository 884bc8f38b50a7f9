"""Headers of requests and of answers, and answers of the read API.

Requests: headers that must not be repeated (``_SINGLE``), path and query in UTF-8. Answers: the
headers of every answer (Content-Security-Policy, Cache-Control, nosniff), JSON or CSV (``format``,
Accept), headers for freshness, ETag and 304, Cache-Control, and gzip.

The ETag is weak. It depends on the numbers, not on the time up to which they are complete: a page
that polls gets 304 until a number changes. This time is also in a header, and every 304 has its
current value.

Answers are compressed with gzip if the client accepts it and they are large enough. There is a
risk, BREACH: an attacker makes a browser send requests whose text comes back in the answers, sees
the lengths of the compressed answers, and guesses the rest of them. So an answer is not compressed
if a page of another origin may have made a browser request it. A request with Sec-Fetch-Site must
come from a page of this server or from no page. A request without Sec-Fetch-Site must have no
cookie.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from countersink.web.errors import Problem
from countersink.web.services import Services

MAX_HEADERS: Final = 100
"""Maximum number of headers of a request."""
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
"""Headers that may occur only once. Otherwise a proxy in front of this server might use one value,
and this server another."""
_JOINED: Final = {
    b"cookie": b"; ",
    b"x-forwarded-for": b", ",
    b"user-agent": b" ",
}
"""Headers that may occur several times, with the separator between their joined values."""
_NOT_FRAMED: Final = "frame-ancestors 'none'"
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none';"
    f" form-action 'self'; {_NOT_FRAMED}"
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
"""Headers of all answers that are not HTML. No browser shows these as a page. There are few headers
because each takes time."""
_NOT_MODIFIED: Final = 304


def read_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the values of the headers in :data:`_SINGLE` and :data:`_JOINED` that a request has,
    by lower-case name. Values of a repeated header of :data:`_JOINED` are joined. Other headers are
    left out.

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
    """Decode the path of a request strictly into ``scope["path"]``, and check that its query is
    percent-encoded UTF-8. The query stays encoded.

    uvicorn would decode invalid bytes as replacement characters. A counter's key in the path would
    then be another key.

    Raises:
        Problem: 400 the path or the query is not percent-encoded UTF-8.
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
    """Add headers to ``response``, and return it: :data:`PAGE` to an HTML answer, Cache-Control to
    a 304, and :data:`DATA` to any other answer. A header that the answer already has stays. If the
    Content-Security-Policy of an HTML answer lets pages embed it, X-Frame-Options is left out."""
    raw = response.raw_headers
    present = dict(raw)
    if present.get(b"content-type", b"").startswith(b"text/html"):
        # X-Frame-Options cannot name origins; where a policy does, it would contradict it.
        own = present.get(b"content-security-policy")
        is_framed = own is not None and _NOT_FRAMED.encode() not in own
        headers = tuple(each for each in PAGE if not is_framed or each[0] != b"x-frame-options")
    elif response.status_code == _NOT_MODIFIED:
        headers = (_NEVER_KEPT,)  # others would replace those of the client's copy
    else:
        headers = DATA
    raw += [each for each in headers if each[0] not in present]
    return response


def encode_head(response: Response) -> bytes:
    """Return the status line and the headers of an answer, after :func:`add_headers` has added
    headers to it. The empty line after the headers is left out, so that the caller can append
    further headers."""
    status = HTTPStatus(response.status_code)
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode())]
    lines += [b"%b: %b\r\n" % each for each in add_headers(response).raw_headers]
    return b"".join(lines)


class EncodedResponse(Response):
    """A JSON answer to a POST, with its head encoded in advance. The connection can send the bytes
    as they are, which is faster than by uvicorn. One object may answer many requests.

    Args:
        body, status: its encoded body and its HTTP status.

    Attributes:
        head: its head, from :func:`encode_head`.
    """

    def __init__(self, body: bytes, status: int) -> None:
        super().__init__(body, status, media_type="application/json")
        self.head = encode_head(self)


def policy(scripts: Sequence[str], frame_ancestors: Sequence[str] = ()) -> str:
    """Return the value of the header Content-Security-Policy of a page. Scripts from files of this
    server are permitted.

    Args:
        scripts: sources that permit its inline scripts, such as ``'sha256-…'``.
        frame_ancestors: origins of the pages that may embed it; empty for none.
    """
    common = CONTENT_SECURITY_POLICY
    if frame_ancestors:
        common = common.replace(_NOT_FRAMED, f"frame-ancestors {' '.join(frame_ancestors)}")
    return f"{common}; script-src 'self' {' '.join(scripts)}"


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
"""Headers that tell how complete an answer is: the name, meaning and schema of each, by the member
of the answer that has the same value."""
FRESH_S: Final = 1
"""Seconds for which a browser may use its copy of an answer without a request."""
CSV: Final = "text/csv"
LEAST_BYTES: Final = 1_024
"""Minimum bytes of a body that is compressed: a smaller one fits into one packet uncompressed."""
IN_THREAD_BYTES: Final = 64 << 10
"""Minimum bytes of a body that is compressed in a thread; smaller ones are compressed in the event
loop."""
_TYPES: Final = frozenset(
    ("application/json", "text/csv", "text/plain", "application/openmetrics-text")
)
_LEVEL: Final = 1
"""Level of compression: JSON becomes a tenth. Higher levels take several times as long and save
little more."""


def wants_csv(request: Request, format: str | None) -> bool:
    """Return whether a request asks for CSV. The parameter ``format`` decides; if it is None, the
    header Accept decides: it has to contain text/csv, and not application/json."""
    if format is not None:
        return format == "csv"
    accept = request.headers.get("accept", "")
    return CSV in accept and "application/json" not in accept


def freshness(limits: dict[str, Any]) -> dict[str, str]:
    """Return the headers of :data:`FRESHNESS` for an answer, in JSON or CSV. A member of ``limits``
    that is None or False gets no header, except ``complete_up_to``: its header is ``unknown`` then.

    Args:
        limits: all or some members of :meth:`countersink.counting.totals.query.Answer.limits`;
            ``complete_up_to`` must be among them.
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
    """Return an answer with a JSON document. If the request's If-None-Match has the document's
    ETag, return 304 without the document. The document is ASCII: other characters are escaped.

    Args:
        request: the request.
        content: the members of the document on which the ETag depends.
        fresh: further members of the document, on which the ETag does not depend.
        headers: further headers, from :func:`freshness`.
        pending: whether the answer includes pending rows. If True, browsers must ask the server
            each time before they use a cached copy. If False, they may use it for :data:`FRESH_S`
            seconds without asking.
    """
    known = json.dumps(content)
    body = f"{known[:-1]}, {json.dumps(fresh)[1:]}" if fresh else known
    return _answer(request, known, body, "application/json", headers, pending)


def csv_answer(
    request: Request, text: str, headers: Mapping[str, str], *, name: str, pending: bool
) -> Response:
    """Return a text in CSV (RFC 4180) as an answer, or 304 if the request's If-None-Match has the
    ETag, which depends on the text. ``name`` is the file name under which a browser saves it. The
    other arguments are as for :func:`json_answer`."""
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
    if matches(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=every)
    return Response(
        body.encode("utf-8", "surrogateescape"), headers={**every, "Content-Type": media_type}
    )


def matches(condition: str | None, tag: str) -> bool:
    """Return whether ``condition``, the value of If-None-Match or None, lists the ETag ``tag``, by
    weak comparison (RFC 9110, 8.8.3.2), or is ``*``, which matches every tag (13.1.2)."""
    tags = [each.strip().removeprefix("W/") for each in (condition or "").split(",")]
    return tags == ["*"] or tag.removeprefix("W/") in tags


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the value of a header Accept-Encoding names gzip or x-gzip with a weight that
    is not 0 (RFC 9110, 12.5.3). ``*`` does not suffice, nor does an empty value."""
    for part in accept_encoding.lower().split(","):
        coding, *parameters = (each.strip() for each in part.split(";"))
        if coding in ("gzip", "x-gzip"):
            weights = [each[2:].strip() for each in parameters if each.startswith("q=")]
            return not any(weight.strip("0.") == "" for weight in weights)
    return False


async def compress(scope: Scope, response: Response, services: Services) -> None:
    """Compress the body of ``response`` with gzip, in place, and change its headers. This is done
    only if the body has at least :data:`LEAST_BYTES`, a media type of :data:`_TYPES` and no
    Content-Encoding, the client accepts gzip, and BREACH is no risk (see the module). Streamed
    bodies (server-sent events) stay uncompressed.

    Args:
        scope: the ASGI scope of the request.
        response: the answer.
        services: have the threads in which a large body is compressed.
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
    """Return whether a request with the headers ``asked`` may get a compressed answer without the
    risk of BREACH: its Sec-Fetch-Site says that it comes from a page of this server or from no
    page; or it has neither Sec-Fetch-Site nor a cookie."""
    site = asked.get("sec-fetch-site")
    return "cookie" not in asked if site is None else site in ("same-origin", "none")


def _gzipped(body: bytes | memoryview) -> bytes:
    packer = zlib.compressobj(_LEVEL, wbits=16 + zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()
