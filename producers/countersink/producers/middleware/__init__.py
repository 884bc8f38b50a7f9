"""ASGI and WSGI middleware that counts an application's requests by route template and status.

A key is ``GET /users/{id} 200``: the route as the application wrote it, not the path that a client
sent, so that there are no more keys than routes, methods and statuses allow. A request for which no
route matched is counted as ``GET __unmatched__ 404``. See ``count.py`` for keys and their limits,
and docs/middleware.md.
"""

from countersink.producers.middleware.asgi import ASGIMiddleware
from countersink.producers.middleware.count import ROUTE, UNMATCHED
from countersink.producers.middleware.wsgi import WSGIMiddleware

__all__ = ["ROUTE", "UNMATCHED", "ASGIMiddleware", "WSGIMiddleware"]
