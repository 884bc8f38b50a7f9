"""Stopping on a signal: noticed whatever the main thread does, and within a bound.

Python-level handlers do nothing but be there: the C handler writes the signal's number to a pipe
(:func:`signal.set_wakeup_fd`), which a thread reads. So a stop is noticed also while the main
thread hangs in a call, and no handler can deadlock on a lock that the main thread holds.
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from countersink.schedules.logs import Action, Log

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
FORCED: Final = 1
"""Exit status of a stop that had to be forced."""
_PATIENCE_S: Final = 1.0
"""Seconds that the log, or another farewell, may take."""


class Stop:
    """Whether the process was asked to stop; from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def requested(self) -> bool:
        """True from the first request on."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask the process to stop."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds`` or until a request, and say whether there was one."""
        return self._event.wait(seconds)


def nothing() -> None:
    """Do nothing."""


@contextlib.contextmanager
def signals(
    stop: Stop,
    log: Log,
    within_s: float,
    *,
    asked: Callable[[], None] = nothing,
    forced: Callable[[], None] = nothing,
) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT request a stop, and end the process ``within_s`` seconds
    later at the latest; a second signal ends it at once. Only in the main thread, else nothing.

    Args:
        asked: called after the request, on a thread.
        forced: called right before the process is ended, on a thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watch = threading.Thread(
        target=_watch, args=(reader, stop, log, within_s, asked, forced), name="stop", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)  # end of file ends the thread
        watch.join()
        os.close(reader)


def _watch(
    reader: int,
    stop: Stop,
    log: Log,
    within_s: float,
    asked: Callable[[], None],
    forced: Callable[[], None],
) -> None:
    deadline: float | None = None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([reader], [], [], left)
        why = f"the stop took more than {within_s:g} s"
        if ready:
            written = os.read(reader, 16)
            if not written:
                return
            numbers = [number for number in written if number in SIGNALS]
            if not numbers:
                continue
            if deadline is None and len(numbers) == 1:
                deadline = time.monotonic() + within_s
                stop.request()
                name = signal.Signals(numbers[0]).name
                _briefly(lambda: log(Action.STOPPING, f"{name}: ending in good order"))  # noqa: B023
                _briefly(asked)
                continue
            why = "a second signal came"
        _briefly(lambda: log(Action.STOP_FORCED, why, level=logging.ERROR))  # noqa: B023
        _briefly(forced)
        os._exit(FORCED)


def _briefly(work: Callable[[], None]) -> None:
    # On a thread: the log may be what hangs (a full pipe on stderr).
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
