"""Flask: counts requests by URL rule and status, through ``middleware/wsgi.py``."""

from collections.abc import Mapping
from typing import Any

import flask

from countersink.producers.middleware.count import MAX_NAMES, ROUTE, SupportsIncrement, Visitor
from countersink.producers.middleware.wsgi import WSGIMiddleware


def count_requests(
    app: Any,
    producer: SupportsIncrement,
    *,
    counter: str = "requests",
    max_routes: int = MAX_NAMES,
    dimensions: Mapping[str, str] | None = None,
    visitors: bool | Visitor = False,
) -> None:
    """Count the requests of ``app`` (a ``flask.Flask``) as ``GET /users/<int:id> 200``.

    It goes around ``app.wsgi_app`` as this is now, so that errors are seen as the client sees them.

    Args:
        app: the application.
        producer, counter, max_routes, dimensions, visitors: as of
            :class:`~countersink.producers.middleware.WSGIMiddleware`.

    Raises:
        TypeError, ValueError: an argument cannot be used.
    """
    app.wsgi_app = WSGIMiddleware(
        app.wsgi_app,
        producer,
        counter=counter,
        max_routes=max_routes,
        dimensions=dimensions,
        visitors=visitors,
    )
    flask.request_started.connect(_note_route, app, weak=False)


def _note_route(sender: object, **ignored: object) -> None:
    """Before any function of the app's, which may refuse the request: what the URL map says."""
    rule = flask.request.url_rule
    if rule is not None:
        flask.request.environ[ROUTE] = rule.rule
