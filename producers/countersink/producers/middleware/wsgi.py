"""WSGI middleware (``WSGIMiddleware``, PEP 3333): when a request is counted, and with which status.

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
"""The server's function that begins a response. It returns a function that writes parts of the
body."""
App = Callable[[Any, Any], Iterable[bytes]]


class WSGIMiddleware:
    """Counts each request once, when its response begins, under a key such as
    ``GET /users/<int:id> 200``.

    ::

        app.wsgi_app = WSGIMiddleware(app.wsgi_app, producer)
        application = WSGIMiddleware(application, producer, route=my_router.template_of)

    WSGI does not define routes. So the application (or a module of
    ``countersink.producers.integrations``) stores the template in ``environ["countersink.route"]``,
    or the argument ``route`` is a function that returns the template. Without either, every request
    is counted as ``__unmatched__``.

    The status is read when the application returns, if it has set one and the body is not a
    generator. Such a body passes through unchanged (``wsgi.file_wrapper`` included); if it fails
    later, the request has already been counted with that status. Otherwise the status is read when
    the body yields its first piece or ends; if none is set by then, it is 500. If the application
    or its body raises before that, the status is 500, and the exception is raised again. If the
    client disconnects before the application has set a status, it is 499. Errors of counting are
    logged, never raised.

    Args:
        app: the WSGI application.
        producer: the producer that counts.
        counter: the name of the counter to which requests are added.
        route: a function that returns the route template of an environ, or None where no route
            matched. By default it returns ``environ["countersink.route"]``, or None if that is not
            a str.
        max_routes: maximum of different route templates; requests with further templates are
            counted as ``__other__``.
        dimensions: maps each dimension of the counter to the part of the request that is its value:
            ``method``, ``route`` or ``status``, as in ``{"page": "route"}``. By default requests
            are counted under keys, without dimensions.
        visitors: True also counts different visitors (the counter needs ``counter set --unique``).
            A visitor is then the client's address and user agent, as the server reports them. A
            function instead of True returns the visitor of an environ, or None to count the request
            without a visitor.

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
        """Call the application for one request, and return the body of its response. Count the
        request now, or when the server reads or closes the body: see the class."""
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
    """A WSGI request, which is counted when its response begins.

    Attributes:
        status: the status that the application has set, such as ``200 OK``; None where it has set
            none yet.
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
        """Call the server's ``start_response`` with the application's arguments, and keep the
        status; ``rest`` is passed on unchanged (the headers, and the exception if there was one).
        Return the server's function that writes parts of the body. The application may call it
        again after an error; the last status replaces the earlier one.
        """
        write = self._start_response(status, *rest)
        self.status = status
        return write

    def end(self, unanswered: int) -> None:
        """Count the request with the status that was set, unless it is counted already.
        ``unanswered``: the status to count if none was set.
        """
        status = unanswered if self.status is None else _number(self.status)
        self.count(self._data.get("REQUEST_METHOD"), status)

    def fail(self) -> None:
        """Count the request with the status 500, unless it is counted already. Called when the
        application or its body has raised an exception.
        """
        self.count(self._data.get("REQUEST_METHOD"), FAILED)


class _LateBody:
    """A WSGI body that passes on the application's body. Its request is counted when the server
    reads the first piece or finds the body empty, at the latest in :meth:`close`. Until then the
    status may change: the body may raise (500), or call ``start_response``, even a second time.
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
        """Count the request, unless it is counted already, with the status that the application
        has set, otherwise 499; then close the body. The server calls this at the end of the body,
        or after the client has disconnected.
        """
        self._exchange.end(CLIENT_CLOSED)
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


def _number(status: str) -> int:
    """Return the three-digit number at the beginning of a status such as ``200 OK``. Return 0 if
    the status does not begin with three digits; 0 is counted as ``OTHER``.
    """
    digits = status[:3] if isinstance(status, str) else ""
    return int(digits) if len(digits) == 3 and digits.isascii() and digits.isdigit() else 0
