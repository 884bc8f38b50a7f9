"""What StatsD comes by: datagrams over UDP and unix sockets (``Datagrams``: how many are received
per call, how one that is too large is cut), and streams over TCP and unix sockets (``Streams``:
longest line, which connection is closed when there are too many, and the log lines about it).

Most of what a datagram costs in Python is the call that receives it, and that it hands the
interpreter lock to another thread and waits for it. Linux takes many at once with recvmmsg(2), for
which Python has no function: so it is called by way of ctypes.
"""

import ctypes
import errno
import os
import select
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Final

from countersink.statsd.options import DRAIN_SECONDS, StatsdOptions
from countersink.statsd.tally import DELIVER_SECONDS, StatsdAction, StatsdTally

BATCH: Final = 128
"""Datagrams by one call."""
LARGEST: Final = 65_536
"""Bytes of a datagram: of UDP none is as large; those of unix sockets may be, and are cut."""
READ: Final = 65_536
"""Bytes read from a connection before the next one has its turn."""
LONGEST: Final = 65_535
"""Bytes of a line; a connection that sends a longer one is closed."""
ROUND: Final = 128
"""Connections read before what they sent is counted, and accepted before others have their turn."""
PAUSE_SECONDS: Final = 0.1
"""Before a socket that failed is tried again, and before connections are accepted again when there
was no descriptor for one."""

_WORD: Final = 4


class Datagrams(Thread):
    """Reads one socket until told to stop, and then what has arrived by then.

    While there are more to be received, the kernel is not asked to wait.

    Args:
        opened: the socket, blocking.
        tally: what counts.
        stop: a descriptor that becomes readable when it is time to stop.
    """

    def __init__(self, opened: socket.socket, tally: StatsdTally, stop: int) -> None:
        super().__init__(name="statsd-datagrams", daemon=True)
        self._socket = opened
        self._receiver = Receiver(opened)
        self._may_cut = opened.family == socket.AF_UNIX
        self._tally = tally
        self._stop_fd = stop

    def run(self) -> None:
        """Receive and count."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stop_fd, select.POLLIN)
        until: float | None = None
        more = waiting = False
        while True:
            ready = poll.poll(0 if more else DELIVER_SECONDS * 1000 if waiting else None)
            if until is None and any(each == self._stop_fd for each, _ in ready):
                until = time.monotonic() + DRAIN_SECONDS
            packets = self._receive()
            more = len(packets) == BATCH
            try:
                # Also when there are none: what came before may have waited long enough.
                waiting = self._tally.packets(packets)
                if until is not None and (not more or time.monotonic() >= until):
                    self._tally.deliver()
                    return
            except Exception:
                self._tally.log.bug("the listener")

    def _receive(self) -> list[bytearray]:
        """The datagrams that are there, one batch at most, without lines that are cut."""
        try:
            packets = self._receiver.receive()
        except OSError as error:
            self._tally.log.seldom(StatsdAction.FAILED, f"cannot receive: {error.strerror}")
            select.select([self._stop_fd], [], [], PAUSE_SECONDS)
            return []
        for place, packet in enumerate(packets if self._may_cut else ()):
            if len(packet) >= LARGEST:
                packets[place], _, cut = packet.rpartition(b"\n")
                self._tally.too_long(bytes(cut))
        return packets


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """struct msghdr: recvmsg(2)."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_Iovec)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """struct mmsghdr: recvmmsg(2)."""

    _fields_ = (("header", _Header), ("received", ctypes.c_uint32))


_recvmmsg: Final = ctypes.CDLL(None, use_errno=True).recvmmsg
_recvmmsg.argtypes = (
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p,
)  # fmt: skip


class Receiver:
    """One call for up to ``BATCH`` datagrams, each into its own part of one buffer.

    8 MiB of addresses; of memory only what datagrams fill, in pages.
    """

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._buffer = bytearray(BATCH * LARGEST)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._starts = range(0, BATCH * LARGEST, LARGEST)
        self._vectors = (_Iovec * BATCH)(*[_Iovec(base + start, LARGEST) for start in self._starts])
        self._messages = (_Message * BATCH)()
        for message, vector in zip(self._messages, self._vectors, strict=True):
            message.header.vectors = ctypes.pointer(vector)
            message.header.vector_count = 1
        # The lengths lie in the array of messages at equal distances: one slice gets them all.
        words = memoryview(self._messages).cast("B").cast("I")
        step = ctypes.sizeof(_Message) // _WORD
        self._lengths = words[_Message.received.offset // _WORD :: step]

    def receive(self) -> list[bytearray]:
        """At most ``BATCH`` datagrams that are there; fewer: there are no more. Does not wait.

        Raises:
            OSError: the socket failed.
        """
        fd = self._socket.fileno()
        count = _recvmmsg(fd, self._messages, BATCH, socket.MSG_DONTWAIT, None)
        if count < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                return []
            raise OSError(number, os.strerror(number))
        buffer = self._buffer
        lengths = self._lengths[:count].tolist()
        return [
            buffer[start : start + length]
            for start, length in zip(self._starts, lengths, strict=False)
        ]


@dataclass(slots=True)
class _State:
    """What is known of an open connection."""

    unfinished: bytes = b""
    """The line that has not ended yet."""
    began: float = 0.0
    """When its first byte came."""


class Streams(Thread):
    """Serves all stream connections until told to stop, and then reads what has arrived by then.

    When too many are open one makes room for each new one: one whose line has begun more than
    ``line_timeout_s`` ago, else the one that has sent no whole line for longest. So nobody keeps
    others out by connecting and saying nothing, nor by lines that do not end.

    Args:
        listeners: sockets that listen.
        tally: what counts.
        options: how many connections at once, and in which time a line must have come where others
            need the place.
        stop: a descriptor that becomes readable when it is time to stop.
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        tally: StatsdTally,
        options: StatsdOptions,
        stop: int,
    ) -> None:
        super().__init__(name="statsd-streams", daemon=True)
        self._listeners = listeners
        self._tally = tally
        self._stop_fd = stop
        self._options = options
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, _State] = {}  # by when the last whole line came
        self._lines: list[bytes] = []

    def run(self) -> None:
        """Accept, receive and count."""
        selector = self._selector
        for listener in self._listeners:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ)
        selector.register(self._stop_fd, selectors.EVENT_READ)
        until: float | None = None
        try:
            while until is None or time.monotonic() < until:
                ready = [key.fileobj for key, _ in selector.select(None if until is None else 0)]
                if self._stop_fd in ready:
                    # What was sent is read still, also by connections that are not accepted yet.
                    selector.unregister(self._stop_fd)
                    until = time.monotonic() + DRAIN_SECONDS
                elif until is not None and not ready:
                    return
                self._serve(ready)
        finally:
            for connection in list(self._open):
                self._close(connection)
            selector.close()

    def _serve(self, ready: Sequence[object]) -> None:
        new = []
        for number, each in enumerate(ready, 1):
            if each in self._listeners:
                new.append(each)
            elif each != self._stop_fd:
                self._read(each)
            if number % ROUND == 0:
                self._count()
        for listener in new:  # last: what has ended has made room, what has said something is heard
            self._accept(listener)
        self._count()

    def _count(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            try:
                self._tally.lines(lines)
            except Exception:
                self._tally.log.bug("the listener")

    def _accept(self, listener: object) -> None:
        assert isinstance(listener, socket.socket)
        for _ in range(ROUND):  # not one alone: a turn of those that send much takes long
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # No descriptor is left, say: whoever connects waits in the backlog.
                reason = f"cannot accept a connection: {error.strerror}"
                self._tally.log.seldom(StatsdAction.REFUSED, reason)
                time.sleep(PAUSE_SECONDS)
                return
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        if len(self._open) >= self._options.max_connections:
            self._make_room()
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            # A client that vanished without a word would hold its place for ever.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._open[connection] = _State()
        self._selector.register(connection, selectors.EVENT_READ)
        self._tally.figures.connections = len(self._open)

    def _make_room(self) -> None:
        """Close the connection that is needed least, once nothing of it waits to be read."""
        for _ in range(len(self._open)):
            connection = self._least_needed()
            lines = len(self._lines)
            self._read(connection)  # its end, perhaps, or that of a line
            if connection not in self._open:
                return
            if len(self._lines) == lines:
                break
        self._tally.figures.refused += 1
        self._tally.log.seldom(
            StatsdAction.REFUSED,
            "a connection was closed, to make room for a new one",
            connections=self._options.max_connections,
            refused=self._tally.figures.refused,
        )
        self._close(self._least_needed())

    def _least_needed(self) -> socket.socket:
        latest = time.monotonic() - self._options.line_timeout_s
        for connection, state in self._open.items():
            if state.unfinished and state.began < latest:
                return connection
        return next(iter(self._open))

    def _read(self, connection: object) -> None:
        assert isinstance(connection, socket.socket)
        try:
            data = connection.recv(READ)
        except BlockingIOError:
            return
        except OSError:  # broken off: what was not finished is no line
            self._close(connection)
            return
        state = self._open[connection]
        if not data:
            self._lines.append(state.unfinished)  # its end is the end of the line
            self._close(connection)
            return
        if not state.unfinished or b"\n" in data:
            state.began = time.monotonic()
        *lines, state.unfinished = (state.unfinished + data).split(b"\n")
        if lines:
            self._lines += lines
            self._open[connection] = self._open.pop(connection)
        if len(state.unfinished) > LONGEST:
            self._tally.too_long(state.unfinished)
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._open[connection]
        self._tally.figures.connections = len(self._open)
