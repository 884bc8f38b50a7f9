"""The state of the whole installation, and who is asking."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.memory import OnePer
from countersink.web.parameters import read
from countersink.web.services import Services

FRESH_S: Final = 1.0
"""Seconds that one look at both servers serves everybody who asks."""


class Glimpse:
    """The state, looked at once however many ask at a time.

    Args:
        services: whose ``system`` is asked.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._state: Mapping[str, Any] = {}

    async def state(self) -> Mapping[str, Any]:
        """The document of ``countersink info``, not older than :data:`FRESH_S`.

        Raises:
            StreamError: Redis did not do its part. (What MySQL does not tell is null in it.)
        """
        async with self._lock:
            if time.monotonic() >= self._until:
                self._state = await self._services.run(self._services.system)
                self._until = time.monotonic() + FRESH_S
        return self._state


_GLIMPSES: Final = OnePer(Glimpse)


async def system(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/system``."""
    read(request, ())
    return JSONResponse(dict(await _GLIMPSES.of(services).state()))


async def whoami(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/whoami``."""
    read(request, ())
    return JSONResponse(
        {
            "key": who.key_id or None,
            "name": who.name or None,
            "scopes": sorted(who.scopes),
            "counters": list(who.counters),
            "login": bool(who.session),
        }
    )


def _json(description: str, properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_TEXT: Final = {"type": ["string", "null"]}
_COUNT: Final = {"type": "integer"}
_LIST: Final = {"type": "array", "items": {"type": "object"}}

_SYSTEM: Final[dict[str, Any]] = {
    "operationId": "system",
    "tags": ["system"],
    "summary": "The state of the whole installation",
    "description": "What `countersink info --format json` prints; looked at once a second.",
    "responses": {
        "200": _json(
            "Everything known; what MySQL did not tell is null.",
            {
                "at": {"type": "string", "description": "ISO 8601, Redis's clock"},
                "backlog": _COUNT | {"description": "entries that wait in the queue"},
                "pending": _COUNT | {"description": "of those, delivered to a worker"},
                "oldest": _TEXT | {"description": "ISO 8601; since when the oldest waits"},
                "lag_ms": _COUNT | {"description": "milliseconds that the oldest has waited"},
                "rows_per_second": {"type": "number"},
                "dead": {"type": ["integer", "null"], "description": "dead letters"},
                "dead_by_reason": {"type": ["object", "null"]},
                "dead_unknown": _TEXT,
                "streams": _LIST,
                "workers": _LIST,
                "schedules": {"type": "object"},
            },
            ["at", "backlog", "pending", "oldest", "lag_ms", "streams", "workers", "schedules"],
        )
    },
}

_WHOAMI: Final[dict[str, Any]] = {
    "operationId": "whoami",
    "tags": ["system"],
    "summary": "Whose key this is, and what it may do",
    "responses": {
        "200": _json(
            "The key, or nulls where none is needed.",
            {
                "key": _TEXT | {"description": "the public part of the key"},
                "name": _TEXT,
                "scopes": {"type": "array", "items": {"enum": ["ingest", "read", "admin"]}},
                "counters": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "shell patterns of the counters it is for; empty: all",
                },
                "login": {"type": "boolean", "description": "by the cookie of the dashboard"},
            },
            ["key", "name", "scopes", "counters", "login"],
        )
    },
}

DOORS: Final[tuple[Door, ...]] = (
    Door(
        method="GET",
        path="/v1/system",
        handler=system,
        scope="read",
        whole=True,
        operation=_SYSTEM,
    ),
    Door(method="GET", path="/v1/whoami", handler=whoami, scope="read", operation=_WHOAMI),
)
