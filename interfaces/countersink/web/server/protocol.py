"""Bounds of one connection: size of head and body, number of connections, memory, time to arrive;
with the answers 408, 413, 431 and 503; how requests are framed: ``request_parser.py``.

uvicorn bounds neither the head of a request nor the time that it takes to arrive, nor how many
connections there are, nor what they hold in memory.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, NoReturn

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from countersink.web.errors import Problem
from countersink.web.http.headers import MAX_HEADERS, complete
from countersink.web.options import WebOptions
from countersink.web.server.request_parser import FramedProtocol, no_request

MAX_HEAD_BYTES: Final = 65_536
"""Bytes of the request line and all headers."""
FREE_BYTES: Final = 64 << 10
"""Of each body, that do not count as held: there are no more of them than connections, and so
nobody's large bodies are in the way of small ones."""
MAX_HELD: Final = 32 << 20
"""Further bytes of all bodies that arrive, or wait for their handlers, and of all requests that
wait for the answers to those before them, together; or one body, where that may be larger. Whoever
sends many at a time takes no more than this."""
WAITING_BYTES: Final = 6 << 10
"""What a request takes that waits, besides its own bytes."""
HEADER_BYTES: Final = 160
"""What each of its headers takes, besides its own bytes."""
MAX_PIPELINED: Final = 100
"""Requests that may wait on one connection for the answers to those before them."""
WIRE_FACTOR: Final = 8
"""Bytes on the wire for each of a body's: it may come in chunks of one."""
SMALL_PARTS: Final = 16_384
"""Chunks of a body, besides one for every :data:`PART_BYTES` of it: each takes as much of the
processor as some hundred bytes, and nobody else is answered meanwhile."""
PART_BYTES: Final = 64
ROOM_AFTER_S: Final = 0.1
"""After a connection too many has come: the clients of all that came just now can send a request
till then, and whose request is here keeps its place."""
MOST_OVER: Final = 128
"""Connections beyond the limit that may wait for that: half of ``OTHER_FILES``."""
DROP_S: Final = 0.01
"""Between two reads of what is dropped."""
_GO_ON: Final = b"HTTP/1.1 100"


class ConnectionLimits:
    """The bounds of every connection of a server.

    Args:
        options: the settings.

    Attributes:
        held: bytes that all connections hold now, of those that count for ``max_held``.
    """

    def __init__(self, options: WebOptions) -> None:
        self.connections = options.max_connections
        self.seconds = options.request_timeout_s
        self.wire_bytes = MAX_HEAD_BYTES + WIRE_FACTOR * options.max_body_bytes
        self.max_held = max(MAX_HELD, options.max_body_bytes)
        self.held = 0


class BoundedProtocol(FramedProtocol):
    """A connection with bounds on size and time of its requests.

    Args:
        limits: its bounds.
        config, server_state, app_state, _loop: uvicorn's.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # Whatever handlers others have installed: its lines would hold queries.
        self.access_log = False
        self._limits = limits
        self._answers: AnswerWriter
        self._since: float | None = None  # when the request that is arriving began to
        self._idle_since = 0.0  # when the last answer was complete
        self._received = 0
        self._in_head = True
        self._body_bytes = 0  # of the last request, as many as have come
        self._parts = 0  # in which they have
        self._waiting: deque[int] = deque()  # what each request in the pipeline takes
        self._held = 0  # what is in the server's sum for this connection
        self._ending = False  # it goes on for the last answer alone: what still comes is dropped
        self._working: RequestResponseCycle | None = None
        self._unsent = 0  # bytes that the client has not taken, when they were looked at last
        self._unsent_since = 0.0  # since when it has not taken any of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; where there are too many, one whose client does nothing makes room soon."""
        super().connection_made(transport)
        self._answers = AnswerWriter(transport, self._hang_up)
        self._since = self.loop.time()
        over = len(self.connections) - self._limits.connections
        if over > MOST_OVER:
            self._make_room()
        elif over > 0:
            self.loop.call_later(ROOM_AFTER_S, self._make_room)

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if self.transport.is_closing():
            return
        if self._ending:
            # Dropped, but not as fast as it comes: others have their turn meanwhile.
            self.flow.pause_reading()
            self.loop.call_later(DROP_S, self._read_on)
            return
        self._unset_keepalive_if_required()
        if self._since is None:
            self._since = self.loop.time()
        self._received += len(data)
        try:
            self.feed(data)
        except httptools.HttpParserError as error:
            found = error.__context__  # what a callback has raised
            self._end(found if isinstance(found, Problem) else no_request())
            return
        if self._in_head and self._received > MAX_HEAD_BYTES:
            self._end(_large_head())
        elif self._received > self._limits.wire_bytes:
            self._end(_large())
        elif self._waiting or self._body_bytes > FREE_BYTES:
            self._hold()

    def on_many_headers(self) -> NoReturn:
        """There are too many headers, or too many come after a body in chunks.

        Raises:
            Problem: always.
        """
        if self._in_head:
            raise Problem(431, f"A request has at most {MAX_HEADERS} headers")
        raise _large()

    def on_head(self) -> None:
        """Its head is here.

        Raises:
            Problem: it is too large, or too many wait.
        """
        head = 0
        if self._received > MAX_HEAD_BYTES:
            head = self._head_bytes()
            if head > MAX_HEAD_BYTES:
                raise _large_head()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise no_request()
        super().on_head()
        if self.pipeline:
            head = head or self._head_bytes()
            self._waiting.append(WAITING_BYTES + HEADER_BYTES * len(self.headers) + head)
        self._in_head = False
        self._body_bytes = self._parts = 0
        # What comes after a body in chunks (its trailers) is no header: nobody looks at it.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """A part of its body is here.

        Raises:
            Problem: there are too many, too small ones.
        """
        self._body_bytes += len(body)
        self._parts += 1
        if self._parts > SMALL_PARTS + self._body_bytes // PART_BYTES:
            raise Problem(413, f"The body comes in too many parts of less than {PART_BYTES} bytes")
        if self._waiting:
            self._waiting[-1] += len(body)
        super().on_body(body)

    def on_end(self) -> None:
        """All of it is here."""
        self._since = None
        self._received = 0
        self._in_head = True
        super().on_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the handler that works, which is not that of the last request where some wait."""
        self._drop_waiting()
        self._body_bytes = 0
        self._abandon()
        super().connection_lost(exc)
        self._working = None
        self._count()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._working = cycle
        if self._waiting:
            self._waiting.popleft()
        self._answers.begin()
        cycle.transport = self._answers  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """It is answered."""
        self._idle_since = self.loop.time()
        self._answers.flush()
        super().on_response_complete()
        if self._held:
            self._count()

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
        if self._ending:
            self.transport.close()  # its answer has had time to arrive
            return
        self._end(Problem(408, f"The request did not arrive within {self._limits.seconds:g} s"))

    def _hold(self) -> None:
        """Make sure that there is room for what this connection holds, or end it."""
        if self.pipeline:
            self.flow.pause_reading()  # also where a handler that waits for its client reads on
        self._count()
        limits = self._limits
        if self._held and limits.held > limits.max_held:
            # A handler takes its body without telling us.
            for each in self.connections:
                if isinstance(each, BoundedProtocol):
                    each._count()
            if self._held and limits.held > limits.max_held:
                if self._in_head and not self.pipeline:
                    self.transport.abort()  # the handler is at work, and may never take it
                else:
                    why = "Too many large bodies arrive at once: try again, or send smaller ones"
                    self._end(Problem(503, why, retry_after=2))

    def _count(self) -> None:
        """Bring the server's sum up to date."""
        working = self._working
        if working is None or working.response_complete:
            own = 0
        elif self._in_head or self.pipeline:
            own = len(working.body)
        else:
            own = self._body_bytes
        held = max(0, own - FREE_BYTES) + sum(self._waiting)
        self._limits.held += held - self._held
        self._held = held

    def _drop_waiting(self) -> None:
        self.pipeline.clear()
        self._waiting.clear()

    def _head_bytes(self) -> int:
        """Of the head that has been read, without what separates its parts."""
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _make_room(self) -> None:
        """Where there are still too many, end the connection that has waited longest for its
        client, or this one if all others are at work.

        So whoever holds connections open, and sends nothing, or no request to its end, or takes no
        answer, keeps nobody out.
        """
        there = [
            each
            for each in self.connections
            if isinstance(each, BoundedProtocol) and not each.transport.is_closing()
        ]
        if len(there) <= self._limits.connections or self.transport.is_closing():
            return
        waiting = [each for each in there if each is not self and each._waits()]
        if not waiting:
            self._end(_full())
            return
        longest = min(waiting, key=BoundedProtocol._waits_since)
        if longest._is_deaf():
            longest.transport.abort()
        else:
            if longest._received:  # an answer that nobody asked for could be taken for another
                longest._end(_full())
            longest.transport.close()

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
        """Say why, unless an answer has begun, and hang up; after the answers that are due."""
        if self.transport.is_closing() or self._ending:
            return
        working = self._working
        if working is None or working.response_complete:
            free = self._in_head
        elif self._in_head or self.pipeline:
            # It is not about the request that is worked for. Those that wait were not begun.
            self._ending = self._in_head = True
            self._since = None
            self._drop_waiting()
            self._count()
            self.cycle = working
            working.keep_alive = False
            # What still comes is read and dropped: with something unread the close would be a
            # reset, which may overtake the answer.
            self.flow.resume_reading()
            return
        else:
            free = not working.response_started
        if free:
            self.transport.write(_wire(problem))
        self._answers.close()

    def _hang_up(self) -> None:
        """Close; while a request is arriving, only what we send, and drop the rest of it.

        With something unread the close would be a reset: whoever sends on gets that, and not the
        answer.
        """
        arrives = self._ending or (self._since is not None and self._received > 0)
        if not arrives or self.transport.is_closing():
            self.transport.close()
            return
        self._ending = True
        if self._since is None:
            self._since = self.loop.time()
        self._abandon()
        self._body_bytes = 0
        self._count()
        self.flow.resume_reading()
        self.transport.write_eof()

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _abandon(self) -> None:
        """Let the handler that works end: nobody is there for its answer."""
        working = self._working
        if working is not None and not working.response_complete:
            working.disconnected = True
            working.body.clear()
            working.message_event.set()


class AnswerWriter:
    """Writes the head of an answer and its body in one packet, and in one system call.

    uvicorn writes the head of an answer, and then the body; uvloop sends at once what is written.
    So the head is held back until the body comes, or the answer ends without one.

    Args:
        transport: what sends.
        hang_up: ends the connection, once all of the last answer is written.

    Attributes:
        is_closing: as the transport's.
    """

    def __init__(self, transport: asyncio.Transport, hang_up: Callable[[], object]) -> None:
        self._transport = transport
        self._hang_up = hang_up
        self._head_is_due = False
        self._head = b""
        self.is_closing = transport.is_closing

    def begin(self) -> None:
        """The next thing written is the head of an answer."""
        self._head_is_due = True

    def write(self, data: bytes) -> None:
        """Send, or hold back."""
        if self._head_is_due and not data.startswith(_GO_ON):
            self._head_is_due, self._head = False, data
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data)

    def flush(self) -> None:
        """Send what is held back."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Send what is held back, and hang up."""
        self.flush()
        self._hang_up()


def _full() -> Problem:
    return Problem(503, "Too many connections", retry_after=2)


def _large_head() -> Problem:
    return Problem(431, f"The head of a request has at most {MAX_HEAD_BYTES:,} bytes")


def _large() -> Problem:
    return Problem(413, "The request is too large")


def _wire(problem: Problem) -> bytes:
    response = complete(problem.response())
    status = HTTPStatus(problem.status)
    lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode())]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"connection: close", b"", bytes(response.body)])
