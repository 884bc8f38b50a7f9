"""One connection: uvicorn's, with bounds on how long and how large a request may be.

uvicorn bounds neither the head of a request nor the time that it takes to arrive, nor how many
connections there are.
"""

import asyncio
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from countersink.web.headers import complete
from countersink.web.joined import Joined
from countersink.web.options import WebOptions
from countersink.web.problem import Problem

MAX_HEAD_BYTES: Final = 65_536
"""Bytes of the request line and all headers."""
MAX_TRAILERS: Final = 100
MAX_PIPELINED: Final = 100
"""Requests that may wait on one connection for the answers to those before them."""
WIRE_FACTOR: Final = 8
"""Bytes on the wire for each of a body's: it may come in chunks of one."""


class Limits:
    """The bounds of every connection of a server.

    Args:
        options: the settings.
    """

    def __init__(self, options: WebOptions) -> None:
        self.connections = options.max_connections
        self.seconds = options.request_timeout_s
        self.wire_bytes = MAX_HEAD_BYTES + WIRE_FACTOR * options.max_body_bytes


class BoundedProtocol(HttpToolsProtocol):
    """A connection.

    Args:
        limits: its bounds.
        config, server_state, app_state, _loop: uvicorn's.
    """

    def __init__(
        self,
        limits: Limits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # Whatever handlers others have installed: its lines would hold queries.
        self.access_log = False
        self._limits = limits
        self._answers: Joined
        self._since: float | None = None  # when the request that is arriving began to
        self._idle_since = 0.0  # when the last answer was complete
        self._received = 0
        self._in_head = True
        self._working: RequestResponseCycle | None = None
        self._unsent = 0  # bytes that the client has not taken, when they were looked at last
        self._unsent_since = 0.0  # since when it has not taken any of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; where there are too many, one whose client does nothing makes room, or this one
        ends."""
        super().connection_made(transport)
        self._answers = Joined(transport, self.loop)
        self._since = self.loop.time()
        if len(self.connections) > self._limits.connections and not self._make_room():
            self._end(_full())

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self._since is None:
            self._since = self.loop.time()
        self._received += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # there is nothing to upgrade to: the request is answered as any other
        except httptools.HttpParserError as error:
            found = error.__context__  # what a callback has raised
            self._end(found if isinstance(found, Problem) else _no_request())
            return
        if self._in_head and self._received > MAX_HEAD_BYTES:
            self._end(_large_head())
        elif self._received > self._limits.wire_bytes or (
            not self._in_head and len(self.headers) > MAX_TRAILERS
        ):
            self._end(Problem(413, "The request is too large"))

    def on_headers_complete(self) -> None:
        """Its head is here.

        Raises:
            Problem: it is too large, or too many wait.
        """
        if self._received > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES:
            raise _large_head()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _no_request()
        super().on_headers_complete()
        self._in_head = False
        # What comes after a body in chunks (its trailers) is no header: nobody looks at it.
        self.headers = []

    def on_message_complete(self) -> None:
        """All of it is here."""
        self._since = None
        self._received = 0
        self._in_head = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the handler that works, which is not that of the last request where some wait."""
        self.pipeline.clear()
        if self._working is not None and not self._working.response_complete:
            self._working.disconnected = True
            self._working.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._working = cycle
        self._answers.begin()
        cycle.transport = self._answers  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """It is answered."""
        self._idle_since = self.loop.time()
        self._answers.flush()
        super().on_response_complete()

    def end_if_late(self, now: float) -> None:
        """End the connection if its request takes too long to arrive, or nobody takes the answer.

        Args:
            now: the event loop's time.
        """
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since >= self._limits.seconds:
            # Not closed: that would wait until it is taken.
            self.transport.abort()
            return
        if self._since is None or now - self._since < self._limits.seconds:
            return
        if self.pipeline:
            return  # it waits for the answers to those before it, and so do we
        self._end(Problem(408, f"The request did not arrive within {self._limits.seconds:g} s"))

    def _head_bytes(self) -> int:
        """Of the head that has been read, without what separates its parts."""
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _make_room(self) -> bool:
        """End the connection that has waited longest for its client; False where all are at work.

        So whoever holds connections open, and sends nothing, or no request to its end, or takes no
        answer, keeps nobody out.
        """
        waiting = [
            each
            for each in self.connections
            if isinstance(each, BoundedProtocol) and each is not self and each._waits()
        ]
        if not waiting:
            return False
        longest = min(waiting, key=BoundedProtocol._waits_since)
        if longest._is_deaf():
            longest.transport.abort()
        elif longest._received:
            longest._end(_full())
        else:
            longest.transport.close()  # an answer that nobody asked for could be taken for another
        return True

    def _waits(self) -> bool:
        """Whether it is its client's turn: to send a request, or the rest of one, or to take an
        answer."""
        if self.transport.is_closing():
            return False
        if self._is_deaf():
            return True
        if self.pipeline:
            return False
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return not self._in_head and not cycle.response_started

    def _waits_since(self) -> float:
        if self._is_deaf():
            return self._unsent_since
        return self._idle_since if self._since is None else self._since

    def _is_deaf(self) -> bool:
        """Whether nothing of an answer was taken since it was looked at last."""
        return 0 < self._unsent == self.transport.get_write_buffer_size()

    def _end(self, problem: Problem) -> None:
        """Say why, unless an answer has begun, and hang up."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self._in_head:
            free = cycle is None or cycle.response_complete
        else:
            free = not cycle.response_started
        if free:
            self.transport.write(_wire(problem))
        self._answers.close()


def _full() -> Problem:
    return Problem(503, "Too many connections", headers={"Retry-After": "2"})


def _large_head() -> Problem:
    return Problem(431, f"The head of a request has at most {MAX_HEAD_BYTES:,} bytes")


def _no_request() -> Problem:
    return Problem(400, "This is no HTTP request")


def _wire(problem: Problem) -> bytes:
    response = complete(problem.response())
    status = HTTPStatus(problem.status)
    lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode())]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"connection: close", b"", bytes(response.body)])
