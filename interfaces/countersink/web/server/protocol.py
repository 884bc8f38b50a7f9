"""``BoundedProtocol``, a connection with limits that uvicorn lacks: for the size of a request's
head (431) and body (413), the time that a request takes to arrive (408), and the number of
connections and their memory (503). See ``request_parser.py`` for how requests are parsed."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from countersink.web.errors import Problem
from countersink.web.http.answers import MAX_HEADERS, EncodedResponse, encode_head
from countersink.web.options import WebOptions
from countersink.web.server.request_parser import FramedProtocol, malformed_request

MAX_HEAD_BYTES: Final = 65_536
"""Maximum bytes of the request line and all headers."""
KEEP_ALIVE_S: Final = 65
"""Seconds that a connection may be idle. Proxies in front of the server close idle connections
earlier."""
FREE_BYTES: Final = 64 << 10
"""Bytes of each body that do not count for :data:`MAX_HELD`. So small bodies are limited by the
number of connections only, and large bodies of other clients do not keep them out."""
MAX_HELD: Final = 32 << 20
"""Bytes that all connections together may hold in memory: bodies that have not reached their
handlers, and pipelined requests. If ``max_body_bytes`` is larger, it is the limit instead."""
WAITING_BYTES: Final = 6 << 10
"""Bytes of memory that a pipelined request takes besides its own bytes."""
HEADER_BYTES: Final = 160
"""Bytes of memory that each header of a pipelined request takes besides its own bytes."""
MAX_PIPELINED: Final = 100
"""Requests that may wait on one connection until earlier requests are answered."""
WIRE_FACTOR: Final = 8
"""Bytes on the wire that are allowed for each byte of a body: it may come in chunks of one byte."""
SMALL_PARTS: Final = 16_384
"""Maximum number of chunks of a body, besides one chunk for every :data:`PART_BYTES` bytes of it.
Each chunk costs as much processor time as some hundred bytes, and no other request is answered in
that time."""
PART_BYTES: Final = 64
ROOM_AFTER_S: Final = 0.1
"""Seconds between the arrival of a connection beyond the limit and the closing of a connection. In
this time, clients that have just connected can send a request; then their connections are kept."""
MOST_OVER: Final = 128
"""Connections beyond the limit that may be open for :data:`ROOM_AFTER_S`: half of the spare file
descriptors, ``OTHER_FILES``."""
DROP_S: Final = 0.01
"""Seconds between two reads of bytes that are received only to be dropped."""
_CONTINUE: Final = b"HTTP/1.1 100"


class ConnectionLimits:
    """The limits of a server's connections.

    Args:
        options: the settings of the HTTP interface.

    Attributes:
        connections: maximum number of open connections.
        seconds: seconds within which a whole request must arrive, and within which a client must
            take at least one more byte of an answer.
        wire_bytes: maximum bytes of one request on the wire, with the framing of chunked bodies.
        max_held: maximum of ``held``.
        held: bytes of memory that all connections use now, as :meth:`BoundedProtocol._count` counts
            them: for bodies of requests, and for pipelined requests.
    """

    def __init__(self, options: WebOptions) -> None:
        self.connections = options.max_connections
        self.seconds = options.request_timeout_s
        self.wire_bytes = MAX_HEAD_BYTES + WIRE_FACTOR * options.max_body_bytes
        self.max_held = max(MAX_HELD, options.max_body_bytes)
        self.held = 0


class BoundedProtocol(FramedProtocol):
    """A connection whose requests have limits of size and of time.

    Args:
        limits: the limits, shared by all connections.
        config, server_state, app_state, _loop: arguments of uvicorn's protocol.
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
        # Whatever log handlers are installed: access log lines would hold queries.
        self.access_log = False
        self._limits = limits
        self._answers: AnswerWriter
        self._since: float | None = None  # start of the arriving request
        self._idle_since = 0.0  # end of the last answer
        self._received = 0
        self._in_head = True
        self._body_bytes = 0  # received, of the last request's body
        self._parts = 0  # number of parts in which they came
        self._waiting: deque[int] = deque()  # bytes of memory of each pipelined request
        self._held = 0  # this connection's share of limits.held
        self._ending = False  # only the last answer is sent; received bytes are dropped
        self._working: RequestResponseCycle | None = None
        self._unsent = 0  # bytes of answers that the client had not taken at the last check
        self._unsent_since = 0.0  # since when the client has not taken any of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a new connection. If there are more connections than allowed, let
        :meth:`_make_room` close one: after :data:`ROOM_AFTER_S`, or immediately if more than
        :data:`MOST_OVER` connections are open beyond the limit."""
        super().connection_made(transport)
        self._answers = AnswerWriter(transport, self._hang_up)
        self._since = self.loop.time()
        over = len(self.connections) - self._limits.connections
        if over > MOST_OVER:
            self._make_room()
        elif over > 0:
            self.loop.call_later(ROOM_AFTER_S, self._make_room)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; end the connection if they exceed a limit or are not HTTP. Drop the
        bytes if the connection is ending already."""
        if self.transport.is_closing():
            return
        if self._ending:
            # Dropped slowly, so that other connections are served.
            self.flow.pause_reading()
            self.loop.call_later(DROP_S, self._read_on)
            return
        if self._since is None:
            self._since = self.loop.time()
        self._received += len(data)
        try:
            self.feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__  # the exception that a callback raised
            self._end(cause if isinstance(cause, Problem) else malformed_request())
            return
        if self._in_head and self._received > MAX_HEAD_BYTES:
            self._end(_large_head())
        elif self._received > self._limits.wire_bytes:
            self._end(_large())
        elif self._waiting or self._body_bytes > FREE_BYTES:
            self._hold()

    def on_many_headers(self) -> NoReturn:
        """Refuse a request that has too many headers or trailers.

        Raises:
            Problem: always; 431 for headers, 413 for trailers.
        """
        if self._in_head:
            raise Problem(431, f"A request has at most {MAX_HEADERS} headers")
        raise _large()

    def on_head(self) -> None:
        """Check a complete head, then begin with its request, or queue it behind earlier ones.

        Raises:
            Problem: 431 the head is too large; 400 too many requests are pipelined.
        """
        head = 0
        if self._received > MAX_HEAD_BYTES:
            head = self._head_bytes()
            if head > MAX_HEAD_BYTES:
                raise _large_head()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise malformed_request()
        super().on_head()
        if self.pipeline:
            head = head or self._head_bytes()
            self._waiting.append(WAITING_BYTES + HEADER_BYTES * len(self.headers) + head)
        self._in_head = False
        self._body_bytes = self._parts = 0
        # Trailers of a chunked body are not headers, and are ignored.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Count a part of a request's body, and keep it for the handler, unless that has answered.

        Raises:
            Problem: 413 the body has too many small parts.
        """
        self._body_bytes += len(body)
        self._parts += 1
        if self._parts > SMALL_PARTS + self._body_bytes // PART_BYTES:
            raise Problem(413, f"The body comes in too many parts of less than {PART_BYTES} bytes")
        if self._waiting:
            self._waiting[-1] += len(body)
        super().on_body(body)

    def on_end(self) -> None:
        """Record that a request has arrived completely: its time limit no longer applies."""
        self._since = None
        self._received = 0
        self._in_head = True
        super().on_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the pipelined requests of the lost connection, and tell the running handler that its
        client has disconnected. uvicorn does not tell the handler if there are pipelined requests.
        """
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
        cycle.scope["countersink.write"] = self._write_encoded  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, app)

    def _write_encoded(self, response: EncodedResponse) -> bool:
        """Send an encoded answer to the running request, and return True. Send nothing and return
        False if uvicorn must send it: the connection is lost or ends after it, or the client takes
        no bytes or awaits ``100 Continue``. ``scope["countersink.write"]`` is this method."""
        cycle = self._working
        if (
            cycle is None
            or not cycle.keep_alive
            or cycle.waiting_for_100_continue
            or cycle.disconnected
            or self.flow.write_paused
        ):
            return False
        cycle.response_started = cycle.response_complete = True
        dates = [b"%b: %b\r\n" % each for each in self.server_state.default_headers]
        self.transport.write(b"".join([response.head, *dates, b"\r\n", response.body]))
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        """Record the time at which an answer ended, and begin with the next pipelined request. If
        the answer has no body, its head is still kept: send the head now. uvicorn's method would
        also set a timer for each answer, to close an idle connection; see :meth:`end_if_late`."""
        self._idle_since = self.loop.time()
        self._answers.flush()
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        if self._held:
            self._count()

    def end_if_late(self, now: float) -> None:
        """End the connection if its request has not arrived completely within ``limits.seconds``
        (408), or if its client has not taken a byte of an answer for as many seconds. The first
        limit does not apply while pipelined requests wait. Close the connection if it has been idle
        for :data:`KEEP_ALIVE_S`. The server calls this method once a second for each connection.
        ``now`` is the event loop's time in seconds."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since >= self._limits.seconds:
            # close() would wait until the client takes the answer.
            self.transport.abort()
            return
        if self._since is None:
            if self.cycle.response_complete and now - self._idle_since >= KEEP_ALIVE_S:
                self.transport.close()
            return
        if now - self._since < self._limits.seconds:
            return
        if self.pipeline:
            return  # reading is paused until the earlier requests are answered
        if self._ending:
            self.transport.close()  # the answer has had time to arrive
            return
        self._end(Problem(408, f"The request did not arrive within {self._limits.seconds:g} s"))

    def _hold(self) -> None:
        """Update ``limits.held``. If pipelined requests wait, pause reading from the client. If
        ``held`` exceeds ``limits.max_held``, and this connection uses a part of it, end this
        connection: by :meth:`_end` with 503 if a body is arriving or pipelined requests wait, else
        at once, without an answer (a handler has not taken a body that has arrived)."""
        if self.pipeline:
            self.flow.pause_reading()  # even if a handler has resumed reading
        self._count()
        limits = self._limits
        if self._held and limits.held > limits.max_held:
            # Handlers take bodies without notice: count again.
            for each in self.connections:
                if isinstance(each, BoundedProtocol):
                    each._count()
            if self._held and limits.held > limits.max_held:
                if self._in_head and not self.pipeline:
                    self.transport.abort()  # the handler is running, and may never take its body
                else:
                    why = "Too many large bodies arrive at once: try again, or send smaller ones"
                    self._end(Problem(503, why, retry_after=2))

    def _count(self) -> None:
        """Update this connection's part of ``limits.held``: the memory of its pipelined requests,
        and the bytes of the running request's body beyond :data:`FREE_BYTES`. Of this body, all
        received bytes are meant while it arrives; later those that the handler has not taken."""
        working = self._working
        if working is None or working.response_complete:
            body = 0
        elif self._in_head or self.pipeline:
            body = len(working.body)
        else:
            body = self._body_bytes
        held = max(0, body - FREE_BYTES) + sum(self._waiting)
        self._limits.held += held - self._held
        self._held = held

    def _drop_waiting(self) -> None:
        self.pipeline.clear()
        self._waiting.clear()

    def _head_bytes(self) -> int:
        """Return the number of bytes of the URL and the headers of the parsed head. The method, the
        version and separators are left out."""
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _make_room(self) -> None:
        """End one connection if more connections are open than allowed. Of the other connections,
        end the one that has waited longest for its client to send or take bytes. If none of them
        waits for its client, end this connection by :meth:`_end` with 503.

        So a client cannot keep others out by sending nothing or half a request, or by not taking
        its answer.
        """
        open_ones = [
            each
            for each in self.connections
            if isinstance(each, BoundedProtocol) and not each.transport.is_closing()
        ]
        if len(open_ones) <= self._limits.connections or self.transport.is_closing():
            return
        waiting = [each for each in open_ones if each is not self and each._waits_for_client()]
        if not waiting:
            self._end(_too_many_connections())
            return
        longest = min(waiting, key=BoundedProtocol._waiting_since)
        if longest._is_stalled():
            longest.transport.abort()
        else:
            if longest._received:  # else the client could take the answer for that of a request
                longest._end(_too_many_connections())
            longest.transport.close()

    def _waits_for_client(self) -> bool:
        """Return whether the client has to act next: send a request, send its rest, or take an
        answer."""
        if self.transport.is_closing():
            return False
        if self._is_stalled():
            return True
        if self.pipeline:
            return False
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return not self._in_head and not cycle.response_started

    def _waiting_since(self) -> float:
        if self._is_stalled():
            return self._unsent_since
        return self._idle_since if self._since is None else self._since

    def _is_stalled(self) -> bool:
        """Return whether an answer is not sent completely, and the client has taken no byte of it
        since the last call of :meth:`end_if_late`."""
        return 0 < self._unsent == self.transport.get_write_buffer_size()

    def _end(self, problem: Problem) -> None:
        """Answer with ``problem``, and close the connection. If the request's answer has begun,
        close without sending the problem. If a handler works for an earlier request, close after
        its answer, without sending the problem. Do nothing if the connection is ending already."""
        if self.transport.is_closing() or self._ending:
            return
        working = self._working
        if working is None or working.response_complete:
            answerable = self._in_head
        elif self._in_head or self.pipeline:
            # The problem is that of a later request. No handler has begun with pipelined ones.
            self._ending = self._in_head = True
            self._since = None
            self._drop_waiting()
            self._count()
            self.cycle = working
            working.keep_alive = False
            # Further bytes are read and dropped: a close with unread bytes would send a reset,
            # which may overtake the answer.
            self.flow.resume_reading()
            return
        else:
            answerable = not working.response_started
        if answerable:
            self.transport.write(_encode(problem))
        self._answers.close()

    def _hang_up(self) -> None:
        """Close the connection. If a request is arriving, close only the sending half, and drop the
        rest of the request: a close with unread bytes would send a reset, and the client might not
        get the answer."""
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
        """Tell the running handler that its client has disconnected."""
        working = self._working
        if working is not None and not working.response_complete:
            working.disconnected = True
            working.body.clear()
            working.message_event.set()


class AnswerWriter:
    """Writes the head and the body of an answer in one packet, with one system call.

    uvicorn writes the head of an answer first, and then the body; uvloop sends each write at once.
    So this class keeps the head until the body is written, or until the answer ends without a body.

    Args:
        transport: sends the bytes.
        hang_up: closes the connection, after the last answer.

    Attributes:
        is_closing: a function that returns whether the transport is closing.
    """

    def __init__(self, transport: asyncio.Transport, hang_up: Callable[[], object]) -> None:
        self._transport = transport
        self._hang_up = hang_up
        self._head_is_due = False
        self._head = b""
        self.is_closing = transport.is_closing

    def begin(self) -> None:
        """Expect that the next write is the head of an answer."""
        self._head_is_due = True

    def write(self, data: bytes) -> None:
        """Keep ``data`` if it is the head of an answer; otherwise send it, after the kept head. A
        ``100 Continue`` is no head of an answer, and is sent at once."""
        if self._head_is_due and not data.startswith(_CONTINUE):
            self._head_is_due, self._head = False, data
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data)

    def flush(self) -> None:
        """Send the answer's head now if it was kept to be sent with the first part of the body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Send the answer's head if it is kept, then close the connection."""
        self.flush()
        self._hang_up()


def _too_many_connections() -> Problem:
    return Problem(503, "Too many connections", retry_after=2)


def _large_head() -> Problem:
    return Problem(431, f"The head of a request has at most {MAX_HEAD_BYTES:,} bytes")


def _large() -> Problem:
    return Problem(413, "The request is too large")


def _encode(problem: Problem) -> bytes:
    response = problem.response()
    return encode_head(response) + b"connection: close\r\n\r\n" + response.body
