"""Counting an application's own requests by route template and status, in any ASGI or WSGI app;
keys and their bounds are in ``count.py``.

A key is ``GET /users/{id} 200``: the route as the app wrote it, never the path that a client sent,
so that the number of keys is that of the routes, not of the users. What no route matched is
``GET __unmatched__ 404``. See docs/middleware.md.
"""

from countersink.producers.middleware.asgi import ASGIMiddleware
from countersink.producers.middleware.count import ROUTE, UNMATCHED
from countersink.producers.middleware.wsgi import WSGIMiddleware

__all__ = ["ROUTE", "UNMATCHED", "ASGIMiddleware", "WSGIMiddleware"]
