"""The gate: what every request goes through before, and every answer after, a door's handler."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from countersink.web.failures import answer_of
from countersink.web.identity import SCOPES, Identity
from countersink.web.routing import Table
from countersink.web.services import Services


class Gate:
    """Lets requests in.

    Args:
        table: the doors.
        services: what their handlers work with.
    """

    def __init__(self, table: Table, services: Services) -> None:
        self._table = table
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        response = await self._answer(scope, receive, send)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Response:
        try:
            door, parameters = self._table.find(scope["method"], scope["path"])
            scope["path_params"] = parameters
            request = Request(scope, receive, send)
            who = Identity(scopes=frozenset(SCOPES))
            return await door.handler(request, self._services, who)
        except Exception as error:
            return answer_of(error)
