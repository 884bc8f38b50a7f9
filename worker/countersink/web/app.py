"""The application: all doors behind one gate."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from countersink.producers import Producer
from countersink.web import (
    counters,
    dead,
    export,
    health,
    hits,
    ingest,
    live,
    login,
    openapi,
    pages,
    sequences,
    system,
    totals,
)
from countersink.web.application import Application
from countersink.web.door import Door
from countersink.web.options import WebOptions

DOORS: Final[tuple[Door, ...]] = (
    *ingest.DOORS,
    *hits.DOORS,
    *sequences.DOORS,
    *counters.DOORS,
    *totals.DOORS,
    *export.DOORS,
    *live.DOORS,
    *system.DOORS,
    *dead.DOORS,
    *health.DOORS,
    *pages.DOORS,
    *login.DOORS,
)
"""All doors, in the order of the document."""


def create_app(
    options: WebOptions,
    *,
    producer: Callable[[], Producer],
    system: Callable[[], Mapping[str, Any]],
    doors: Sequence[Door] = DOORS,
) -> Application:
    """The ASGI application.

    Args:
        options: its settings.
        producer: makes the one producer, when the application starts; it is closed at the end.
        system: see :class:`~countersink.web.services.Services`.
        doors: what there is.
    """
    return Application(
        options, producer=producer, system=system, doors=(*doors, openapi.door_of(doors))
    )
