"""The bodies of requests: bounded, as they come and as they are unpacked."""

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request

from countersink.web.problem import Problem
from countersink.web.services import Services

_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": 15}
"""Content codings, and the ``wbits`` of zlib that unpack them (RFC 9110, 8.4.1)."""

MAX_MEMBERS: Final = 1_000
"""Of a body that is packed with gzip in parts (RFC 1952, 2.2): as many as there may be items."""
_EXACT: Final = 2**53 - 1
"""Up to which a float that is whole is the number that was written."""
_DIGITS: Final = 20
"""Characters of a whole number of 64 bits, its sign included."""
_PIECE: Final = 64 << 10
"""Bytes that are unpacked at a time: zlib copies what is left of them at the end of each member."""


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
    size, more = 0, True
    while more:
        part, more = await _part(request)
        size += len(part)
        if size > limit:
            raise too_large(limit)


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
        raise _broken(coding) from None


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


def too_large(limit: int) -> Problem:
    """What is told whose body has more than ``limit`` bytes; the connection ends with it."""
    return Problem(
        413,
        f"The body is larger than {limit:,} bytes: send it in parts",
        headers={"Connection": "close"},
    )


def _broken(coding: str) -> Problem:
    return Problem(400, f"The body is not whole, or not {coding} as its Content-Encoding says")


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


def _announced(request: Request, limit: int) -> bytes | None:
    """The Content-Encoding. Raises Problem if the Content-Length is beyond the limit."""
    found: Mapping[bytes, bytes] = request.scope["countersink.heads"]
    length = found.get(b"content-length")
    if length is not None and (len(length) > 15 or int(length) > limit):
        raise too_large(limit)
    return found.get(b"content-encoding")


async def _received(request: Request, limit: int) -> bytes:
    parts, size, more = [], 0, True
    while more:
        part, more = await _part(request)
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _part(request: Request) -> tuple[bytes, bool]:
    """What has come of the body since the last time, and whether there is more."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
