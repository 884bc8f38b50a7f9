"""``Problem``, the document of an HTTP error (``application/problem+json``), and what keeps the
server from starting.

::

    Exception
    ├── Problem      ends a request: its answer is application/problem+json (RFC 9457)
    └── CannotServe  the server does not start; says what to do
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlette.responses import Response

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Exception):
    """Ends a request with a status and a sentence that says what to do.

    Attributes:
        status: of HTTP.
        detail: for the person at the other end; never anything of the inside.
        headers: more headers of the answer, such as ``Retry-After``.
        extra: more members of the document, such as ``errors``.

    Args:
        retry_after: seconds to wait before the next attempt, told in whole ones, at least one.
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
        """The answer."""
        document = {"status": self.status, "detail": self.detail, **self.extra}
        from starlette.responses import JSONResponse  # noqa: PLC0415 (an extra)

        return JSONResponse(
            document, status_code=self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


class CannotServe(Exception):
    """The server does not start: no key is valid, and nobody is there to be shown a new one; or its
    address is taken, or none of this machine's."""
