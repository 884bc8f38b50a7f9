"""Counting of requests and jobs under a limited number of keys such as ``GET /users/{id} 200``
(``KeyCounter``, ``CountedRequest``): names for unknown methods (``OTHER``) and missing routes
(``UNMATCHED``), limits on the number and length of keys (``MAX_NAMES``, ``__other__``), status of
failed requests (499, 500). Errors of counting are logged, never raised.
"""

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
"""A function that returns the route template of a request, or None where no route matched. It is
called when the response begins."""

ROUTE: Final = "countersink.route"
"""The key under which an application or framework stores the route template in the scope or
environ."""
UNMATCHED: Final = "__unmatched__"
"""The name that stands in a key for the route where no route matched."""
OTHER: Final = "OTHER"
"""The name that stands in a key for a method that is not standard, or for an impossible status."""
CLIENT_CLOSED: Final = 499
"""The status where the client disconnects before the response, as in nginx's log."""
FAILED: Final = 500
"""The status where the application raises, or ends without a response."""

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
"""Default maximum of different names (routes, tasks, functions) in keys of a ``KeyCounter``."""
BEYOND: Final = "__other__"
"""The name that stands in a key for all names beyond the maximum."""

FLUSH_SECONDS: Final = 5.0
"""Maximum of seconds that a flush at the end of a process or server takes."""

_NAME_BYTES: Final = 200
"""Maximum of bytes (UTF-8) that a name takes in a key."""
_PART_BYTES: Final = 26
"""Maximum of bytes that the text before the name, or the text after it, takes in a key."""
_KEYS: Final = 10_000
"""Maximum of keys in the cache. When it is reached, the cache is emptied."""


Visitor = Callable[[Any], str | bytes | None]
"""A function that returns the visitor of a request's scope or environ, or None if it is unknown."""


class SupportsIncrement(Protocol):
    """An object that counts requests and jobs by its method ``increment``, as a
    :class:`~countersink.producers.Producer` does. To count visitors, it needs the method ``seen``,
    too.
    """

    def increment(self, counter: str, key: Any) -> None:
        """Add 1 to ``key`` of ``counter``. The key is a text, or maps dimensions to values."""


REQUEST_FIELDS: Final = ("method", "route", "status")
"""Names of the three parts of a request's key."""


class KeyCounter:
    """Adds 1 for each event to a key of three parts, such as ``GET /users/{id} 200``. Thread-safe.

    Args:
        producer: the producer that counts.
        counter: the counter's name.
        max_names: maximum of different names (the middle part of the key); events with further
            names are counted as ``__other__``.
        fields: names of the three parts, in the order of the arguments ``before``, ``name`` and
            ``after`` of :meth:`add`. A part whose name is empty cannot be the value of a dimension.
        dimensions: maps each dimension of the counter to the name of the part that is its value.
            Without dimensions events are counted under keys.

    Raises:
        TypeError, ValueError: ``producer`` has no ``increment``, ``counter`` is not a valid name,
            ``max_names`` is below 1, or ``dimensions`` is invalid or names an unknown part.
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
        """Add 1 to the key that consists of ``before``, ``name`` and ``after`` (without empty
        parts); or, if there are dimensions, to the dimensions whose values these parts are. Errors
        are logged, never raised.

        Args:
            member: the visitor; None where it is unknown or visitors are not counted.
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
        """Call the producer's ``flush``, if it has one, with a timeout of 5 seconds. Errors are
        logged, never raised.
        """
        flush = getattr(self._producer, "flush", None)
        try:
            if flush is not None:
                flush(FLUSH_SECONDS)
        except Exception:
            self.log_error()

    def log_error(self) -> None:
        """Log the exception that is being handled, at most once a minute."""
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
    """Return for each dimension the position in ``fields`` of the part that is its value.

    Raises:
        TypeError, ValueError: ``dimensions`` is invalid, or names an unknown part.
    """
    check_dimensions(dimensions)
    for name, field in dimensions.items():
        if not field or field not in fields:
            known = ", ".join(filter(None, fields))
            raise ValueError(f"dimension {name!r}: no field {field!r}; the fields are {known}")
    return {name: fields.index(field) for name, field in dimensions.items()}


def cut_name(text: str, room: int = _NAME_BYTES) -> str:
    """Return ``text`` with at most ``room`` bytes of UTF-8. A longer text becomes its beginning and
    a digest of it, as by ``limits.cut_key``. Lone surrogates become ``?``.
    """
    return cut_key(text.encode("utf-8", "replace").decode(), room)


class CountedRequest:
    """A request that is counted once, even if its response begins several times.

    Args:
        tally: the :class:`KeyCounter` that counts the request.
        route: the function that returns the request's route template.
        data: the request's scope or environ.
        visitor: the function that returns the visitor; None where visitors are not counted.

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
        """Count the request, unless it is counted already. A method that is not in ``METHODS``, and
        a status that is not an int from 100 to 599, become ``OTHER``. If ``route`` fails
        or returns None, the route becomes ``UNMATCHED``. Errors are logged, never raised.
        """
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
        """Call a function of the application with the request, and return its result. If the
        function fails, or its result is invalid, log the error and return None.

        Args:
            ask: the function.
            check: raises TypeError or ValueError if the result is invalid.
        """
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
    """Turn the option ``visitors`` into a function that returns the visitor of a request, or into
    None where visitors are not counted.

    Args:
        visitors: a function; or True for the function ``default``, False to count no visitors.
        default: the function that is returned for True.

    Raises:
        TypeError: ``visitors`` is neither a bool nor a function.
    """
    if isinstance(visitors, bool):
        return default if visitors else None
    if not callable(visitors):
        raise TypeError(f"visitors must be a bool or a function, not {type(visitors).__name__}")
    return visitors


def environ_visitor(environ: Any) -> str:
    """Return the visitor of a WSGI request: the client's address and user agent, separated by a
    space, each empty if unknown.
    """
    return visitor_of(str(environ.get("REMOTE_ADDR", "")), str(environ.get("HTTP_USER_AGENT", "")))


def noted_route(data: RequestData) -> str | None:
    """Return the route template that the application or a framework has stored in the scope or
    environ under ``ROUTE``; None where there is none, or where it is not a text.
    """
    route = data.get(ROUTE)
    return route if isinstance(route, str) else None
