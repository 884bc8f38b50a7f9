"""WSGI middleware (PEP 3333): when a request is counted, and with which status.

See ``count.py`` for the keys.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import GeneratorType
from typing import Any

from countersink.producers.middleware.count import (
    CLIENT_CLOSED,
    FAILED,
    MAX_NAMES,
    CountedRequest,
    KeyCounter,
    Route,
    SupportsIncrement,
    Visitor,
    environ_visitor,
    noted_route,
    visitor_from,
)

Environ = MutableMapping[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
"""The server's function that begins a response; returns a function that writes."""
App = Callable[[Any, Any], Iterable[bytes]]


class WSGIMiddleware:
    """Counts each request once, when its response begins, as ``GET /users/<int:id> 200``.

    ::

        app.wsgi_app = WSGIMiddleware(app.wsgi_app, producer)
        application = WSGIMiddleware(application, producer, route=my_router.template_of)

    WSGI does not define routes. So the application (or a module of
    ``countersink.producers.integrations``) stores the template in ``environ["countersink.route"]``,
    or ``route`` returns it; else every request is ``__unmatched__``.

    The status is the one set when the application returns, or when its generator yields the first
    piece. It is 500 if the application raises before (the exception is raised on). Once a status is
    set, bodies other than generators pass through unchanged, ``wsgi.file_wrapper`` included: if
    such a body fails before its first piece, the status set before is counted. Errors of counting
    are logged, never raised.

    Args:
        app: the application.
        producer: the producer that counts.
        counter: the counter's name.
        route: function that returns the route template of an environ; None: no route matched.
        max_routes: number of route templates; requests of further ones count as ``__other__``.
        dimensions: the counter's dimensions, each with its value: ``method``, ``route`` or
            ``status``, as in ``{"page": "route"}``. Default: none, a key instead.
        visitors: whether to count different visitors, too (the counter needs
            ``counter set --unique``). True: a visitor is the client's address and user agent, as
            the server reports them. Or a function that returns the visitor of an environ; None:
            count without a visitor.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """

    def __init__(
        self,
        app: App,
        producer: SupportsIncrement,
        *,
        counter: str = "requests",
        route: Route = noted_route,
        max_routes: int = MAX_NAMES,
        dimensions: Mapping[str, str] | None = None,
        visitors: bool | Visitor = False,
    ) -> None:
        self._app = app
        self._tally = KeyCounter(producer, counter, max_names=max_routes, dimensions=dimensions)
        self._route = route
        self._visitor = visitor_from(visitors, environ_visitor)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request."""
        exchange = _Exchange(self._tally, self._route, environ, start_response, self._visitor)
        try:
            body = self._app(environ, exchange.start_response)
        except BaseException:
            exchange.fail()
            raise
        if exchange.status is not None and not isinstance(body, GeneratorType):
            exchange.end(FAILED)
            return body  # itself: servers check whether it is a file wrapper or has a length
        return _LateBody(body, exchange)


class _Exchange(CountedRequest):
    """One request until its response begins.

    Attributes:
        status: the status set by the application; None: not set yet.
    """

    __slots__ = ("_start_response", "status")

    def __init__(
        self,
        tally: KeyCounter,
        route: Route,
        environ: Environ,
        start_response: StartResponse,
        visitor: Visitor | None,
    ) -> None:
        super().__init__(tally, route, environ, visitor)
        self._start_response = start_response
        self.status: str | None = None

    def start_response(self, status: str, *rest: Any) -> Callable[[bytes], object]:
        """Begin the response, or begin it again after an error."""
        write = self._start_response(status, *rest)
        self.status = status
        return write

    def end(self, unanswered: int) -> None:
        """Count the request with its status; ``unanswered``: the status if none was set."""
        status = unanswered if self.status is None else _number(self.status)
        self.count(self._data.get("REQUEST_METHOD"), status)

    def fail(self) -> None:
        """Count the request as failed: the application has raised before its response."""
        self.count(self._data.get("REQUEST_METHOD"), FAILED)


class _LateBody:
    """A body whose status may change until its first piece: a generator raises, or calls
    ``start_response`` again.
    """

    def __init__(self, body: Iterable[bytes], exchange: _Exchange) -> None:
        self._body = body
        self._exchange = exchange
        self._pieces: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._pieces is None:
                self._pieces = iter(self._body)
            piece = next(self._pieces)
        except StopIteration:
            self._exchange.end(FAILED)
            raise
        except BaseException:
            self._exchange.fail()
            raise
        self._exchange.end(FAILED)
        return piece

    def close(self) -> None:
        """Called by the server at the end of the body, or after the client has disconnected."""
        self._exchange.end(CLIENT_CLOSED)
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


def _number(status: str) -> int:
    """The number in ``200 OK``; 0 if there is none."""
    digits = status[:3] if isinstance(status, str) else ""
    return int(digits) if len(digits) == 3 and digits.isascii() and digits.isdigit() else 0
