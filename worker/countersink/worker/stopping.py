"""Stopping on a signal: politely at first, and within a bound whatever hangs.

The Python-level signal handler does nothing. CPython's C handler writes the signal's number to a
pipe (:func:`signal.set_wakeup_fd`), and a thread of its own reads it: so a stop is noticed, and
bounded, also while the main thread is stuck in a call that does not return. (Setting a
:class:`threading.Event` in a handler could deadlock on the event's own lock.)
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from countersink.worker.logs import Action, Log

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
FORCED: Final = 1
"""Exit status of a stop that had to be forced."""
_LOG_PATIENCE_S: Final = 1.0


class Stop:
    """Whether the worker has been asked to stop; :meth:`request` asks from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def requested(self) -> bool:
        """True from the first request on."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask the worker to stop."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds`` or until a request, and say whether there was one."""
        return self._event.wait(seconds)


@contextlib.contextmanager
def signals(stop: Stop, log: Log, within_s: float) -> Iterator[None]:
    """SIGTERM and SIGINT request a stop inside the block, and end the process ``within_s`` seconds
    later at the latest.

    A second signal ends it at once. Does nothing outside the main thread, where Python allows no
    handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, _noticed_by_the_pipe) for number in SIGNALS}
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watchdog = threading.Thread(
        target=_watch, args=(reader, stop, log, within_s, _end_process), name="stop", daemon=True
    )
    watchdog.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)  # end of file ends the thread
        watchdog.join()
        os.close(reader)


def _noticed_by_the_pipe(number: int, frame: FrameType | None) -> None:
    """Python needs a handler for the C handler to write to the pipe."""


def _watch(reader: int, stop: Stop, log: Log, within_s: float, end: Callable[[], None]) -> None:
    deadline: float | None = None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([reader], [], [], left)
        if not ready:
            _say_and_end(log, f"the stop took more than {within_s:g} s", end)
            return
        written = os.read(reader, 16)
        if not written:
            return
        numbers = [number for number in written if number in SIGNALS]
        if not numbers:
            continue
        if stop.requested or len(numbers) > 1:
            _say_and_end(log, "a second signal came", end)
            return
        deadline = time.monotonic() + within_s
        name = signal.Signals(numbers[0]).name
        stop.request()
        _say(log, Action.STOPPING, f"{name}: finishing what was read", logging.INFO)


def _say_and_end(log: Log, why: str, end: Callable[[], None]) -> None:
    message = f"{why}: the batch stays pending and will be redelivered"
    _say(log, Action.STOP_FORCED, message, logging.ERROR)
    end()


def _say(log: Log, action: Action, message: str, level: int) -> None:
    # On a thread: the log may be what hangs (a full pipe on stderr).
    level_of = {"level": level}
    said = threading.Thread(target=log, args=(action, message), kwargs=level_of, daemon=True)
    said.start()
    said.join(_LOG_PATIENCE_S)


def _end_process() -> None:
    os._exit(FORCED)
