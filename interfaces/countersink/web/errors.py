"""Errors of the HTTP interface.

::

    Exception
    ├── Problem      ends a request; the answer is application/problem+json (RFC 9457)
    └── CannotServe  the server cannot start; the message has the remedy
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlette.responses import Response

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Exception):
    """Ends a request with an HTTP status and a sentence for the client.

    Attributes:
        status: the HTTP status.
        detail: the sentence: what is wrong and what to do, without internal details.
        headers: further headers of the answer, with ``Retry-After`` if it is given.
        extra: further members of the problem document, such as ``errors``.

    Args:
        status, detail, headers, extra: as the attributes.
        retry_after: seconds that the client should wait before its next attempt; the header
            ``Retry-After`` has them, rounded up and at least 1. None adds no header.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        self.extra = dict(extra or {})

    def response(self) -> "Response":
        """Return the answer to the request: the problem document as JSON."""
        document = {"status": self.status, "detail": self.detail, **self.extra}
        from starlette.responses import JSONResponse  # noqa: PLC0415 (an extra)

        return JSONResponse(
            document, status_code=self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


class CannotServe(Exception):
    """The server cannot start: no key is valid, and there is no terminal on which a new key could
    be shown; or it cannot listen at its address, for example because the address is in use."""
