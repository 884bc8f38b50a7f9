"""A stop request that a signal handler may make."""

import os
import select


class Stop:
    """Set once, by a signal handler or another thread; whoever waits for it wakes at once.

    Not a ``threading.Event``: its ``set`` takes a lock that the interrupted thread may hold.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake_end, self._ask_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def set(self) -> None:
        """Ask for the stop."""
        if not self._set:
            self._set = True
            os.write(self._ask_end, b"!")

    def is_set(self) -> bool:
        """Whether it was asked for."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait for it for so long at most; whether it was asked for."""
        if not self._set:
            select.select([self._wake_end], [], [], seconds)
        return self._set

    def close(self) -> None:
        """Release its two descriptors."""
        os.close(self._wake_end)
        os.close(self._ask_end)
