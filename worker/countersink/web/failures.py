"""What a client is told when a handler raises."""

import logging
import secrets
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from countersink.store.errors import Conflict, ReadInterrupted, Unavailable
from countersink.stream.errors import StreamUnavailable
from countersink.web.problem import Problem

LOGGER: Final = logging.getLogger("countersink.web")
RETRY_AFTER_S: Final = 2


def answer_of(error: Exception) -> Response:
    """The answer for ``error``; of what nobody foresaw only a number that is in the log, too."""
    if isinstance(error, Problem):
        return error.response()
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)  # nobody is there to read it
    if isinstance(error, ReadInterrupted):
        LOGGER.warning("a read took too long: %s", error, extra={"action": "too_slow"})
        return Problem(
            503,
            "This took too long and was given up: ask for less, or again in a while",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        ).response()
    if isinstance(error, Unavailable | StreamUnavailable | Conflict):
        LOGGER.warning("a server is away: %s", error, extra={"action": "unavailable"})
        return Problem(
            503,
            "A server behind this one is away or busy: try again",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        ).response()
    incident = secrets.token_hex(4)
    LOGGER.error(
        "a request failed",
        extra={"action": "request_failed", "fields": {"incident": incident}},
        exc_info=error,
    )
    return Problem(
        500,
        f"This should not have happened; the log has it under the number {incident}",
        extra={"incident": incident},
    ).response()
