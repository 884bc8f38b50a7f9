"""Receiving datagrams as fast as they come."""

import select
import socket
import time
from collections.abc import Sequence
from threading import Thread
from typing import Final

from countersink.producers.statsd.journal import Action, Journal
from countersink.producers.statsd.receiving import BATCH, LARGEST, receiver
from countersink.producers.statsd.tally import DELIVER_SECONDS, Tally

PAUSE_SECONDS: Final = 0.1
"""Before a socket that failed is tried again."""


class Datagrams(Thread):
    """Reads one socket until told to stop, and then what has arrived by then.

    While there are more to be received, the kernel is not asked to wait.

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
        self._receiver = receiver(opened)
        self._may_cut = opened.family == socket.AF_UNIX
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
        more = waiting = False
        while True:
            ready = poll.poll(0 if more else DELIVER_SECONDS * 1000 if waiting else None)
            if until is None and any(each == self._stop_fd for each, _ in ready):
                until = time.monotonic() + self._drain_seconds
            packets = self._receive()
            more = len(packets) == BATCH
            try:
                # Also when there are none: what came before may have waited long enough.
                waiting = self._tally.packets(packets)
                if until is not None and (not more or time.monotonic() >= until):
                    self._tally.deliver()
                    return
            except Exception:
                self._journal.bug()

    def _receive(self) -> Sequence[bytes | bytearray]:
        """What is there, one batch at most."""
        try:
            packets = self._receiver.receive()
        except OSError as error:
            self._journal.seldom(Action.FAILED, f"cannot receive: {error.strerror}")
            select.select([self._stop_fd], [], [], PAUSE_SECONDS)
            return ()
        return [self._whole(each) for each in packets] if self._may_cut else packets

    def _whole(self, packet: bytes | bytearray) -> bytes | bytearray:
        """``packet`` without its last line, where it was too large and that one is cut."""
        if len(packet) < LARGEST:
            return packet
        lines, _, cut = packet.rpartition(b"\n")
        self._tally.too_long(bytes(cut))
        return lines
