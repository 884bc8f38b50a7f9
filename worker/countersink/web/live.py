"""``GET /v1/live``: live numbers as server-sent events (WHATWG HTML, 9.2)."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from countersink.stream.limits import check_counter
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.live_feed import FEEDS, MAX_PER_ADDRESS, MAX_PER_KEY, Feed, Listener
from countersink.web.parameters import COUNTER_NAME, Parameter, read
from countersink.web.problem import Problem
from countersink.web.services import Services

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


COUNTER: Final = Parameter(
    name="counter",
    read=check_counter,
    description="Whose total of today to tell; may be given several times.",
    schema=COUNTER_NAME,
    repeatable=True,
    most=MAX_COUNTERS,
)


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
        with suppress(TimeoutError):  # a listener that stopped reading: the server cuts it off
            await self._stream(send)

    async def _stream(self, send: Send) -> None:
        ends = time.monotonic() + LIFE_S
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await _send(send, f"retry: {RECONNECT_MS}\n\n")
        while (left := ends - time.monotonic()) > 0 and self._welcome():
            await _send(send, await self._next(min(left, HEARTBEAT_S)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, seconds: float) -> str:
        try:
            async with asyncio.timeout(seconds):
                await self._listener.wake.wait()
        except TimeoutError:
            return ":\n\n"
        self._listener.wake.clear()
        news = self._listener.news(self._feed.seen)
        return ":\n\n" if news is None else f"data: {json.dumps(news)}\n\n"


async def live(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/live``."""
    counters = frozenset(read(request, (COUNTER,))[COUNTER.name])
    if not all(map(who.may_name, counters)):
        raise Problem(403, "This key is not for all of these counters")
    feed = FEEDS.of(services)
    listener = Listener(counters, who.counters, who.key_id, request.scope["countersink.client"])
    if not feed.has_room(listener):
        raise Problem(
            429,
            f"{MAX_PER_KEY} streams may be open with one key, and {MAX_PER_ADDRESS} from one"
            " address: end one first",
            headers={"Retry-After": "30"},
        )
    if feed.full:
        raise Problem(
            503, "Too many listen already: try again later", headers={"Retry-After": "30"}
        )
    if request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)

    def welcome() -> bool:
        return not services.stopping.is_set() and services.register.holds(who)

    return LiveStream(feed, listener, welcome)


async def _send(send: Send, text: str) -> None:
    async with asyncio.timeout(SEND_S):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


_NEWS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["counters", "complete_up_to", "today"],
    "additionalProperties": False,
    "properties": {
        "counters": {"type": "integer", "minimum": 0},
        "complete_up_to": {"type": ["string", "null"], "format": "date-time"},
        "today": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["day", "total"],
                "additionalProperties": False,
                "properties": {
                    "day": {"type": "string", "format": "date"},
                    "total": {"type": "integer"},
                },
            },
        },
    },
}
_TROUBLE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["trouble"],
    "additionalProperties": False,
    "properties": {"trouble": {"const": True}},
}
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "Each event: OpenAPI 3.1 has no other word for it.",
    "required": ["data"],
    "properties": {
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"oneOf": [_NEWS, _TROUBLE]},
        }
    },
}
_OPERATION: Final[dict[str, Any]] = {
    "operationId": "live",
    "tags": ["system"],
    "summary": "Live numbers, as server-sent events",
    "description": "About once a second one event whose data is a JSON document: `counters`, how"
    " many there are; `complete_up_to`; `today`, the day and its total of each named counter that"
    ' has changed. `{"trouble": true}` where a server behind this one is away. The stream ends'
    f" after {LIFE_S:.0f} seconds: open another one.",
    "parameters": [COUNTER.document()],
    "responses": {
        "200": {"description": "Events.", "content": {MEDIA_TYPE: {"schema": _EVENT}}},
        "422": {"description": "A name that no counter can have, or too many of them."},
        "503": {"description": "Too many listen already."},
    },
}

DOORS: Final[tuple[Door, ...]] = (
    Door(method="GET", path="/v1/live", handler=live, scope="read", operation=_OPERATION),
)
