"""Receiving datagrams as fast as they come."""

import select
import socket
import time
from threading import Thread
from typing import Final

from countersink.producers.statsd.journal import Action, Journal
from countersink.producers.statsd.tally import Tally

LARGEST: Final = 65_535
"""Bytes of the largest datagram."""
BATCH: Final = 256
"""Datagrams received before they are counted. The larger, the cheaper each is; what it may hold in
memory, and the amounts that fit into it, are bounded by it."""
PAUSE_SECONDS: Final = 0.1
"""Before a socket that failed is tried again."""


class Datagrams(Thread):
    """Reads one socket until told to stop, and then what has arrived by then.

    The fewer calls per datagram, the fewer are lost: while more come than are counted, there is one
    call each; the kernel is asked to wait only when there is nothing.

    Args:
        opened: the socket, blocking.
        tally: what counts.
        journal: told of failures.
        stop: a descriptor that becomes readable when it is time to stop.
        drain_seconds: how long then to go on at most, should more keep coming.
    """

    def __init__(
        self,
        opened: socket.socket,
        tally: Tally,
        journal: Journal,
        stop: int,
        drain_seconds: float,
    ) -> None:
        super().__init__(name="statsd-datagrams", daemon=True)
        self._socket = opened
        self._tally = tally
        self._journal = journal
        self._stop_fd = stop
        self._drain_seconds = drain_seconds

    def run(self) -> None:
        """Receive and count."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stop_fd, select.POLLIN)
        until: float | None = None
        more = False
        while True:
            ready = poll.poll(0 if more else None)
            if until is None and any(each == self._stop_fd for each, _ in ready):
                until = time.monotonic() + self._drain_seconds
            more = self._receive()
            if until is not None and (not more or time.monotonic() >= until):
                self._tally.deliver()
                return

    def _receive(self) -> bool:
        """Receive and count one batch; whether there may be more."""
        packets: list[bytes] = []
        append, receive, flag = packets.append, self._socket.recv, socket.MSG_DONTWAIT
        more = True
        try:
            for _ in range(BATCH):
                append(receive(LARGEST, flag))
        except BlockingIOError:
            more = False
        except OSError as error:
            more = False
            self._journal.seldom(Action.FAILED, f"cannot receive: {error.strerror}")
            select.select([self._stop_fd], [], [], PAUSE_SECONDS)
        try:
            # Also when none came: what earlier batches brought may still wait for the last one.
            self._tally.packets(packets, more=more)
        except Exception:
            self._journal.bug()
        return more
