"""Waking one waiting thread, safe in signal handlers on both sides."""

from threading import Lock


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

    def wait(self, seconds: float) -> bool:
        """Wait until it rings, at most ``seconds``; whether it has."""
        return self._lock.acquire(timeout=max(0.0, seconds))
