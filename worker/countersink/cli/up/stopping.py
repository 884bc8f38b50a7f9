"""Hearing SIGTERM, SIGINT and SIGHUP without being interrupted in the middle of a step."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopping:
    """Whether this process was asked to stop."""

    def __init__(self, heard: socket.socket) -> None:
        self._heard = heard
        self._asked = False

    def wait(self, seconds: float) -> bool:
        """Wait that long at most; True, at once and from then on, when asked to stop."""
        if not self._asked:
            readable, _, _ = select.select([self._heard], [], [], seconds)
            if readable:
                # other signals wake us, too; only these three mean anything
                self._asked = any(number in STOP_SIGNALS for number in self._heard.recv(4096))
        return self._asked

    def asked(self) -> bool:
        """Whether to stop, without waiting."""
        return self.wait(0)


@contextmanager
def stop_signals() -> Iterator[Stopping]:
    """Inside the block the three signals only set what `Stopping` tells. Main thread only."""
    heard, written = socket.socketpair()
    heard.setblocking(False)
    written.setblocking(False)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    # a handler in Python has to be there for the interpreter to write the number to the socket
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    descriptor = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    try:
        yield Stopping(heard)
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        heard.close()
        written.close()
