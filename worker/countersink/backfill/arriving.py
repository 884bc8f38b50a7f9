"""Bytes of a file, or of a pipe, as they arrive."""

import os
import select
from collections.abc import Callable
from typing import Final

_READ: Final = 256 * 1024
"""Bytes asked of the system at once."""
_PATIENCE_MS: Final = 200
"""How often one looks up from a silent pipe."""


class Stopped(Exception):
    """Asked to stop while waiting for a pipe."""


class Arriving:
    """Reads from where the file stands: each call gives what comes next; b"" is the end.

    Args:
        fd: the file; a FIFO may be open without blocking before anybody writes to it.
        stop: asked while nothing comes.

    Raises:
        Stopped: ``stop`` said so; nothing is lost.
        OSError: it cannot be read.
    """

    def __init__(self, fd: int, stop: Callable[[], bool]) -> None:
        self.fd = fd
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def __call__(self) -> bytes:
        while True:
            # A FIFO that nobody has opened for writing yet is silent, too, and not at its end.
            while not self._poll.poll(_PATIENCE_MS):
                if self._stop():
                    raise Stopped
            try:
                return os.read(self.fd, _READ)
            except BlockingIOError:
                pass  # somebody else took it

    def first(self, size: int) -> bytes:
        """At least ``size`` bytes, unless the end comes before."""
        found = b""
        while len(found) < size and (more := self()):
            found += more
        return found
