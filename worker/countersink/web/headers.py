"""The headers that every answer has, unless a handler has set its own."""

from typing import Final

from starlette.responses import Response

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
"""Of HTML."""

DATA: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    _NEVER_GUESSED,
    _NEVER_KEPT,
)
"""Of everything else, which no browser shows as a page: each header of an answer takes time."""

_NOT_MODIFIED: Final = 304


def complete(response: Response) -> Response:
    """``response`` with what it lacks."""
    raw = response.raw_headers
    there = dict(raw)
    if there.get(b"content-type", b"").startswith(b"text/html"):
        lacking = PAGE
    elif response.status_code == _NOT_MODIFIED:
        lacking = (_NEVER_KEPT,)  # the rest is that of the copy, which this would replace
    else:
        lacking = DATA
    raw += [each for each in lacking if each[0] not in there]
    return response
