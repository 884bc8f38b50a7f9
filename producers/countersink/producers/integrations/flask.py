"""Function ``count_requests``, which counts Flask requests by method, URL rule and status, with the
WSGI middleware.
"""

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
    """Count the requests of ``app`` (a ``flask.Flask``) under keys such as
    ``GET /users/<int:id> 200``.

    Wraps the present ``app.wsgi_app`` in the middleware, which therefore sees the statuses that
    clients get (unless ``app.wsgi_app`` is wrapped again later).

    Args:
        app: the application.
        producer: the producer that counts.
        counter: the name of the counter to which requests are added.
        max_routes: maximum of different URL rules; requests with further rules are counted as
            ``__other__``.
        dimensions: maps each dimension of the counter to the part of the request that is its value:
            ``method``, ``route`` or ``status``. By default requests are counted under keys, without
            dimensions.
        visitors: True also counts different visitors, by the client's address and user agent. A
            function instead of True returns the visitor of a WSGI environ, or None to count the
            request without a visitor.

    Raises:
        TypeError, ValueError: an argument is invalid.
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
    """Store the matched URL rule, if any, in the request's environ, where the middleware reads it
    when it counts the request. Flask's signal ``request_started`` calls this before a function of
    the application can refuse the request. All arguments are ignored.
    """
    rule = flask.request.url_rule
    if rule is not None:
        flask.request.environ[ROUTE] = rule.rule
