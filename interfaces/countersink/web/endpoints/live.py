"""``GET /v1/live``, server-sent events: how often numbers come, heartbeat, life of a stream, most
counters of one, most streams per key and address, members of an event, refusals.

One look a second at MySQL serves everybody who listens.
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
"""Counters that one listener may name."""
LIFE_S: Final = 300.0
"""Seconds until a stream ends; the browser opens another one, which is let in anew or not."""
HEARTBEAT_S: Final = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes the stream for dead."""
SEND_S: Final = 10.0
"""Seconds within which a listener must take what it is sent."""
RECONNECT_MS: Final = 2_000
EVERY_S: Final = 1.0
"""Seconds between two looks, at least."""
POLL_S: Final = 0.2
"""Seconds after which a stream looks whether there is news, and whether its key still holds."""
REST: Final = 4.0
"""Where a look takes long, the pause after it is so many times as long."""
LONGEST_REST_S: Final = 10.0
"""But no longer than this: the look may have waited for a server that stood still for a moment, and
numbers on a screen are not to stand still for a minute after it."""
MAX_LISTENERS: Final = 100
MAX_PER_KEY: Final = 25
"""Listeners with one key, be it by logins: others find room beside it."""
MAX_PER_ADDRESS: Final = 50
"""Listeners at one address, whatever keys they have."""
COUNTER: Final = Parameter(
    "counter",
    check_counter,
    "Whose total of today to tell; may be given several times.",
    COUNTER_NAME,
    repeatable=True,
    most=MAX_COUNTERS,
)


async def live(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/live``."""
    counters = frozenset(request.scope["countersink.given"][COUNTER.name])
    if not all(map(who.may_name, counters)):
        raise Problem(403, "This key is not for all of these counters")
    feed = services.one(Feed)
    listener = Listener(counters, who.counters, who.key_id, request.scope["countersink.client"])
    feed.require_room(listener)
    if request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)

    def welcome() -> bool:
        return not services.stopping.is_set() and services.register.holds(who)

    return LiveStream(feed, listener, welcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentNumbers:
    """The numbers that one look at MySQL and Redis found.

    Attributes:
        visible: how many counters whoever is bound to some patterns may name, None: too many to
            read them each second; by the patterns of all who listened when the look began.
        today: by counter its day, in its own time zone, and the total of it; of those wanted.
        complete_up_to: see :class:`countersink.reads.Moment`.
    """

    visible: Mapping[tuple[str, ...], int | None] = field(default_factory=dict)
    today: Mapping[str, tuple[date, int]] = field(default_factory=dict)
    complete_up_to: datetime | None = None


@dataclass(eq=False, slots=True)
class Listener:
    """One open stream, with the counters that it asks for.

    Attributes:
        counters: whose totals of today are wanted.
        patterns: shell patterns of the counters that may be told of; empty: all.
        key: the id of their key; empty where none is needed.
        address: theirs.
        last: the look that they were told of last, or that had ended before they came.
    """

    counters: frozenset[str]
    patterns: tuple[str, ...] = ()
    key: str = ""
    address: str = ""
    last: Future[SentNumbers] | None = None
    _sent: dict[str, tuple[date, int]] = field(default_factory=dict)

    def news(self, look: Future[SentNumbers]) -> dict[str, Any] | None:
        """What the last look has found that was not sent yet, as a document; None where it goes on,
        is the one before, or had begun before this listener came.
        """
        if look is self.last or not look.done():
            return None
        if look.exception() is not None:
            self.last = look
            return {"trouble": True}
        seen = look.result()
        if self.patterns not in seen.visible:
            return None
        self.last = look
        changed = {
            name: seen.today[name]
            for name in sorted(self.counters & seen.today.keys())
            if seen.today[name] != self._sent.get(name)
        }
        self._sent |= changed
        return {
            "counters": seen.visible[self.patterns],
            "complete_up_to": iso(seen.complete_up_to),
            "today": {
                name: {"day": day.isoformat(), "total": total}
                for name, (day, total) in changed.items()
            },
        }


class Feed:
    """Live numbers, looked at while any stream is open, and the limits of streams. For the event
    loop's thread.

    Args:
        services: what to look with.

    Attributes:
        numbers: what the last look has found; it raises where a server did not answer.
        listeners: who listens.
    """

    def __init__(self, services: Services) -> None:
        self.numbers = CachedAnswer(self._look, kept_s=EVERY_S, rest=REST, longest_s=LONGEST_REST_S)
        self.listeners: set[Listener] = set()
        self._reads = services.reads

    def require_room(self, listener: Listener) -> None:
        """Whether one more may listen.

        Raises:
            Problem: 429 the listener's key, or their address, has got all it may have; 503 there
                are too many.
        """
        of_key = sum(each.key == listener.key for each in self.listeners)
        of_address = sum(each.address == listener.address for each in self.listeners)
        if (listener.key and of_key >= MAX_PER_KEY) or of_address >= MAX_PER_ADDRESS:
            raise Problem(
                429,
                f"{MAX_PER_KEY} streams may be open with one key, and {MAX_PER_ADDRESS} from one"
                " address: end one first",
                retry_after=30,
            )
        if len(self.listeners) >= MAX_LISTENERS:
            raise Problem(503, "Too many listen already: try again later", retry_after=30)

    def join(self, listener: Listener) -> None:
        """Let somebody listen, who is told of the looks that end from now on."""
        self.listeners.add(listener)
        last = self.numbers.last
        if last is not None and last.done():
            listener.last = last

    def _look(self) -> SentNumbers:
        """Ask MySQL and Redis once."""
        listeners = list(self.listeners)
        wanted = sorted({name for each in listeners for name in each.counters})
        try:
            (names, overview), complete = self._reads.read(
                lambda moment: (today(moment.snapshot, wanted), moment.complete_up_to)
            )
        except (StoreError, StreamError):
            raise
        except Exception:  # a bug: streams go on, and are told that there are no numbers
            LOGGER.exception("live numbers:", extra={"action": "internal_error"})
            raise
        patterns = {each.patterns for each in listeners}
        return SentNumbers(
            visible={each: _visible(names, each) for each in patterns},
            today={line.counter: line.days[-1] for line in overview.lines if line.days},
            complete_up_to=complete,
        )


def _visible(names: list[str] | None, patterns: tuple[str, ...]) -> int | None:
    """How many names fit one of the patterns, all where there are none; None: too many to count."""
    if names is None:
        return None
    if not patterns:
        return len(names)
    fits = re.compile("|".join(map(translate, patterns))).match
    return sum(1 for name in names if fits(name))


class LiveStream(StreamingResponse):
    """Sends a listener what is new until it goes, stops reading, or its time is over.

    Args:
        feed: where the news are.
        listener: whose they are.
        welcome: whether they still are.
    """

    def __init__(self, feed: Feed, listener: Listener, welcome: Callable[[], bool]) -> None:
        super().__init__(
            (),  # what is sent is in stream_response
            media_type=MEDIA_TYPE,
            # nginx would otherwise keep the events until it has 4 kB of them
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._feed = feed
        self._listener = listener
        self._welcome = welcome

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. It has its place from here on, before anybody else is asked whether there is one
        left."""
        self._feed.join(self._listener)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.listeners.discard(self._listener)

    async def stream_response(self, send: Send) -> None:
        """Send the head, and events as they come (called by Starlette)."""
        heard = time.monotonic()
        ends = heard + LIFE_S
        with suppress(TimeoutError):  # a listener that stopped reading: the server cuts it off
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await _send(send, f"retry: {RECONNECT_MS}\n\n")
            while (now := time.monotonic()) < ends and self._welcome():
                news = self._listener.news(self._feed.numbers.start())
                if news is not None or now - heard >= HEARTBEAT_S:
                    heard = now
                    text = ":\n\n" if news is None else f"data: {json.dumps(news)}\n\n"
                    await _send(send, text)
                await asyncio.sleep(POLL_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, text: str) -> None:
    async with asyncio.timeout(SEND_S):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


class News(Closed):
    """What has changed; of ``today`` those counters that have."""

    counters: Annotated[int, Meta(ge=0)] | None
    complete_up_to: Time | None
    today: dict[str, DayTotal]


class Trouble(Closed):
    """A server behind this one is away."""

    trouble: Annotated[bool, Meta(extra_json_schema={"const": True})]


_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "Each event: OpenAPI 3.1 has no other word for it.",
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
        description="About once a second one event whose data is a JSON document: `counters`, how"
        " many there are, null beyond 10,000 or so; `complete_up_to`; `today`, the day and its"
        ' total of each named counter that has changed. `{"trouble": true}` where a server behind'
        " this one is away. The stream"
        f" ends after {LIFE_S:.0f} seconds: open another one.",
        responses={
            "200": response("Events.", _EVENT, MEDIA_TYPE),
            "422": "A name that no counter can have, or too many of them.",
            "503": "Too many listen already.",
        },
    ),
)
