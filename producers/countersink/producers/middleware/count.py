"""Keys of counted requests (``GET /users/{id} 200``): unknown methods (``OTHER``), no route, bounds
on number and length of keys (``MAX_NAMES``, ``__other__``), status of broken requests (499, 500).
Errors are logged, never raised."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from threading import Lock
from typing import Any, Final, Protocol

from countersink.runtime.dimensions import check_dimensions
from countersink.runtime.limits import check_counter, cut_key
from countersink.runtime.log import Log
from countersink.runtime.members import check_member, visitor_of

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

MAX_NAMES: Final = 1_000
"""Names (routes, tasks, functions) that one process tells apart, unless told otherwise."""
BEYOND: Final = "__other__"
"""What stands for names beyond that."""

FLUSH_SECONDS: Final = 5.0
"""How long the end of a process, or of a server, is held up at most for what was counted."""

_NAME_BYTES: Final = 200
"""Bytes of UTF-8 of a name that a key has room for, beside what stands before and after it."""
_PART_BYTES: Final = 26
"""Bytes of what stands before and after a name."""
_KEYS: Final = 10_000
"""Keys that are remembered as made; beyond that the memory is emptied."""


Visitor = Callable[[Any], str | bytes | None]
"""Who sent a request, by the scope or the environ; None: nobody knows."""


class SupportsIncrement(Protocol):
    """What counts: a :class:`~countersink.producers.Producer`, or in tests the recording one. Where
    visitors are asked for, it has ``seen`` as well."""

    def increment(self, counter: str, key: Any) -> None:
        """Add 1 to ``key`` of ``counter``: a text, or a mapping where dimensions are asked for."""


REQUEST_FIELDS: Final = ("method", "route", "status")
"""What is known of a request."""


class KeyCounter:
    """Adds 1 for what happened, to a key such as ``GET /users/{id} 200``. Thread-safe.

    Args:
        producer: what counts.
        counter: the counter's name.
        max_names: names beyond this number are counted as ``__other__``.
        fields: what the three arguments of :meth:`add` are called.
        dimensions: of the counter, and which of ``fields`` each has for its value, in the place of
            the key.

    Raises:
        TypeError, ValueError: ``producer`` is none, ``counter`` cannot be a counter's name,
            ``max_names`` is below 1, or ``dimensions`` names no field.
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
            raise TypeError(f"what counts is a Producer, not {type(producer).__name__}")
        if max_names < 1:
            raise ValueError(f"at least 1 name must be told apart, not {max_names}")
        self._producer = producer
        self._counter = check_counter(counter)
        self._max_names = max_names
        self._log = Log(logging.getLogger("countersink.producers"))
        self._lock = Lock()
        self._names: dict[str, str] = {}
        self._keys: dict[tuple[str, str, str], str | Mapping[str, str]] = {}
        self._dimensions = _places(dimensions or {}, fields)

    def add(self, before: str, name: str, after: str, member: str | bytes | None = None) -> None:
        """Add 1 to the key ``before name after``, where an empty ``before`` is left out; or to the
        dimensions that have these values. ``member``: who was seen.
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
            self.complain()

    def flush(self) -> None:
        """Wait until what was counted is stored, at most 5 seconds, if the producer can do so."""
        flush = getattr(self._producer, "flush", None)
        try:
            if flush is not None:
                flush(FLUSH_SECONDS)
        except Exception:
            self.complain()

    def complain(self) -> None:
        """Log the exception being handled, once a minute at most."""
        self._log.bug(f"what counts {self._counter}")

    def _make(self, before: str, name: str, after: str) -> str | Mapping[str, str]:
        with self._lock:
            shown = self._names.get(name)
            if shown is None:
                if len(self._names) >= self._max_names:
                    shown = BEYOND
                else:
                    shown = self._names[name] = fitting(name)
            parts = (fitting(before, _PART_BYTES), shown, fitting(after, _PART_BYTES))
            key: str | Mapping[str, str]
            if self._dimensions:
                key = {dimension: parts[place] for dimension, place in self._dimensions.items()}
            else:
                key = " ".join(part for part in parts if part)
            if shown is not BEYOND:  # a client must not decide how much is remembered
                if len(self._keys) >= _KEYS:
                    self._keys.clear()
                self._keys[before, name, after] = key
            return key


def _places(dimensions: Mapping[str, str], fields: tuple[str, str, str]) -> dict[str, int]:
    """Which of ``fields`` each dimension has for its value."""
    check_dimensions(dimensions)
    for name, field in dimensions.items():
        if not field or field not in fields:
            known = ", ".join(filter(None, fields))
            raise ValueError(f"dimension {name!r}: there is no field {field!r}; there are {known}")
    return {name: fields.index(field) for name, field in dimensions.items()}


def fitting(text: str, room: int = _NAME_BYTES) -> str:
    """``text`` in at most ``room`` bytes, cut as keys are; ``?`` for each lone surrogate."""
    return cut_key(text.encode("utf-8", "replace").decode(), room)


class CountedRequest:
    """A request of an app, counted once however often its answer is begun.

    Args:
        tally: what counts.
        route: gives its route.
        about: what the app is told of it.
        visitor: tells who sent it; None: nobody asks.

    Attributes:
        waiting: it is not counted yet.
    """

    __slots__ = ("_about", "_route", "_tally", "_visitor", "waiting")

    def __init__(
        self, tally: KeyCounter, route: Route, about: About, visitor: Visitor | None = None
    ) -> None:
        self._tally = tally
        self._route = route
        self._about = about
        self._visitor = visitor
        self.waiting = True

    def count(self, method: object, status: object) -> None:
        """Count it, unless it is counted; never raises."""
        if not self.waiting:
            return
        self.waiting = False
        name = self._told(self._route, _check_route)
        self._tally.add(
            method if isinstance(method, str) and method in METHODS else OTHER,
            UNMATCHED if name is None else name,
            _STATUSES.get(status, OTHER) if isinstance(status, int) else OTHER,
            None if self._visitor is None else self._told(self._visitor, check_member),
        )

    def _told(self, ask: Callable[[About], Any], check: Callable[[Any], object]) -> Any:
        """The checked answer of an application's function about the request; None: it failed."""
        try:
            said = ask(self._about)
            if said is not None:
                check(said)
            return said
        except Exception:
            self._tally.complain()
            return None


def _check_route(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a route is a str or None, not {type(name).__name__}")


def visitor_from(asked: bool | Visitor, usual: Visitor) -> Visitor | None:
    """What tells who sent a request: what was asked for, ``usual`` where that is True.

    Raises:
        TypeError: neither a bool nor a function.
    """
    if isinstance(asked, bool):
        return usual if asked else None
    if not callable(asked):
        raise TypeError(f"visitors is True, False or a function, not {type(asked).__name__}")
    return asked


def environ_visitor(environ: Any) -> str:
    """Address and user agent, by a WSGI environ."""
    return visitor_of(str(environ.get("REMOTE_ADDR", "")), str(environ.get("HTTP_USER_AGENT", "")))


def noted_route(about: About) -> str | None:
    """What the app, or a helper of its framework, noted as the route of this request."""
    route = about.get(ROUTE)
    return route if isinstance(route, str) else None
