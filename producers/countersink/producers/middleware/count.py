"""Counting of requests and jobs under bounded keys such as ``GET /users/{id} 200`` (``KeyCounter``,
``CountedRequest``): unknown methods (``OTHER``), missing routes, limits on the number and length of
keys (``MAX_NAMES``, ``__other__``), status of failed requests (499, 500). Errors are logged, never
raised."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from threading import Lock
from typing import Any, Final, Protocol

from countersink.runtime.dimensions import check_dimensions
from countersink.runtime.limits import check_counter, cut_key
from countersink.runtime.log import Log
from countersink.runtime.members import check_member, visitor_of

RequestData = MutableMapping[str, Any]
"""A request as its application gets it: an ASGI scope, or a WSGI environ."""
Route = Callable[[RequestData], str | None]
"""Returns the route template of a request; None: no route matched. Called at the response's begin.
"""

ROUTE: Final = "countersink.route"
"""The key of the scope or environ under which an application or framework stores the template."""
UNMATCHED: Final = "__unmatched__"
"""The name of a missing route."""
OTHER: Final = "OTHER"
"""The name of methods without a standard, and of impossible statuses."""
CLIENT_CLOSED: Final = 499
"""The status if the client disconnects before the response, as in nginx's log."""
FAILED: Final = 500
"""The status if the application raises, or ends without a response."""

METHODS: Final = frozenset(
    (
        # RFC 9110, RFC 5789 (PATCH), WebDAV (RFC 4918); clients may send any other word
        *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"),
        *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK"),
        "WEBSOCKET",  # not a method: the name of WebSockets
    )
)
_STATUSES: Final[Mapping[object, str]] = {number: str(number) for number in range(100, 600)}

MAX_NAMES: Final = 1_000
"""Default maximum of names (routes, tasks, functions) in a process."""
BEYOND: Final = "__other__"
"""The name of all names beyond the maximum."""

FLUSH_SECONDS: Final = 5.0
"""Maximum of seconds for a flush at the end of a process or server."""

_NAME_BYTES: Final = 200
"""Maximum bytes (UTF-8) of a name in a key."""
_PART_BYTES: Final = 26
"""Maximum bytes of the text before a name in a key, and of the text after it."""
_KEYS: Final = 10_000
"""Maximum of keys in the cache; the cache is then emptied."""


Visitor = Callable[[Any], str | bytes | None]
"""Returns the visitor of a request's scope or environ; None: unknown."""


class SupportsIncrement(Protocol):
    """A :class:`~countersink.producers.Producer`, or in tests a ``RecordingProducer``; it needs
    ``seen`` where visitors are counted."""

    def increment(self, counter: str, key: Any) -> None:
        """Add 1 to ``key`` of ``counter``: a text, or a mapping of dimensions to values."""


REQUEST_FIELDS: Final = ("method", "route", "status")
"""The parts of a request's key."""


class KeyCounter:
    """Adds 1 per event, to a key such as ``GET /users/{id} 200``. Thread-safe.

    Args:
        producer: the producer that counts.
        counter: the counter's name.
        max_names: number of names; events with further names count as ``__other__``.
        fields: field names of the three arguments of :meth:`add`.
        dimensions: the counter's dimensions, each with the field that is its value; none: a key.

    Raises:
        TypeError, ValueError: ``producer`` has no ``increment``, ``counter`` is not a valid name,
            ``max_names`` is below 1, or ``dimensions`` contains an unknown field.
    """

    def __init__(
        self,
        producer: SupportsIncrement,
        counter: str,
        *,
        max_names: int = MAX_NAMES,
        fields: tuple[str, str, str] = REQUEST_FIELDS,
        dimensions: Mapping[str, str] | None = None,
    ) -> None:
        if not callable(getattr(producer, "increment", None)):
            raise TypeError(f"the producer must be a Producer, not {type(producer).__name__}")
        if max_names < 1:
            raise ValueError(f"the maximum of names must be at least 1, not {max_names}")
        self._producer = producer
        self._counter = check_counter(counter)
        self._max_names = max_names
        self._log = Log(logging.getLogger("countersink.producers"))
        self._lock = Lock()
        self._names: dict[str, str] = {}
        self._keys: dict[tuple[str, str, str], str | Mapping[str, str]] = {}
        self._dimensions = _places(dimensions or {}, fields)

    def add(self, before: str, name: str, after: str, member: str | bytes | None = None) -> None:
        """Add 1 to the key ``before name after`` (without an empty ``before``), or to the
        dimensions with these values; ``member``: the visitor, if known. Never raises.
        """
        try:
            key = self._keys.get((before, name, after))
            if key is None:
                key = self._make(before, name, after)
            if member is None:
                self._producer.increment(self._counter, key)
            else:
                self._producer.seen(self._counter, key, member)  # type: ignore[attr-defined]
        except Exception:
            self.log_error()

    def flush(self) -> None:
        """Flush the producer, in 5 seconds at most, if it has ``flush``. Never raises."""
        flush = getattr(self._producer, "flush", None)
        try:
            if flush is not None:
                flush(FLUSH_SECONDS)
        except Exception:
            self.log_error()

    def log_error(self) -> None:
        """Log the exception being handled, once a minute at most."""
        self._log.bug(f"counting {self._counter}")

    def _make(self, before: str, name: str, after: str) -> str | Mapping[str, str]:
        with self._lock:
            shown = self._names.get(name)
            if shown is None:
                if len(self._names) >= self._max_names:
                    shown = BEYOND
                else:
                    shown = self._names[name] = cut_name(name)
            parts = (cut_name(before, _PART_BYTES), shown, cut_name(after, _PART_BYTES))
            key: str | Mapping[str, str]
            if self._dimensions:
                key = {dimension: parts[place] for dimension, place in self._dimensions.items()}
            else:
                key = " ".join(part for part in parts if part)
            if shown is not BEYOND:  # clients must not be able to fill the cache
                if len(self._keys) >= _KEYS:
                    self._keys.clear()
                self._keys[before, name, after] = key
            return key


def _places(dimensions: Mapping[str, str], fields: tuple[str, str, str]) -> dict[str, int]:
    """Dimension → position of its field in ``fields``."""
    check_dimensions(dimensions)
    for name, field in dimensions.items():
        if not field or field not in fields:
            known = ", ".join(filter(None, fields))
            raise ValueError(f"dimension {name!r}: no field {field!r}; the fields are {known}")
    return {name: fields.index(field) for name, field in dimensions.items()}


def cut_name(text: str, room: int = _NAME_BYTES) -> str:
    """``text`` cut to ``room`` bytes, as keys are cut; lone surrogates become ``?``."""
    return cut_key(text.encode("utf-8", "replace").decode(), room)


class CountedRequest:
    """A request, counted once even if its response begins several times.

    Args:
        tally: the counter of keys.
        route: returns the route of the request.
        data: the request.
        visitor: returns the visitor; None: visitors are not counted.

    Attributes:
        waiting: whether the request is not counted yet.
    """

    __slots__ = ("_data", "_route", "_tally", "_visitor", "waiting")

    def __init__(
        self, tally: KeyCounter, route: Route, data: RequestData, visitor: Visitor | None = None
    ) -> None:
        self._tally = tally
        self._route = route
        self._data = data
        self._visitor = visitor
        self.waiting = True

    def count(self, method: object, status: object) -> None:
        """Count the request, unless it is counted already. Never raises."""
        if not self.waiting:
            return
        self.waiting = False
        name = self._ask_app(self._route, _check_route)
        self._tally.add(
            method if isinstance(method, str) and method in METHODS else OTHER,
            UNMATCHED if name is None else name,
            _STATUSES.get(status, OTHER) if isinstance(status, int) else OTHER,
            None if self._visitor is None else self._ask_app(self._visitor, check_member),
        )

    def _ask_app(self, ask: Callable[[RequestData], Any], check: Callable[[Any], object]) -> Any:
        """The checked result of an application's function for the request; None: it failed."""
        try:
            result = ask(self._data)
            if result is not None:
                check(result)
            return result
        except Exception:
            self._tally.log_error()
            return None


def _check_route(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a route must be a str or None, not {type(name).__name__}")


def visitor_from(visitors: bool | Visitor, default: Visitor) -> Visitor | None:
    """The function that returns the visitor of a request, by the option ``visitors``; None: none.

    Args:
        visitors: a function, False, or True for ``default``.

    Raises:
        TypeError: ``visitors`` is neither a bool nor a function.
    """
    if isinstance(visitors, bool):
        return default if visitors else None
    if not callable(visitors):
        raise TypeError(f"visitors must be a bool or a function, not {type(visitors).__name__}")
    return visitors


def environ_visitor(environ: Any) -> str:
    """The visitor of a WSGI environ: address and user agent."""
    return visitor_of(str(environ.get("REMOTE_ADDR", "")), str(environ.get("HTTP_USER_AGENT", "")))


def noted_route(data: RequestData) -> str | None:
    """The template that the application or a framework stored under ``ROUTE``, if any."""
    route = data.get(ROUTE)
    return route if isinstance(route, str) else None
