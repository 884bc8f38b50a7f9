"""Receiving lines by stream connections: TCP and unix."""

import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Final

from countersink.producers.statsd.figures import Figures
from countersink.producers.statsd.journal import Action, Journal
from countersink.producers.statsd.tally import Tally

READ: Final = 65_536
"""Bytes read from a connection before the next one has its turn."""
LONGEST: Final = 65_535
"""Bytes of a line; a connection that sends a longer one is closed."""
ROUND: Final = 128
"""Connections read before what they sent is counted."""
PAUSE_SECONDS: Final = 0.1
"""Before connections are accepted again when there was no descriptor for one."""
UNFINISHED_SECONDS: Final = 10.0
"""How long the rest of a line may take to come when others need the connection's place."""


@dataclass(slots=True)
class _State:
    """What is known of an open connection."""

    heard: float
    """When it was opened or something came last."""
    unfinished: bytes = b""
    """The line that has not ended yet."""


class Streams(Thread):
    """Serves all stream connections until told to stop, and then reads what has arrived by then.

    When too many are open the one that has been idle for longest makes room for a new one, so that
    nobody keeps others out by connecting and saying nothing. One in the midst of a line does so
    only when all are, after :data:`UNFINISHED_SECONDS`; until then new ones are closed.

    Args:
        listeners: sockets that listen.
        tally: what counts.
        figures: where open connections, and those closed as too many, are written down.
        journal: told of those that were closed.
        stop: a descriptor that becomes readable when it is time to stop.
        drain_seconds: how long then to go on at most.
        max_connections: at once.
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        tally: Tally,
        figures: Figures,
        journal: Journal,
        stop: int,
        drain_seconds: float,
        max_connections: int,
    ) -> None:
        super().__init__(name="statsd-streams", daemon=True)
        self._listeners = listeners
        self._tally = tally
        self._figures = figures
        self._journal = journal
        self._stop_fd = stop
        self._drain_seconds = drain_seconds
        self._most = max_connections
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, _State] = {}  # the one heard of last is last
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
        until = time.monotonic() + self._drain_seconds
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
            except Exception:
                self._journal.bug()

    def _accept(self, listener: object) -> None:
        assert isinstance(listener, socket.socket)
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # No descriptor is left, say: whoever connects waits in the backlog.
            self._journal.seldom(Action.REFUSED, f"cannot accept a connection: {error.strerror}")
            time.sleep(PAUSE_SECONDS)
            return
        if len(self._open) >= self._most and not self._made_room():
            self._refused("a connection was closed at once: all others are in use")
            connection.close()
            return
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            # A client that vanished without a word would hold its place for ever.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._open[connection] = _State(time.monotonic())
        self._selector.register(connection, selectors.EVENT_READ)
        self._figures.connections = len(self._open)

    def _made_room(self) -> bool:
        """Close the connection that is needed least; whether there was one."""
        idle = (each for each, state in self._open.items() if not state.unfinished)
        closed = next(filter(_is_quiet, idle), None)
        if closed is None:
            longest, state = next(iter(self._open.items()))
            if time.monotonic() - state.heard < UNFINISHED_SECONDS or not _is_quiet(longest):
                return False
            closed = longest
        self._read(closed)  # its end, perhaps, which may be that of a line
        if closed in self._open:
            self._refused("an idle connection was closed, to make room for a new one")
            self._close(closed)
        return True

    def _refused(self, message: str) -> None:
        self._figures.refused += 1
        self._journal.seldom(
            Action.REFUSED, message, connections=self._most, refused=self._figures.refused
        )

    def _read(self, connection: object) -> None:
        assert isinstance(connection, socket.socket)
        try:
            data = connection.recv(READ)
        except BlockingIOError:
            return
        except OSError:  # broken off: what was not finished is no line
            self._close(connection)
            return
        state = self._open.pop(connection)
        self._open[connection] = state
        state.heard = time.monotonic()
        if not data:
            self._lines.append(state.unfinished)  # its end is the end of the line
            self._close(connection)
            return
        *lines, state.unfinished = (state.unfinished + data).split(b"\n")
        self._lines += lines
        if len(state.unfinished) > LONGEST:
            self._tally.too_long(state.unfinished)
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._open[connection]
        self._figures.connections = len(self._open)


def _is_quiet(connection: socket.socket) -> bool:
    """Whether nothing has come by it that is not read yet, but its end."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except OSError:  # nothing, or it is broken off
        return True
