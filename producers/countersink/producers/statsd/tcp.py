"""StatsD over TCP and unix streams: longest line, which connection is closed when there are too
many, and the log lines about it."""

import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Final

from countersink.producers.statsd.options import DRAIN_SECONDS, StatsdOptions
from countersink.producers.statsd.tally import StatsdAction, StatsdTally

READ: Final = 65_536
"""Bytes read from a connection before the next one has its turn."""
LONGEST: Final = 65_535
"""Bytes of a line; a connection that sends a longer one is closed."""
ROUND: Final = 128
"""Connections read before what they sent is counted, and accepted before others have their turn."""
PAUSE_SECONDS: Final = 0.1
"""Before connections are accepted again when there was no descriptor for one."""


@dataclass(slots=True)
class _State:
    """What is known of an open connection."""

    lines: int = 0
    """Whole lines that have come."""
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
        try:
            stopping = False
            while not stopping:
                ready = [key.fileobj for key, _ in selector.select()]
                stopping = self._stop_fd in ready
                self._serve(ready)
            self._drain()
        finally:
            for connection in list(self._open):
                self._close(connection)
            selector.close()

    def _drain(self) -> None:
        """Read what has been sent, also by connections that are not accepted yet."""
        self._selector.unregister(self._stop_fd)
        until = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < until:
            ready = self._selector.select(0)
            if not ready:
                return
            self._serve([key.fileobj for key, _ in ready])

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
            except Exception as error:
                self._tally.failed(error)

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
        connection = self._least_needed()
        for _ in range(len(self._open)):
            state = self._open[connection]
            lines = state.lines
            self._read(connection)  # its end, perhaps, or that of a line
            if connection not in self._open:
                return
            if state.lines == lines:
                break
            connection = self._least_needed()
        self._tally.figures.refused += 1
        self._tally.log.seldom(
            StatsdAction.REFUSED,
            "a connection was closed, to make room for a new one",
            connections=self._options.max_connections,
            refused=self._tally.figures.refused,
        )
        self._close(connection)

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
            state.lines += len(lines)
            del self._open[connection]
            self._open[connection] = state
        if len(state.unfinished) > LONGEST:
            self._tally.too_long(state.unfinished)
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._open[connection]
        self._tally.figures.connections = len(self._open)
