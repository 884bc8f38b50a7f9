"""Waking one waiting thread, safe in signal handlers on both sides."""

import time
from typing import Final

from countersink.producers.primitives import Lock, pause, switches

PAUSE_SECONDS: Final = 0.001
"""Between two looks of a greenlet."""


class Bell:
    """Rung by any thread, waited for by one.

    Neither a ``Condition``, whose lock a signal handler could meet again in the thread that it
    interrupts, nor a ``SimpleQueue``, whose ``get(timeout)`` of Python 3.11 waits for ever after a
    handler that took longer than the time-out.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the wait that is under way, or the next one."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # rung already

    def wait(self, seconds: float | None) -> bool:
        """Wait until it rings, at most ``seconds`` unless that is None; whether it has."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))

    def wait_in_app(self, seconds: float) -> bool:
        """The same in a thread of the app's: under gevent and eventlet other greenlets go on."""
        if not switches():
            return self.wait(seconds)
        deadline = time.monotonic() + seconds
        while not self.wait(0):
            if time.monotonic() >= deadline:
                return False
            pause(PAUSE_SECONDS)
        return True
