"""Bodies of requests: Content-Length, gzip and media types, strict JSON, the answers 400, 413, 415
and 422 with their texts; the largest body is ``max_body_bytes`` in ``web/options.py``."""

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from countersink.web.errors import Problem
from countersink.web.services import Services

MAX_OBJECT_BYTES: Final = 16 * 1024
_JSON_TYPES: Final = frozenset(("", "application/json", "text/plain"))
"""Media types under which JSON may come; ``text/plain`` is what navigator.sendBeacon sends a text
as, without asking the server first."""
MAX_MEMBERS: Final = 1_000
"""Of a body that is packed with gzip in parts (RFC 1952, 2.2): as many as there may be items."""
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": 15}
"""Content codings, and the ``wbits`` of zlib that unpack them (RFC 9110, 8.4.1)."""
_EXACT: Final = 2**53 - 1
"""Up to which a float that is whole is the number that was written."""
_DIGITS: Final = 20
"""Characters of a whole number of 64 bits, its sign included."""
_PIECE: Final = 64 << 10
"""Bytes that are unpacked at a time: zlib copies what is left of them at the end of each member."""
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
    coding = _announced(request, limit)
    body = await _received(request, limit)
    if coding is None or not body:
        return body
    return unpack(body, coding.decode("latin-1"), limit)


async def read_object(
    request: Request,
    services: Services,
    kind: type[T],
    *,
    limit: int | None = MAX_OBJECT_BYTES,
    optional: bool = False,
    advice: str = "",
) -> T:
    """A body that is one JSON object, as a ``kind``, which forbids unknown members.

    Args:
        request, services, limit: as of :func:`read`.
        kind: of the object.
        optional: the body may be empty: it is ``kind()`` then.
        advice: what to send, for whoever sends no JSON.

    Raises:
        Problem: 400 it is no JSON; 413 it is too large; 415 it is something else; 422 it is not
            valid.
    """
    media_type = request.headers.get("content-type", "")
    check_json(media_type, "The body is JSON, or empty" if optional else "The body is JSON")
    body = await read(request, services, limit)
    if optional and not body:
        return kind()
    try:
        return msgspec.convert(read_json(body), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Problem(422, f"The body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Problem(400, f"The body is not JSON{advice}") from None


def check_json(media_type: str, what: str = "The body is JSON") -> None:
    """Whether a body of this media type may be JSON.

    Args:
        media_type: the header Content-Type; empty where there is none.
        what: the body has to be.

    Raises:
        Problem: 415.
    """
    if media_type.partition(";")[0].strip().lower() not in _JSON_TYPES:
        raise Problem(
            415,
            f"{what}: send it with Content-Type: application/json",
            headers={"Accept": "application/json"},
        )


async def discard(request: Request, limit: int) -> None:
    """Let a body arrive of which nothing is wanted, and keep none of it.

    Args:
        request: whose body nobody has read.
        limit: bytes.

    Raises:
        Problem: 413 it is larger.
        ClientDisconnect: it did not arrive as a whole.
    """
    _announced(request, limit)
    await _received(request, limit, keep=False)


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
    try:
        return _unpacked(memoryview(body), window, limit)
    except (zlib.error, EOFError):
        raise Problem(
            400, f"The body is not whole, or not {coding} as its Content-Encoding says"
        ) from None


def _unpacked(packed: memoryview, window: int, limit: int) -> bytes:
    """All members one after the other.

    Raises:
        Problem: 413 it is larger than ``limit``.
        EOFError, zlib.error: it is not whole, or something else.
    """
    parts: list[bytes] = []
    size = begin = members = 0
    while begin < len(packed):
        members += 1
        if members > (MAX_MEMBERS if window > zlib.MAX_WBITS else 1):
            raise EOFError
        unpacker = zlib.decompressobj(window)
        while not unpacker.eof:
            piece = packed[begin : begin + _PIECE]
            if not piece:
                raise EOFError
            part = unpacker.decompress(piece, limit + 1 - size)
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
            begin += len(piece) - len(unpacker.unused_data)
    return b"".join(parts)


def too_large(limit: int) -> Problem:
    """What is told whose body has more than ``limit`` bytes; the connection ends with it."""
    return Problem(
        413,
        f"The body is larger than {limit:,} bytes: send it in parts",
        headers={"Connection": "close"},
    )


def _announced(request: Request, limit: int) -> bytes | None:
    """The Content-Encoding. Raises Problem if the Content-Length is beyond the limit."""
    found: Mapping[bytes, bytes] = request.scope["countersink.headers"]
    length = found.get(b"content-length")
    if length is not None and (len(length) > 15 or int(length) > limit):
        raise too_large(limit)
    return found.get(b"content-encoding")


async def _received(request: Request, limit: int, *, keep: bool = True) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if keep:
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
