"""The headers that every answer has, unless a handler has set its own."""

from typing import Final

from starlette.responses import Response

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)

ALWAYS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def complete(response: Response) -> Response:
    """``response`` with what it lacks."""
    raw = response.raw_headers
    there = {name for name, _ in raw}
    raw += [each for each in ALWAYS if each[0] not in there]
    return response
