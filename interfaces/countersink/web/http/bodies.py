"""Bodies of requests: Content-Length, gzip and media types, strict JSON, the answers 400, 413, 415
and 422 with their texts; the largest body is ``max_body_bytes`` in ``web/options.py``."""

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
"""Media types under which JSON may come; ``text/plain`` is what navigator.sendBeacon sends a text
as, without asking the server first."""
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": 15}
"""Content codings, and the ``wbits`` of zlib that unpack them (RFC 9110, 8.4.1)."""
_EXACT: Final = 2**53 - 1
"""Up to which a float that is whole is the number that was written."""
_DIGITS: Final = 20
"""Characters of a whole number of 64 bits, its sign included."""
_ITEM_PARTS: Final = 50
"""Strings, commas and brackets of an increment, at most: six members, one an object of eight."""
# A group is atomic, as possessive ones go wrong before Python 3.11.5 (python/cpython#106052). A
# string that nothing closes is one up to the end: else each quote in it would be looked at anew.
_PART: Final = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"?|[,{\[]', re.DOTALL)
T = TypeVar("T", bound=msgspec.Struct)


async def read(request: Request, services: Services, limit: int | None = None) -> bytes:
    """The body, unpacked.

    Args:
        request: whose body nobody has read.
        services: for the settings.
        limit: bytes, before and after unpacking; default: ``max_body_bytes``.

    Raises:
        Problem: 413 it is larger; 415 it is packed in a way that we do not know; 400 it cannot be
            unpacked.
        ClientDisconnect: it did not arrive as a whole.
    """
    limit = services.options.max_body_bytes if limit is None else limit
    headers: Mapping[bytes, bytes] = request.scope["countersink.headers"]
    length = headers.get(b"content-length")
    if length is not None and (len(length) > 15 or int(length) > limit):
        raise too_large(limit)
    body, more = b"", True
    while more:  # not by request.stream(), which costs POST /v1/increments a twentieth
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise too_large(limit)
    coding = headers.get(b"content-encoding")
    return unpack(body, coding.decode("latin-1"), limit) if coding and body else body


async def read_object(
    request: Request,
    services: Services,
    kind: type[T],
    *,
    limit: int = MAX_OBJECT_BYTES,
    optional: bool = False,
) -> T:
    """A body that is one JSON object, as a ``kind``, which forbids unknown members.

    Args:
        request, services, limit: as of :func:`read`.
        kind: of the object.
        optional: the body may be empty: it is ``kind()`` then.

    Raises:
        Problem: 400 it is no JSON; 413 it is too large; 415 it is something else; 422 it is not
            valid.
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
    """Whether a body of this media type may be JSON.

    Args:
        media_type: the header Content-Type; empty where there is none.

    Raises:
        Problem: 415.
    """
    if media_type.partition(";")[0].strip().lower() not in _JSON_TYPES:
        raise Problem(
            415,
            "The body is JSON: send it with Content-Type: application/json",
            headers={"Accept": "application/json"},
        )


def check_parts(body: bytes, items: int) -> None:
    """Check that a body of JSON is not packed with more than ``items`` items can have, before it is
    decoded: a megabyte of ``{},{},…`` would hold the event loop.

    Raises:
        Problem: 413.
    """
    most = items * _ITEM_PARTS
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= most:
        return
    # Those within strings are none: keys may be long.
    if next(islice(_PART.finditer(body), most, None), None) is not None:
        raise Problem(
            413, f"The body has more parts than {items:,} items may have: send it in parts"
        )


def read_json(body: bytes) -> Any:
    """JSON, in which a number that is whole is an int, also where it is written as ``743.0``.

    An object that has a member twice is refused, at any depth: which of the two counts, programs do
    not agree on, and whoever stands between may have looked at the other one (RFC 8259, 4).

    Raises:
        Problem: 422 a member is there twice.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: it is no JSON.
    """
    msgspec.json.decode(body)  # Python's own takes more: NaN, and halves of surrogate pairs
    return json.loads(body, object_pairs_hook=_object, parse_int=_whole, parse_float=_number)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        ((twice, _),) = Counter(name for name, _ in members).most_common(1)
        raise Problem(422, f"The body has the member {twice[:80]!r} twice in one object")
    return found


def _whole(text: str) -> int | float:
    # Beyond 64 bits it is no number of ours, and may have more digits than Python reads.
    return int(text) if len(text) <= _DIGITS else float(text)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if abs(value) <= _EXACT and value.is_integer() else value


def unpack(body: bytes, coding: str, limit: int) -> bytes:
    """``body`` without its content coding.

    Raises:
        Problem: as :func:`read`.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    window = _WINDOWS.get(coding)
    if window is None:
        raise Problem(
            415,
            "The body's Content-Encoding is not known: send it as it is, or as gzip or deflate",
            headers={"Accept-Encoding": "gzip, deflate"},
        )
    unpacker = zlib.decompressobj(window)
    try:
        found = unpacker.decompress(body, limit + 1)
    except zlib.error:
        found = b""
    if len(found) > limit:
        raise too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise Problem(400, f"The body is not whole, or not {coding} as its Content-Encoding says")
    return found


def too_large(limit: int) -> Problem:
    """What is told whose body has more than ``limit`` bytes; the connection ends with it."""
    return Problem(
        413,
        f"The body is larger than {limit:,} bytes: send it in parts",
        headers={"Connection": "close"},
    )
