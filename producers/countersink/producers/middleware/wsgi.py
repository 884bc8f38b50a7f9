"""WSGI middleware (PEP 3333): when a request is counted and with which status, also if the app
raises; the key is made in ``count.py``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import GeneratorType
from typing import Any

from countersink.producers.middleware.count import (
    CLIENT_GONE,
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
"""What a server gives an app to begin its answer with; what it returns writes."""
App = Callable[[Any, Any], Iterable[bytes]]


class WSGIMiddleware:
    """Counts each request once, when its answer begins, as ``GET /users/<int:id> 200``.

    ::

        app.wsgi_app = WSGIMiddleware(app.wsgi_app, producer)
        application = WSGIMiddleware(application, producer, route=my_router.template_of)

    WSGI has no word for routes, so an app (or the helper of its framework in
    ``countersink.producers.integrations``) puts the template into ``environ["countersink.route"]``,
    or ``route`` finds it; else every request is ``__unmatched__``.

    The status is the one that the app had begun its answer with when it returned, or when a
    generator gave its first piece. An app that raises instead is counted as 500 and raises on. Of
    an answer that has begun, bodies other than plain generators go through untouched,
    ``wsgi.file_wrapper`` included: should one fail before its first piece, the status that it had
    begun with is counted. Whatever goes wrong with counting is logged and nothing else.

    Args:
        app: what answers.
        producer: what counts.
        counter: the counter's name.
        route: gives the route template of an environ; None: no route matched.
        max_routes: route templates beyond this number are counted as ``__other__``.
        dimensions: names of the counter's dimensions, and which of ``method``, ``route`` and
            ``status`` each has for its value, in the place of a key: ``{"page": "route"}``.
        visitors: count the different visitors as well, of a counter that does so
            (``counter set --unique``): True, a visitor is the client's address and user agent, as
            the server gives them; or a function of the environ that says who it is, None: nobody
            knows.

    Raises:
        TypeError, ValueError: an argument cannot be used.
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
        """Answer one request."""
        exchange = _Exchange(self._tally, self._route, environ, start_response, self._visitor)
        try:
            body = self._app(environ, exchange.start_response)
        except BaseException:
            exchange.fail()
            raise
        if exchange.status is not None and not isinstance(body, GeneratorType):
            exchange.end(FAILED)
            return body  # itself: a server looks whether it is its file wrapper, and has a length
        return _LateBody(body, exchange)


class _Exchange(CountedRequest):
    """One request, until its answer begins.

    Attributes:
        status: what the app has begun its answer with; None: it has not.
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
        """Begin the answer, or begin it anew after an error."""
        write = self._start_response(status, *rest)
        self.status = status
        return write

    def end(self, unanswered: int) -> None:
        """The answer goes out; it is ``unanswered`` where there is none."""
        status = unanswered if self.status is None else _number(self.status)
        self.count(self._about.get("REQUEST_METHOD"), status)

    def fail(self) -> None:
        """The app has raised before anything went out."""
        self.count(self._about.get("REQUEST_METHOD"), FAILED)


class _LateBody:
    """The body of an app whose answer may be another until the first piece of it: a generator
    raises, or begins it anew.
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
        """The server is done with it, or its client is gone."""
        self._exchange.end(CLIENT_GONE)
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


def _number(status: str) -> int:
    """The number in ``200 OK``; 0 if there is none."""
    digits = status[:3] if isinstance(status, str) else ""
    return int(digits) if len(digits) == 3 and digits.isascii() and digits.isdigit() else 0
