"""Forks, exits and SIGTERM, for all producers of the process.

An exit flushes every open producer: by ``atexit``, and, since children of ``multiprocessing`` skip
that, by a finalizer of ``multiprocessing`` where that module is in use. SIGTERM does the same
before, or beside, what the app had installed.
"""

import atexit
import encodings.idna  # noqa: F401  (see below)
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Protocol

from countersink.producers.journal import logger
from countersink.producers.primitives import get_ident, in_main_thread, sleep, start_thread

Handler = Callable[[int, FrameType | None], Any]

EXIT_GRACE_SECONDS: Final = 2.0
"""How long the main thread has, after a flush on SIGTERM, to let the signal end the process."""


POLL_SECONDS: Final = 0.005
"""Between two looks whether the producers are flushed."""


class Closable(Protocol):
    """What this module needs of a producer."""

    @property
    def exit_timeout(self) -> float:
        """Seconds that a flush at the end of the process may take."""

    def begin_flush(self, deadline: float) -> Callable[[], bool]:
        """Begin to store what was accepted; to be called until it says that this is over."""

    def close_at_exit(self, deadline: float) -> None:
        """Store what was accepted, and accept no more."""

    def start_over(self) -> None:
        """Forget everything: this is a forked child."""


class _Process:
    """What is registered in this process."""

    def __init__(self) -> None:
        self.producers: dict[int, Closable] = {}
        self.finalized = False
        self.previous: Any = None
        self.flushing = False
        self.flushed = False


_process = _Process()


def register(producer: Closable, *, handle_sigterm: bool) -> None:
    """Flush ``producer`` when the process ends, and empty it in forked children."""
    _process.producers[id(producer)] = producer
    if handle_sigterm:
        _install()


def forget(producer: Closable) -> None:
    """``producer`` is closed."""
    _process.producers.pop(id(producer), None)
    if not _process.producers:
        _uninstall()


def finalize_with_multiprocessing() -> None:
    """Have ``multiprocessing``, if it is in use, flush at the end of this process."""
    # Not imported here: it is slow, and an app that does not use it has no children that skip
    # atexit.
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _process.finalized:
        _process.finalized = True
        util.Finalize(None, close_all, exitpriority=0)


def close_all() -> None:
    """Close every open producer, all within the longest of their exit timeouts."""
    producers, deadline = _flush_all()
    for producer in producers:
        try:
            producer.close_at_exit(deadline)
        except Exception:
            logger.exception("closing at exit:", extra={"action": "internal_error"})


def _flush_all() -> tuple[list[Closable], float]:
    """Flush every open producer, all at once: none waits for another's Redis. They, and until when
    that took at most.
    """
    producers = list(_process.producers.values())
    deadline = time.monotonic() + max((each.exit_timeout for each in producers), default=0.0)
    waiting = []
    for producer in producers:
        try:
            waiting.append(producer.begin_flush(deadline))
        except Exception:
            logger.exception("flushing at the end:", extra={"action": "internal_error"})
    while waiting:
        left = []
        for over in waiting:
            try:
                if not over():
                    left.append(over)
            except Exception:
                logger.exception("flushing at the end:", extra={"action": "internal_error"})
        waiting = left
        if waiting:
            sleep(POLL_SECONDS)
    return producers, deadline


atexit.register(close_all)


# --- forks -------------------------------------------------------------------------------------

# Why this module imports encodings.idna: looking up a host's name does so, the first time, in the
# sender's thread. A child forked at that moment could never look up a host's name again.


def _in_child() -> None:
    _process.finalized = False  # a child of multiprocessing clears its finalizers
    _process.flushing = _process.flushed = False
    for producer in list(_process.producers.values()):
        producer.start_over()


os.register_at_fork(after_in_child=_in_child)


# --- SIGTERM -----------------------------------------------------------------------------------


def _install() -> None:
    if not in_main_thread():
        return
    previous = signal.getsignal(signal.SIGTERM)
    # Left alone: ours, an ignored signal, and a handler that was not installed from Python (None).
    if previous is _on_sigterm or previous in (signal.SIG_IGN, None):
        return
    _process.previous = previous  # first: a SIGTERM may come at once
    try:
        signal.signal(signal.SIGTERM, _on_sigterm)
    except ValueError:  # a subinterpreter's main thread
        return


def _uninstall() -> None:
    """Put back what was there, if nothing was installed since and this thread may."""
    if (
        in_main_thread()
        and signal.getsignal(signal.SIGTERM) is _on_sigterm
        and not _process.flushing
    ):
        signal.signal(signal.SIGTERM, _process.previous)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Runs in the main thread, between any two of its instructions: so it takes no lock."""
    previous = _process.previous
    chained = callable(previous)
    if _process.flushed and not chained:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    if not _process.flushing:
        _process.flushing = True
        _process.flushed = False
        try:
            start_thread(_flush_on_sigterm, (number, None if chained else get_ident()))
        except RuntimeError:  # no thread to be had: end as without this handler
            _process.flushed = True
            _process.flushing = False
            if not chained:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
    if chained:
        previous(number, frame)


def _flush_on_sigterm(number: int, main_thread: int | None) -> None:
    """Flush; then end the process by way of its main thread, if that is given."""
    try:
        logger.info("flushing because of SIGTERM", extra={"action": "sigterm"})
        _flush_all()
    except Exception:
        logger.exception("flushing because of SIGTERM:", extra={"action": "internal_error"})
    finally:
        _process.flushed = True
        _process.flushing = False
    if main_thread is None:
        return
    # The default action, taken by the main thread, so that the parent sees a process ended by
    # SIGTERM.
    signal.pthread_kill(main_thread, number)
    sleep(EXIT_GRACE_SECONDS)
    # The main thread is deep in C: the status that a shell shows for SIGTERM.
    os._exit(128 + number)
