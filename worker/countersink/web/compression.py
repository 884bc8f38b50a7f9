"""Answers packed with gzip, where the client accepts it and it pays.

Whoever sees the length of packed answers on their way, and has a browser ask again and again with
text of their own in the answer, could learn the rest of it (BREACH). So nothing is packed that a
page of somebody else can have had a browser ask for: what has a cookie or another word of the
browser's on where it comes from is packed only if that word is that a page of ours asks.
"""

import zlib
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from countersink.web.services import Services

LEAST_BYTES: Final = 1_024
"""Of a body that is packed: less fits into one packet as it is."""
IN_THREAD_BYTES: Final = 64 << 10
"""Of a body that the event loop does not pack itself."""
_TYPES: Final = frozenset(
    ("application/json", "text/csv", "text/plain", "application/openmetrics-text")
)
_LEVEL: Final = 1
"""Numbers and names in JSON become a tenth; higher levels take several times as long for little."""


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client accepts gzip (RFC 9110, 12.5.3)."""
    for part in accept_encoding.lower().split(","):
        coding, *parameters = (each.strip() for each in part.split(";"))
        if coding in ("gzip", "x-gzip"):
            weights = [each[2:].strip() for each in parameters if each.startswith("q=")]
            return not any(weight.strip("0.") == "" for weight in weights)
    return False


async def pack(scope: Scope, response: Response, services: Services) -> None:
    """Pack the body of ``response`` to the request of ``scope``, unless something speaks against
    it.

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
