"""``/livez``, ``/readyz`` and ``/metrics``."""

from typing import Any, Final
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.services import Services
from countersink.web.watch import Watch

_watches: "WeakKeyDictionary[Services, Watch]" = WeakKeyDictionary()
"""One for each application, made when it is first asked."""


async def livez(request: Request, services: Services, who: Identity) -> Response:
    """It answers, so it lives."""
    return PlainTextResponse("ok\n")


async def readyz(request: Request, services: Services, who: Identity) -> Response:
    """Whether it can take increments; what is wrong is for the log and for /metrics."""
    if services.stopping.is_set() or not await _watch(services).is_ready():
        return PlainTextResponse("not ready\n", 503)
    return PlainTextResponse("ok\n")


async def metrics(request: Request, services: Services, who: Identity) -> Response:
    """The process and the installation, for Prometheus."""
    body, media_type = await _watch(services).metrics(request.headers.get("accept", ""))
    # Not the argument: Starlette would add a charset of its own.
    return Response(body, headers={"Content-Type": media_type})


def _watch(services: Services) -> Watch:
    found = _watches.get(services)
    if found is None:
        found = _watches[services] = Watch(services)
    return found


def _text(description: str, *media_types: str) -> dict[str, Any]:
    schema = {"schema": {"type": "string"}}
    return {
        "description": description,
        "content": dict.fromkeys(media_types or ("text/plain",), schema),
    }


DOORS: Final = (
    Door(
        method="GET",
        path="/livez",
        handler=livez,
        scope=None,
        operation={
            "summary": "Whether the process lives",
            "description": "It says nothing of the servers behind it: starting this process again"
            " would not bring them back.",
            "tags": ["health"],
            "responses": {"200": _text("It does.")},
        },
    ),
    Door(
        method="GET",
        path="/readyz",
        handler=readyz,
        scope=None,
        operation={
            "summary": "Whether the process can take increments",
            "description": "Redis answers, or there is a spool, and it was not told to stop.",
            "tags": ["health"],
            "responses": {"200": _text("It can."), "503": _text("It cannot, for now.")},
        },
    ),
    Door(
        method="GET",
        path="/metrics",
        handler=metrics,
        scope="read",
        whole=True,
        operation={
            "summary": "Metrics for Prometheus",
            "description": "Of this process and of the installation as a whole, in Prometheus' text"
            " format, or OpenMetrics where Accept asks for it.",
            "tags": ["health"],
            "responses": {
                "200": _text("The metrics.", "text/plain", "application/openmetrics-text")
            },
        },
    ),
)
"""The doors."""
