"""The endpoint ``GET /v1/live``: live numbers as server-sent events, with limits of open event
streams: per key, per address and in all.

At most one read of MySQL and Redis a second serves all event streams.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from fnmatch import translate
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from countersink.database.errors import StoreError
from countersink.metrics.health import CachedAnswer
from countersink.reads.overview import today
from countersink.runtime.limits import check_counter
from countersink.runtime.texts import iso
from countersink.stream.errors import StreamError
from countersink.web.auth.register import Identity
from countersink.web.endpoints.counters import DayTotal
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.http.openapi import Closed, Time, response, schema_of
from countersink.web.http.parameters import COUNTER_NAME, Parameter
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
MEDIA_TYPE: Final = "text/event-stream"
MAX_COUNTERS: Final = 100
"""Maximum number of counters that one listener may name."""
LIFE_S: Final = 300.0
"""Seconds after which a stream of events ends. The browser opens a new one, and the key is checked
again."""
HEARTBEAT_S: Final = 15.0
"""Seconds without an event after which a comment is sent, so that no proxy closes the stream."""
SEND_S: Final = 10.0
"""Seconds within which a listener must take an event."""
RECONNECT_MS: Final = 2_000
EVERY_S: Final = 1.0
"""Minimum seconds between two reads."""
POLL_S: Final = 0.2
"""Seconds after which a stream looks again for new numbers, and whether its key is valid."""
KEPT_FACTOR: Final = 4.0
"""The next read begins after the duration of the last one times this factor, if that is longer than
``EVERY_S``."""
MAX_KEPT_S: Final = 10.0
"""Maximum seconds between two reads by ``KEPT_FACTOR``: the server may have been slow just once."""
MAX_LISTENERS: Final = 100
"""Maximum number of listeners."""
MAX_PER_KEY: Final = 25
"""Maximum number of listeners with one key, or with logins of this key."""
MAX_PER_ADDRESS: Final = 50
"""Maximum number of listeners from one address, with any keys."""
COUNTER: Final = Parameter(
    "counter",
    check_counter,
    "A counter whose total of today is sent; may be given several times.",
    COUNTER_NAME,
    repeatable=True,
    most=MAX_COUNTERS,
)


async def live(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/live`` with a stream of events, and HEAD with the head only; 403 if the key
    may not name one of the counters, 429 if the key or address has too many streams, 503 if there
    are too many in all."""
    counters = frozenset(request.scope["countersink.given"][COUNTER.name])
    if not all(map(who.may_name, counters)):
        raise Problem(403, "This key may not name one of these counters")
    feed = services.single(Feed)
    listener = Listener(counters, who.counters, who.key_id, request.scope["countersink.client"])
    feed.require_room(listener)
    if request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)

    def is_admitted() -> bool:
        return not services.stopping.is_set() and services.register.is_valid(who)

    return LiveStream(feed, listener, is_admitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentNumbers:
    """The numbers of one read of MySQL and Redis.

    Attributes:
        visible: the number of existing counters that a listener may see, by the listener's
            patterns. Without patterns, all counters are visible. The number is None if there are
            too many counters to read each second. Patterns of listeners that joined after the
            beginning of the read may be missing.
        today: the current day in the time zone of a counter and the total of this day, by the
            counter's name. It has the counters that listeners named, without those that do not
            exist or whose days cannot be read, such as with an unknown time zone.
        complete_up_to: the totals include everything that reached Redis before this time (UTC);
            None if Redis did not answer.
    """

    visible: Mapping[tuple[str, ...], int | None] = field(default_factory=dict)
    today: Mapping[str, tuple[date, int]] = field(default_factory=dict)
    complete_up_to: datetime | None = None


@dataclass(eq=False, slots=True)
class Listener:
    """The client of an open stream of events.

    Attributes:
        counters: names of the counters whose totals of today are sent.
        patterns: shell patterns of the counters that its key may name; empty for all.
        key: the id of its key; empty where there is no key.
        address: the client's address.
        last: the last read for which :meth:`news` returned a document; before the first, the read
            that had ended when the stream was opened, or None.
    """

    counters: frozenset[str]
    patterns: tuple[str, ...] = ()
    key: str = ""
    address: str = ""
    last: Future[SentNumbers] | None = None
    _sent: dict[str, tuple[date, int]] = field(default_factory=dict)

    def news(self, read: Future[SentNumbers]) -> dict[str, Any] | None:
        """Return the document of the event to send after ``read``, and remember that it was sent.

        The document has the number of visible counters, ``complete_up_to``, and those totals of
        today that changed since the last event. After a failed read, the document is
        ``{"trouble": True}``. Return None if ``read`` is still running, was sent already, or began
        before a listener with these patterns had joined.
        """
        if read is self.last or not read.done():
            return None
        if read.exception() is not None:
            self.last = read
            return {"trouble": True}
        numbers = read.result()
        if self.patterns not in numbers.visible:
            return None
        self.last = read
        changed = {
            name: numbers.today[name]
            for name in sorted(self.counters & numbers.today.keys())
            if numbers.today[name] != self._sent.get(name)
        }
        self._sent |= changed
        return {
            "counters": numbers.visible[self.patterns],
            "complete_up_to": iso(numbers.complete_up_to),
            "today": {
                name: {"day": day.isoformat(), "total": total}
                for name, (day, total) in changed.items()
            },
        }


class Feed:
    """Reads live numbers while there are listeners, and limits the number of listeners. Use it only
    in the event loop's thread.

    Args:
        services: have ``reads``, which read the numbers.

    Attributes:
        numbers: the cached answer of the last read; its result is an exception where the read
            failed, as without MySQL. (Without Redis, only ``complete_up_to`` is None.)
        listeners: the listeners of all open streams.
    """

    def __init__(self, services: Services) -> None:
        self.numbers = CachedAnswer(
            self._read, kept_s=EVERY_S, kept_factor=KEPT_FACTOR, max_kept_s=MAX_KEPT_S
        )
        self.listeners: set[Listener] = set()
        self._reads = services.reads

    def require_room(self, listener: Listener) -> None:
        """Check that ``listener`` may join.

        Raises:
            Problem: 429 the key or address has too many listeners; 503 there are too many
                listeners.
        """
        of_key = sum(each.key == listener.key for each in self.listeners)
        of_address = sum(each.address == listener.address for each in self.listeners)
        if (listener.key and of_key >= MAX_PER_KEY) or of_address >= MAX_PER_ADDRESS:
            raise Problem(
                429,
                f"A key may have {MAX_PER_KEY} open streams, and an address {MAX_PER_ADDRESS}:"
                " close one first",
                retry_after=30,
            )
        if len(self.listeners) >= MAX_LISTENERS:
            raise Problem(503, "Too many streams are open: try again later", retry_after=30)

    def join(self, listener: Listener) -> None:
        """Add a listener. It gets the results of later reads, and of the running read if that began
        with a listener of the same :attr:`~Listener.patterns`; the result may then lack some of its
        counters. It does not get the result of a read that has ended."""
        self.listeners.add(listener)
        last = self.numbers.last
        if last is not None and last.done():
            listener.last = last

    def _read(self) -> SentNumbers:
        """Read the numbers of all listeners from MySQL and Redis. Without MySQL this raises.
        Without Redis only ``complete_up_to`` is None. An unexpected error is logged and raised."""
        listeners = list(self.listeners)
        wanted = sorted({name for each in listeners for name in each.counters})
        try:
            (names, overview), complete = self._reads.read(
                lambda moment: (today(moment.snapshot, wanted), moment.complete_up_to)
            )
        except (StoreError, StreamError):
            raise
        except Exception:  # a bug: streams go on, and are sent "trouble"
            LOGGER.exception("reading live numbers failed", extra={"action": "internal_error"})
            raise
        patterns = {each.patterns for each in listeners}
        return SentNumbers(
            visible={each: _visible(names, each) for each in patterns},
            today={line.counter: line.days[-1] for line in overview.lines if line.days},
            complete_up_to=complete,
        )


def _visible(names: list[str] | None, patterns: tuple[str, ...]) -> int | None:
    """Return how many of ``names`` match at least one pattern, or the number of all names if there
    are no patterns. Return None if ``names`` is None, because there are too many counters."""
    if names is None:
        return None
    if not patterns:
        return len(names)
    matches = re.compile("|".join(map(translate, patterns))).match
    return sum(1 for name in names if matches(name))


class LiveStream(StreamingResponse):
    """Sends events to a listener until it disconnects, takes no event for :data:`SEND_S`, has
    listened for :data:`LIFE_S`, or is not admitted any more.

    Args:
        feed: reads the numbers.
        listener: receives the events.
        is_admitted: returns whether the stream may go on: its key is valid, and the server is not
            stopping.
    """

    def __init__(self, feed: Feed, listener: Listener, is_admitted: Callable[[], bool]) -> None:
        super().__init__(
            (),  # stream_response sends the body
            media_type=MEDIA_TYPE,
            # nginx would otherwise buffer events up to 4 kB
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._feed = feed
        self._listener = listener
        self._is_admitted = is_admitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. The listener joins the feed first, so that it counts for the limits of
        later requests. After the answer, it leaves the feed."""
        self._feed.join(self._listener)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.listeners.discard(self._listener)

    async def stream_response(self, send: Send) -> None:
        """Send the head and the events, and a comment after each :data:`HEARTBEAT_S` without an
        event. End after :data:`LIFE_S`, when the listener is no longer admitted, or when it takes
        no event for :data:`SEND_S`. Starlette calls this."""
        sent_at = time.monotonic()
        ends = sent_at + LIFE_S
        with suppress(TimeoutError):  # the listener stopped reading: the server disconnects it
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await _send(send, f"retry: {RECONNECT_MS}\n\n")
            while (now := time.monotonic()) < ends and self._is_admitted():
                news = self._listener.news(self._feed.numbers.start())
                if news is not None or now - sent_at >= HEARTBEAT_S:
                    sent_at = now
                    text = ":\n\n" if news is None else f"data: {json.dumps(news)}\n\n"
                    await _send(send, text)
                await asyncio.sleep(POLL_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, text: str) -> None:
    async with asyncio.timeout(SEND_S):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


class News(Closed):
    """An event with new numbers; ``today`` has only the counters whose total changed."""

    counters: Annotated[int, Meta(ge=0)] | None
    complete_up_to: Time | None
    today: dict[str, DayTotal]


class Trouble(Closed):
    """An event that tells that the numbers cannot be read: MySQL is away."""

    trouble: Annotated[bool, Meta(extra_json_schema={"const": True})]


_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "One event: OpenAPI 3.1 has no way to describe a stream of events.",
    "required": ["data"],
    "properties": {
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"oneOf": [schema_of(News), schema_of(Trouble)]},
        }
    },
}
ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/live",
        live,
        scope="read",
        parameters=(COUNTER,),
        name="live",
        summary="Live numbers, as server-sent events",
        description="About once a second, an event whose data is a JSON document: `counters`, their"
        " number, null beyond about 10,000; `complete_up_to`; `today`, day and total of each named"
        ' counter that has changed. `{"trouble": true}` if MySQL is away. The stream ends'
        f" after {LIFE_S:.0f} seconds: open a new one.",
        responses={
            "200": response("Events.", _EVENT, MEDIA_TYPE),
            "422": "A counter's name is not valid, or there are too many.",
            "503": "Too many streams are open.",
        },
    ),
)
