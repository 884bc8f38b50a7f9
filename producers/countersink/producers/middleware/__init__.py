"""ASGI and WSGI middleware that counts an application's requests by route template and status.

A key is ``GET /users/{id} 200``: the route as the application wrote it, not the path that a client
sent, so that the number of keys is limited by the number of routes. A request without a route is
``GET __unmatched__ 404``. See ``count.py`` for keys and their limits, and docs/middleware.md.
"""

from countersink.producers.middleware.asgi import ASGIMiddleware
from countersink.producers.middleware.count import ROUTE, UNMATCHED
from countersink.producers.middleware.wsgi import WSGIMiddleware

__all__ = ["ROUTE", "UNMATCHED", "ASGIMiddleware", "WSGIMiddleware"]
