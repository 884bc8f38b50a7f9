"""The threads that receive StatsD lines. ``Datagrams`` reads one datagram socket (UDP or unix), and
drops the last line of a datagram that is too large. ``Streams`` reads all connections of stream
sockets (TCP or unix), and limits the length of a line and the number of connections.

Most of the time that Python spends on a datagram is the system call: during the call another thread
gets the interpreter lock, and this thread must wait to get the lock back. Therefore one call,
Linux's recvmmsg(2), receives many datagrams. It is called by ctypes, because Python has no function
for it.
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
"""Most datagrams that one call receives."""
LARGEST: Final = 65_536
"""Bytes after which a datagram is cut. All UDP datagrams are smaller; those of unix sockets may be
larger.
"""
READ: Final = 65_536
"""Bytes that are read from a connection before the next connection has its turn."""
LONGEST: Final = 65_535
"""Most bytes of a connection's unfinished line. If it becomes longer, the connection is closed."""
ROUND: Final = 128
"""Connections that are read before their lines are counted; also the connections that are accepted
at most before others are read.
"""
PAUSE_SECONDS: Final = 0.1
"""Seconds before the next try, after a receive failed or after a connection could not be accepted
because no file descriptor was left.
"""

_WORD: Final = 4


class Datagrams(Thread):
    """The thread that reads one datagram socket until the stop. After the stop it reads, for at
    most ``DRAIN_SECONDS``, the datagrams that have already arrived. After a full batch it receives
    the next one at once. Otherwise it waits for a datagram or the stop: without a limit, or for at
    most ``DELIVER_SECONDS`` if the tally has lines that are not delivered.

    Args:
        opened: the socket, in blocking mode.
        tally: counts the lines.
        stop: a file descriptor that becomes readable to request the stop.
    """

    def __init__(self, opened: socket.socket, tally: StatsdTally, stop: int) -> None:
        super().__init__(name="statsd-datagrams", daemon=True)
        self._socket = opened
        self._receiver = Receiver(opened)
        self._may_cut = opened.family == socket.AF_UNIX
        self._tally = tally
        self._stop_fd = stop

    def run(self) -> None:
        """Receive datagrams and count their lines until the stop."""
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
                # Also without new ones: earlier datagrams may be due for delivery.
                waiting = self._tally.packets(packets)
                if until is not None and (not more or time.monotonic() >= until):
                    self._tally.deliver()
                    return
            except Exception:
                self._tally.log.bug("the listener")

    def _receive(self) -> list[bytearray]:
        """Return the datagrams that have arrived, at most one batch. A unix datagram of
        ``LARGEST`` bytes may have been cut: its last line is left out, and recorded as too long. If
        the socket fails, log that, pause, and return an empty list.
        """
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
    """The C struct msghdr; see recvmsg(2)."""

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
    """The C struct mmsghdr; see recvmmsg(2)."""

    _fields_ = (("header", _Header), ("received", ctypes.c_uint32))


_recvmmsg: Final = ctypes.CDLL(None, use_errno=True).recvmmsg
_recvmmsg.argtypes = (
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p,
)  # fmt: skip


class Receiver:
    """Receives up to ``BATCH`` datagrams by one system call, each into its own part of one buffer.

    The buffer takes 8 MiB of address space, but memory only for the pages that datagrams have
    filled.

    Args:
        opened: the datagram socket.
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
        # The lengths are at equal distances in the array of messages: one slice gets them all.
        words = memoryview(self._messages).cast("B").cast("I")
        step = ctypes.sizeof(_Message) // _WORD
        self._lengths = words[_Message.received.offset // _WORD :: step]

    def receive(self) -> list[bytearray]:
        """Return copies of up to ``BATCH`` datagrams that have arrived, without waiting for any. If
        there are fewer than ``BATCH``, no others have arrived, unless a signal interrupted the
        call. A datagram of more than ``LARGEST`` bytes is cut to its first ``LARGEST``.

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
    """The unfinished line of one open connection, and when it began."""

    unfinished: bytes = b""
    """The bytes of a line whose end has not come yet."""
    began: float = 0.0
    """The monotonic time at which the first byte of the unfinished line came."""


class Streams(Thread):
    """The thread that reads all stream connections until the stop. After the stop it reads, for at
    most ``DRAIN_SECONDS``, the lines that have already arrived.

    If as many connections as allowed are open, each new one closes an old one: a connection with an
    unfinished line that began more than ``line_timeout_s`` ago, or else the connection that has not
    sent a complete line for the longest time. So neither silent connections nor endless lines keep
    other clients out.

    Args:
        listeners: the listening sockets.
        tally: counts the lines.
        options: the most connections, and the timeout of an unfinished line.
        stop: a file descriptor that becomes readable to request the stop.
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
        self._open: dict[socket.socket, _State] = {}  # in order of the latest complete line
        self._lines: list[bytes] = []

    def run(self) -> None:
        """Accept connections, read them and count their lines until the stop."""
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
                    # Lines that were sent are still read, also those of connections in the backlog.
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
        for listener in new:  # last: connections that ended make room, and lines that came count
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
        for _ in range(ROUND):  # not only one: reading busy connections takes long
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # For example, no descriptor is left: new connections wait in the backlog.
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
            # Finds clients that vanished without closing, which would keep their place for good.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._open[connection] = _State()
        self._selector.register(connection, selectors.EVENT_READ)
        self._tally.figures.connections = len(self._open)

    def _make_room(self) -> None:
        """Close an open connection to make room for a new one. Before that, read from the
        connection that is chosen. If it ends by this (its client has closed it, it is lost, or its
        line is too long), there is room. If it has sent a complete line, choose again, at most once
        per open connection.
        """
        for _ in range(len(self._open)):
            connection = self._next_to_close()
            lines = len(self._lines)
            self._read(connection)
            if connection not in self._open:
                return
            if len(self._lines) == lines:
                break
        self._tally.figures.refused += 1
        self._tally.log.seldom(
            StatsdAction.REFUSED,
            "a stream connection was closed to make room for a new one",
            connections=self._options.max_connections,
            refused=self._tally.figures.refused,
        )
        self._close(self._next_to_close())

    def _next_to_close(self) -> socket.socket:
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
        except OSError:  # lost connection: its unfinished line is not counted
            self._close(connection)
            return
        state = self._open[connection]
        if not data:
            self._lines.append(state.unfinished)  # a close ends the line
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
