"""Bodies of requests: size (413), decompression and media types (415), strict JSON (400, 422). See
``max_body_bytes`` in ``web/options.py`` for the largest body."""

import json
import logging
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from countersink.web.errors import Problem
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
MAX_OBJECT_BYTES: Final = 16 * 1024
_JSON_TYPES: Final = frozenset(("", "application/json", "text/plain"))
"""Media types of bodies that may be JSON. navigator.sendBeacon sends a text as ``text/plain``, and
browsers send no preflight request for that."""
_WBITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": 15}
"""zlib's ``wbits`` to decompress each content coding (RFC 9110, 8.4.1)."""
_EXACT: Final = 2**53 - 1
"""The largest whole number up to which a float represents all whole numbers exactly."""
_DIGITS: Final = 20
"""Maximum characters of a 64-bit integer, with its sign."""
_ITEM_PARTS: Final = 50
"""Maximum strings, commas and brackets of one increment: it has six members, and one of them may be
an object with eight."""
# An atomic group, as possessive groups are wrong before Python 3.11.5 (python/cpython#106052). An
# unclosed string matches up to the end: else the search would start again at each of its quotes.
_PART: Final = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"?|[,{\[]', re.DOTALL)
T = TypeVar("T", bound=msgspec.Struct)


async def read(request: Request, services: Services, limit: int | None = None) -> bytes:
    """Return the body of a request, decompressed; empty if it has none.

    Args:
        request: a request whose body was not read yet.
        services: have the settings.
        limit: maximum bytes, before and after decompression; None for the option
            ``max_body_bytes``.

    Raises:
        Problem: 413 the body is too large; 415 its content coding is unknown; 400 it cannot be
            decompressed.
        ClientDisconnect: the client disconnected before the end of the body.
    """
    limit = services.options.max_body_bytes if limit is None else limit
    headers: Mapping[bytes, bytes] = request.scope["countersink.headers"]
    length = headers.get(b"content-length")
    if length is not None and (len(length) > 15 or int(length) > limit):
        raise too_large(limit)
    body, more = b"", True
    while more:  # request.stream() would make POST /v1/increments 5 % slower
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise too_large(limit)
    coding = headers.get(b"content-encoding")
    return decompress(body, coding.decode("latin-1"), limit) if coding and body else body


async def read_object(
    request: Request,
    services: Services,
    kind: type[T],
    *,
    limit: int = MAX_OBJECT_BYTES,
    optional: bool = False,
) -> T:
    """Return the JSON object in a body, as an instance of ``kind``.

    Args:
        request, services: as for :func:`read`.
        limit: maximum bytes, before and after decompression.
        kind: the struct of the object; it should forbid unknown members.
        optional: True returns ``kind()`` for an empty body; False refuses it with 400.

    Raises:
        Problem: 400 the body is not JSON, or cannot be decompressed; 413 it is too large; 415 its
            media type or content coding is not supported; 422 it is not a valid ``kind``, it is
            nested too deeply, or an object has a member twice.
        ClientDisconnect: the client disconnected before the end of the body.
    """
    check_json(request.headers.get("content-type", ""))
    body = await read(request, services, limit)
    if optional and not body:
        return kind()
    try:
        return msgspec.convert(read_json(body), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Problem(422, f"The body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Problem(400, "The body is not JSON") from None


def check_json(media_type: str) -> None:
    """Check that the media type of a body is ``application/json``, ``text/plain``, or missing.

    Args:
        media_type: value of the header Content-Type; empty where there is none.

    Raises:
        Problem: 415 the media type is another one.
    """
    if media_type.partition(";")[0].strip().lower() not in _JSON_TYPES:
        raise Problem(
            415,
            "The body must be JSON: send it with Content-Type: application/json",
            headers={"Accept": "application/json"},
        )


def check_parts(body: bytes, items: int) -> None:
    """Refuse a JSON body that has more parts than ``items`` increments can have
    (:data:`_ITEM_PARTS` each). The check comes before decoding, because the decoding of a megabyte
    of ``{},{},…`` would block the event loop.

    First, all commas and opening brackets are counted, which is fast. Only if these are too many,
    the parts are counted: strings, and commas and opening brackets outside strings.

    Raises:
        Problem: 413 both counts are too high.
    """
    most = items * _ITEM_PARTS
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= most:
        return
    # Exactly: characters within strings are no parts, and keys may be long.
    if next(islice(_PART.finditer(body), most, None), None) is not None:
        raise Problem(
            413, f"The body has more values than {items:,} items may have: send several requests"
        )


def read_json(body: bytes) -> Any:
    """Return the value of a JSON body. Whole numbers become ints, also those written with a
    fraction or exponent, such as ``743.0``. Two kinds of whole numbers become floats: those without
    fraction and exponent that have more than 20 characters, and those with fraction or exponent
    beyond 2**53 - 1. A float may be infinite.

    An object that has a member twice is refused, at any depth. Programs differ in which of the two
    they use, and a proxy in front of this server may have checked the other one (RFC 8259, 4).

    Raises:
        Problem: 422 an object has a member twice.
        msgspec.ValidationError: a number with a fraction or exponent is beyond the floats.
        msgspec.DecodeError, UnicodeDecodeError: the body is not JSON.
        RecursionError: the body is nested too deeply.
    """
    msgspec.json.decode(body)  # refuses NaN and lone surrogates, which json.loads takes
    return json.loads(body, object_pairs_hook=_object, parse_int=_whole, parse_float=_number)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        ((repeated, _),) = Counter(name for name, _ in members).most_common(1)
        raise Problem(422, f"The body has the member {repeated[:80]!r} twice in one object")
    return found


def _whole(text: str) -> int | float:
    # A float beyond 64 bits: int() refuses numbers with thousands of digits.
    return int(text) if len(text) <= _DIGITS else float(text)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if abs(value) <= _EXACT and value.is_integer() else value


def decompress(body: bytes, coding: str, limit: int) -> bytes:
    """Return ``body``, decompressed by its content coding ``gzip``, ``x-gzip`` or ``deflate``;
    unchanged for ``identity`` and an empty ``coding``.

    Raises:
        Problem: 413 the result has more than ``limit`` bytes; 415 the coding is unknown; 400 the
            body cannot be decompressed, is incomplete, or has bytes after its end.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    wbits = _WBITS.get(coding)
    if wbits is None:
        raise Problem(
            415,
            "The body's Content-Encoding is unknown: send it uncompressed, or as gzip or deflate",
            headers={"Accept-Encoding": "gzip, deflate"},
        )
    decompressor = zlib.decompressobj(wbits)
    try:
        found = decompressor.decompress(body, limit + 1)
    except zlib.error:
        found = b""
    if len(found) > limit:
        raise too_large(limit)
    if not decompressor.eof or decompressor.unused_data:
        raise Problem(400, f"The body is incomplete, or not {coding} as its Content-Encoding says")
    return found


def too_large(limit: int) -> Problem:
    """Return the problem (413) of a body of more than ``limit`` bytes. Its answer ends the
    connection."""
    return Problem(
        413,
        f"The body is larger than {limit:,} bytes: send several requests",
        headers={"Connection": "close"},
    )
