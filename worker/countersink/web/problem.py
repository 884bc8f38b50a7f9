"""What a client is told when something is wrong: ``application/problem+json`` (RFC 9457)."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response

MEDIA_TYPE: Final = "application/problem+json"

TITLES: Final[Mapping[int, str]] = {
    400: "Bad request",
    401: "A key is needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    411: "Length required",
    413: "Too large",
    415: "Unsupported media type",
    421: "Unknown host",
    422: "Not valid",
    429: "Too many requests",
    431: "Headers too large",
    500: "Internal error",
    503: "Unavailable",
}


class Problem(Exception):
    """Ends a request with a status and a sentence that says what to do.

    Attributes:
        status: of HTTP, one of :data:`TITLES`.
        detail: for the person at the other end; never anything of the inside.
        headers: more headers of the answer, such as ``Retry-After``.
        extra: more members of the document, such as ``errors``.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def response(self) -> Response:
        """The answer."""
        document = {
            "type": "about:blank",
            "title": TITLES[self.status],
            "status": self.status,
            "detail": self.detail,
            **self.extra,
        }
        return JSONResponse(
            document, status_code=self.status, headers=self.headers, media_type=MEDIA_TYPE
        )
