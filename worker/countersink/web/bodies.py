"""The bodies of requests: bounded, as they come and as they are unpacked."""

import zlib
from typing import Final

from starlette.requests import ClientDisconnect, Request

from countersink.web.problem import Problem
from countersink.web.services import Services

_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": 15}
"""Content codings, and the ``wbits`` of zlib that unpack them (RFC 9110, 8.4.1)."""

MAX_ARRIVING: Final = 32 << 20
"""Bytes of all bodies together of which a part is still on its way; or one body, where that may be
larger. Whoever sends many at a time, and none of them to its end, takes no more than this."""


async def read(request: Request, services: Services, limit: int | None = None) -> bytes:
    """The body, unpacked.

    Args:
        request: whose body nobody has read.
        services: for the settings.
        limit: bytes, before and after unpacking; default: ``max_body_bytes``.

    Raises:
        Problem: 413 it is larger; 415 it is packed in a way that we do not know; 400 it cannot be
            unpacked; 503 too many large ones are on their way.
        ClientDisconnect: it did not arrive as a whole.
    """
    limit = services.options.max_body_bytes if limit is None else limit
    headers = request.headers
    length = headers.get("content-length")
    if length is not None and (len(length) > 15 or int(length) > limit):
        raise too_large(limit)
    body = await _received(request, services, limit)
    coding = headers.get("content-encoding")
    if coding is None or not body:
        return body
    return unpack(body, coding, limit)


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
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise _broken(coding) from None
    if len(unpacked) > limit:
        raise too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise _broken(coding)
    return unpacked


def too_large(limit: int) -> Problem:
    """What is told whose body has more than ``limit`` bytes; the connection ends with it."""
    return Problem(
        413,
        f"The body is larger than {limit:,} bytes: send it in parts",
        headers={"Connection": "close"},
    )


def _broken(coding: str) -> Problem:
    return Problem(400, f"The body is not whole, or not {coding} as its Content-Encoding says")


async def _received(request: Request, services: Services, limit: int) -> bytes:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    if len(body) > limit:
        raise too_large(limit)
    if not message.get("more_body", False):
        return bytes(body)
    parts, size = [body], len(body)
    most = max(MAX_ARRIVING, services.options.max_body_bytes)
    services.arriving.size += size
    try:
        while message.get("more_body", False):
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            services.arriving.size += len(part)
            if size > limit:
                raise too_large(limit)
            if services.arriving.size > most:
                raise Problem(
                    503,
                    "Too many large bodies arrive at once: try again, or send smaller ones",
                    headers={"Retry-After": "2", "Connection": "close"},
                )
    finally:
        services.arriving.size -= size
    return b"".join(parts)
