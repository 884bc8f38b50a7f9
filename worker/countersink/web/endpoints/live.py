"""``GET /v1/live``, server-sent events: how often numbers come, heartbeat, life of a stream, most
counters of one, most streams per key and address, members of an event, refusals.

One look a second at MySQL serves everybody who listens.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from fnmatch import translate
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from countersink.reads import Reads
from countersink.reads.overview import today
from countersink.runtime.limits import check_counter
from countersink.runtime.times import iso
from countersink.store.errors import StoreError
from countersink.stream.errors import StreamError
from countersink.web.auth.register import Identity
from countersink.web.endpoints.counters import DayTotal
from countersink.web.errors import Problem
from countersink.web.http.openapi import Closed, Time, response, schema_of
from countersink.web.http.parameters import COUNTER_NAME, Parameter
from countersink.web.http.route import Route
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
MEDIA_TYPE: Final = "text/event-stream"
MAX_COUNTERS: Final = 100
"""Counters that one listener may name."""
LIFE_S: Final = 300.0
"""Seconds until a stream ends; the browser opens another one, which is let in anew or not."""
HEARTBEAT_S: Final = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes the stream for dead."""
WELCOME_S: Final = 1.0
"""Seconds between two looks whether a listener's key still holds."""
SEND_S: Final = 10.0
"""Seconds within which a listener must take what it is sent."""
RECONNECT_MS: Final = 2_000
EVERY_S: Final = 1.0
"""Seconds between two looks, at least."""
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
        number: of the look, from 1; 0 before the first.
        names: all counters, in order; None: too many to read them each second.
        visible: how many of them whoever is bound to some patterns may name; by the patterns of all
            who listened when the look began.
        today: by counter its day, in its own time zone, and the total of it; of those wanted.
        complete_up_to: see :class:`countersink.reads.Moment`.
        trouble: a server did not answer: nothing else of it is new.
    """

    number: int = 0
    names: tuple[str, ...] | None = ()
    visible: Mapping[tuple[str, ...], int | None] = field(default_factory=dict)
    today: Mapping[str, tuple[date, int]] = field(default_factory=dict)
    complete_up_to: datetime | None = None
    trouble: bool = False


@dataclass(eq=False, slots=True)
class Listener:
    """One open stream, with the counters that it asks for.

    Attributes:
        counters: whose totals of today are wanted.
        patterns: shell patterns of the counters that may be told of; empty: all.
        key: the id of their key; empty where none is needed.
        address: theirs.
        wake: set whenever there was another look.
    """

    counters: frozenset[str]
    patterns: tuple[str, ...] = ()
    key: str = ""
    address: str = ""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _sent: dict[str, tuple[date, int]] = field(default_factory=dict)
    _last: int = 0

    def news(self, seen: SentNumbers) -> dict[str, Any] | None:
        """What has changed since it was asked last, as a document; None where there was no look, or
        one that had begun before this one came."""
        if seen.number == self._last or not (seen.trouble or self.patterns in seen.visible):
            return None
        self._last = seen.number
        if seen.trouble:
            return {"trouble": True}
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
    """Reads live numbers as long as any stream is open, and limits the streams. For the event
    loop's thread.

    Args:
        services: what to look with.

    Attributes:
        seen: the last look.
        listeners: who listens.
    """

    def __init__(self, services: Services) -> None:
        self.seen = SentNumbers()
        self._services = services
        self.listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None

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

    @property
    def looking(self) -> bool:
        """Whether another look will come."""
        return self._task is not None and not self._task.done()

    @contextmanager
    def joined(self, listener: Listener) -> Iterator[None]:
        """Let somebody listen until the end of the block."""
        self.listeners.add(listener)
        if not self.looking:
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self.listeners.discard(listener)

    async def _look(self) -> None:
        before = self.seen
        while self.listeners:
            began = time.monotonic()
            wanted = frozenset[str]().union(*(one.counters for one in self.listeners))
            patterns = frozenset(one.patterns for one in self.listeners)
            number = self.seen.number + 1
            try:
                self.seen = before = await self._services.run(
                    look, self._services.reads, wanted, patterns, number, before
                )
            except (StoreError, StreamError):
                self.seen = SentNumbers(number=number, trouble=True)
            except Exception:
                # A bug, or no thread to be had: without numbers nobody is to be left waiting.
                LOGGER.exception("live numbers:", extra={"action": "internal_error"})
                self.seen = SentNumbers(number=number, trouble=True)
            for listener in self.listeners:
                listener.wake.set()
            if await self._paused(rest(time.monotonic() - began)):
                break

    async def _paused(self, seconds: float) -> bool:
        """Wait; whether the process is to end, which all who listen are woken for."""
        try:
            async with asyncio.timeout(seconds):
                await self._services.stopping.wait()
        except TimeoutError:
            return False
        for listener in self.listeners:
            listener.wake.set()
        return True


def rest(took: float) -> float:
    """Seconds to wait after a look that took so many."""
    return min(max(EVERY_S, REST * took), LONGEST_REST_S)


def look(
    reads: Reads,
    wanted: frozenset[str],
    patterns: frozenset[tuple[str, ...]],
    number: int,
    before: SentNumbers,
) -> SentNumbers:
    """Ask MySQL and Redis once. Blocks.

    Args:
        reads: whom to ask.
        wanted: whose totals of today are wanted.
        patterns: by which counters are told of, of everybody who listens.
        number: of this look.
        before: an earlier look.

    Raises:
        StoreError: MySQL did not do its part.
    """
    (all_names, overview), complete = reads.read(
        lambda moment: (today(moment.snapshot, sorted(wanted)), moment.complete_up_to)
    )
    names = None if all_names is None else tuple(all_names)
    counted = before.visible if before.names == names else {}
    return SentNumbers(
        number=number,
        names=names,
        visible={
            each: counted[each] if each in counted else _visible(names, each) for each in patterns
        },
        today={line.counter: line.days[-1] for line in overview.lines if line.days},
        complete_up_to=complete,
    )


def _visible(names: tuple[str, ...] | None, patterns: tuple[str, ...]) -> int | None:
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
        with self._feed.joined(self._listener):
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Send the head, and events as they come (called by Starlette)."""
        ends = time.monotonic() + LIFE_S
        with suppress(TimeoutError):  # a listener that stopped reading: the server cuts it off
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await _send(send, f"retry: {RECONNECT_MS}\n\n")
            while (left := ends - time.monotonic()) > 0 and self._welcome():
                await _send(send, await self._next(min(left, HEARTBEAT_S)))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, seconds: float) -> str:
        """What is new; a comment after so many seconds, or once the listener may not listen."""
        wake, ends = self._listener.wake, time.monotonic() + seconds
        while not wake.is_set():
            left = ends - time.monotonic()
            if left <= 0 or not self._welcome():
                return ":\n\n"
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, WELCOME_S)):
                    await wake.wait()
        wake.clear()
        news = self._listener.news(self._feed.seen)
        return ":\n\n" if news is None else f"data: {json.dumps(news)}\n\n"


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
