"""The open producers of this process, and what is done with them when it ends."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from countersink.producers.journal import logger
from countersink.producers.primitives import get_ident, in_own_thread, pause, sleep, stop_switching

GRACE_SECONDS: Final = 2.0
"""How long after a last flush a process may take to be gone."""
POLL_SECONDS: Final = 0.005
"""Between two looks whether the producers are flushed."""


class Closable(Protocol):
    """What this module needs of a producer."""

    @property
    def exit_timeout(self) -> float:
        """Seconds that a flush at the end of the process may take."""

    @property
    def unused(self) -> bool:
        """Whether nothing was counted in this process, so that there is nothing to store."""

    def begin_flush(self, deadline: float) -> Callable[[], bool]:
        """Begin to store what was accepted; to be called until it says that this is over."""

    def stop_counting(self) -> None:
        """Accept no more; later increments are dropped, or wait for the end of the process."""

    def close_at_exit(self, deadline: float) -> None:
        """Store what was accepted, and accept no more."""

    def tell_of_loss(self) -> None:
        """Say, if it is so, that what was not stored is lost now."""

    def start_over(self) -> None:
        """Forget everything: this is a forked child."""


class _End:
    """Which thread is about to end the process, and until when others wait for that."""

    thread: int | None = None
    until = 0.0


producers: Final[dict[int, Closable]] = {}
_end = _End()


def in_child() -> None:
    """This is a forked child: its producers begin empty."""
    _end.thread = None
    for producer in list(producers.values()):
        producer.start_over()


def close_all() -> None:
    """Store everything, all within the longest of the exit timeouts: the process ends.

    Meanwhile calls of ``increment()`` by other threads wait for the end, so that none returns that
    is not stored.
    """
    _close(list(producers.values()))


def close_used() -> None:
    """The same, without those that have counted nothing in this process."""
    _close(_used())


def flush_all(everyone: list[Closable]) -> float:
    """Flush the producers, all at once: none waits for another's Redis. Until when, on the
    monotonic clock, that took at most.
    """
    deadline = time.monotonic() + longest_timeout(everyone)
    waiting = []
    for producer in everyone:
        try:
            waiting.append(producer.begin_flush(deadline))
        except Exception:
            _complain()
    while waiting:
        left = []
        for over in waiting:
            try:
                if not over():
                    left.append(over)
            except Exception:
                _complain()
        waiting = left
        if waiting:
            sleep(POLL_SECONDS)
    return deadline


def flush_used() -> None:
    """Flush those that have counted in this process."""
    flush_all(_used())


def flush_before_exec() -> None:
    """The same, and say what is lost unless the process goes on, for there is no such program."""
    flush_used()
    for producer in _used():
        producer.tell_of_loss()


def any_used() -> bool:
    """Whether one of them has counted in this process."""
    return bool(_used())


def _used() -> list[Closable]:
    return [each for each in list(producers.values()) if not each.unused]


def longest_timeout(everyone: list[Closable]) -> float:
    """Seconds that a flush of them may take."""
    return max((each.exit_timeout for each in everyone), default=0.0)


def wait_for_end() -> None:
    """For a call that came too late to be stored: it does not return if the process is ending."""
    if (
        _end.thread is None
        or _end.thread == get_ident()
        # The end waits for our own threads, which may get here by a log handler that counts.
        or in_own_thread()
    ):
        return
    while time.monotonic() < _end.until:
        pause(POLL_SECONDS)


def _close(everyone: list[Closable]) -> None:
    stop_switching()
    _end.until = time.monotonic() + longest_timeout(everyone) + GRACE_SECONDS
    _end.thread = get_ident()
    for producer in everyone:
        producer.stop_counting()
    deadline = flush_all(everyone)
    for producer in everyone:
        try:
            producer.close_at_exit(deadline)
        except Exception:
            _complain()
    _end.until = time.monotonic() + GRACE_SECONDS


def _complain() -> None:
    logger.exception("at the end of the process:", extra={"action": "internal_error"})
