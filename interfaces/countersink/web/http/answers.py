"""Answers of the read API as JSON or CSV: headers for freshness, ETag and 304, Cache-Control, which
is asked for (``format``, Accept), and gzip: from which size, when not.

The tag is weak, and is of what was asked for, not of the moment: an answer that says the same of a
later time has the same tag, so that a page that looks again and again is told 304 until a number
has changed. How fresh the answer is stands in a header, too, which a 304 renews.

All answers are packed with gzip where the client accepts it and it pays. Whoever sees the length of
packed answers on their way, and has a browser ask again and again with text of their own in the
answer, could learn the rest of it (BREACH). So nothing is packed that a page of somebody else can
have had a browser ask for: what has a cookie or another word of the browser's on where it comes
from is packed only if that word is that a page of ours asks.
"""

import json
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from countersink.web.services import Services

_TEXT: Final = {"type": "string"}
_TIME: Final = {"type": "string", "format": "date-time"}
FRESHNESS: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "complete_up_to": (
        "Countersink-Complete-Up-To",
        "Everything that reached Redis before it is in the answer; `unknown`: Redis did not tell.",
        _TEXT,
    ),
    "rolled_up_to": (
        "Countersink-Rolled-Up-To",
        "The first day of which everything can still be told.",
        {"type": "string", "format": "date"},
    ),
    "since": (
        "Countersink-Since",
        "Events from before this time are missing: the breakdown that answers was declared then.",
        _TIME,
    ),
    "told_from": (
        "Countersink-Told-From",
        "Days, hours or minutes before this one are missing: they are rolled up to wider buckets.",
        _TIME,
    ),
    "truncated": (
        "Countersink-Truncated",
        "Only a part is in the answer: the largest, or of a series the days with the most counts.",
        {"type": "string", "enum": ["true"]},
    ),
}
"""By the member of an answer: the header that says the same, what it means, and its schema."""
FRESH_S: Final = 1
"""Seconds for which a browser may take its copy without asking."""
CSV: Final = "text/csv"
LEAST_BYTES: Final = 1_024
"""Of a body that is packed: less fits into one packet as it is."""
IN_THREAD_BYTES: Final = 64 << 10
"""Of a body that the event loop does not pack itself."""
_TYPES: Final = frozenset(
    ("application/json", "text/csv", "text/plain", "application/openmetrics-text")
)
_LEVEL: Final = 1
"""Numbers and names in JSON become a tenth; higher levels take several times as long for little."""


def wants_csv(request: Request, format: str | None) -> bool:
    """Whether CSV is asked for: by the parameter ``format``, else by the header ``Accept``."""
    if format is not None:
        return format == "csv"
    accept = request.headers.get("accept", "")
    return CSV in accept and "application/json" not in accept


def freshness(limits: dict[str, Any]) -> dict[str, str]:
    """The headers that say how fresh and how whole an answer is, in JSON and CSV alike.

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
    """A JSON document, in ASCII: every key survives every client.

    Args:
        request: what is answered.
        content: the members that the tag is of.
        fresh: members that change with time alone.
        headers: from :func:`freshness`.
        pending: the answer has what is still in the queue, so no copy of it may be taken unasked.
    """
    known = json.dumps(content)
    body = f"{known[:-1]}, {json.dumps(fresh)[1:]}" if fresh else known
    return _answer(request, known, body, "application/json", headers, pending)


def csv_answer(
    request: Request, text: str, headers: Mapping[str, str], *, name: str, pending: bool
) -> Response:
    """A text in CSV (RFC 4180), to be kept as ``name``."""
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
    # Keys that are no UTF-8 come out of the table as lone surrogates, and go out as they were.
    digest = blake2b(media_type.encode(), digest_size=16)
    digest.update(known.encode("utf-8", "surrogateescape"))
    tag = f'W/"{digest.hexdigest()}"'
    every = {
        **headers,
        "ETag": tag,
        "Cache-Control": "private, no-cache" if pending else f"private, max-age={FRESH_S}",
        "Vary": "Accept, Accept-Encoding, Authorization, X-API-Key, Cookie",
    }
    if _has(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=every)
    return Response(
        body.encode("utf-8", "surrogateescape"), headers={**every, "Content-Type": media_type}
    )


def _has(condition: str | None, tag: str) -> bool:
    """Whether a tag is among those that the client has (weak comparison, RFC 9110, 8.8.3.2)."""
    if condition is None:
        return False
    bare = tag.removeprefix("W/")
    return any(one.strip().removeprefix("W/") == bare for one in condition.split(","))


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client accepts gzip (RFC 9110, 12.5.3)."""
    for part in accept_encoding.lower().split(","):
        coding, *parameters = (each.strip() for each in part.split(";"))
        if coding in ("gzip", "x-gzip"):
            weights = [each[2:].strip() for each in parameters if each.startswith("q=")]
            return not any(weight.strip("0.") == "" for weight in weights)
    return False


async def compress(scope: Scope, response: Response, services: Services) -> None:
    """Pack the body of ``response`` to the request of ``scope`` with gzip, unless something speaks
    against it.

    Bodies that are sent piece by piece, as server-sent events are, stay as they are.
    """
    body = getattr(response, "body", b"")
    if len(body) < LEAST_BYTES:
        return
    there = response.headers
    media_type = there.get("content-type", "").partition(";")[0]
    if media_type not in _TYPES or "content-encoding" in there:
        return
    asked = Headers(scope=scope)
    if not (accepts_gzip(asked.get("accept-encoding", "")) and _is_safe(asked)):
        return
    if len(body) < IN_THREAD_BYTES:
        response.body = _packed(body)
    else:
        response.body = await services.run(_packed, body)
    there["content-length"] = str(len(response.body))
    there["content-encoding"] = "gzip"
    there.add_vary_header("Accept-Encoding")


def _is_safe(asked: Headers) -> bool:
    """Whether nobody else's page can have made a browser ask this."""
    site = asked.get("sec-fetch-site")
    return "cookie" not in asked if site is None else site in ("same-origin", "none")


def _packed(body: bytes | memoryview) -> bytes:
    packer = zlib.compressobj(_LEVEL, wbits=16 + zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()
