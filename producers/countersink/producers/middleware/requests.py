"""What is counted of a request, whichever interface it came by."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

from countersink.producers.middleware.tally import Tally

About = MutableMapping[str, Any]
"""What an app is told of a request: an ASGI scope, or a WSGI environ."""
Route = Callable[[About], str | None]
"""The route template of a request; None: no route matched. Called when the answer begins."""

ROUTE: Final = "countersink.route"
"""Where a router that no middleware knows leaves its template: a key of the scope or the environ,
and in Django an attribute-like key of ``request.META``."""
UNMATCHED: Final = "__unmatched__"
"""What stands for the route where none matched."""
OTHER: Final = "OTHER"
"""What stands for a method that no standard knows, and for a status that none can be."""
CLIENT_GONE: Final = 499
"""The status of a request whose client went away before there was an answer, as nginx logs it."""
FAILED: Final = 500
"""The status of a request whose app raised, or ended without an answer."""

METHODS: Final = frozenset(
    (
        # RFC 9110, RFC 5789 (PATCH), WebDAV (RFC 4918); a client may send any other word
        *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"),
        *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK"),
        "WEBSOCKET",  # ours, for what is no method
    )
)
_STATUSES: Final[Mapping[object, str]] = {number: str(number) for number in range(100, 600)}


def noted_route(about: About) -> str | None:
    """What the app, or a helper of its framework, noted as the route of this request."""
    route = about.get(ROUTE)
    return route if isinstance(route, str) else None


def count_request(tally: Tally, method: object, route: Route, about: About, status: object) -> None:
    """Count one request; never raises."""
    name: str | None = None
    try:
        name = route(about)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"a route is a str or None, not {type(name).__name__}")
    except Exception:
        tally.complain()
        name = None
    tally.add(
        method if isinstance(method, str) and method in METHODS else OTHER,
        UNMATCHED if name is None else name,
        _STATUSES.get(status, OTHER) if isinstance(status, int) else OTHER,
    )
