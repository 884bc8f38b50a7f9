"""Signals as something to wait for, for a process whose work is done by its threads."""

import os
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


class SignalQueue:
    """The signals that came, in their order."""

    def __init__(self, reader: int) -> None:
        self._reader = reader

    def next(self, seconds: float) -> signal.Signals | None:
        """The next signal; ``None``: none came for so long."""
        ready, _, _ = select.select([self._reader], [], [], seconds)
        return signal.Signals(os.read(self._reader, 1)[0]) if ready else None


@contextmanager
def queued(numbers: Sequence[signal.Signals]) -> Iterator[SignalQueue]:
    """Queue these signals while the context is open. For the main thread.

    CPython's own handler, in C, writes the number into a pipe: a Python handler that did so, or set
    an event, would run only between two instructions of the main thread, and could meet a lock that
    it holds.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, _noticed_by_the_pipe) for number in numbers}
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield SignalQueue(reader)
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
        os.close(reader)


def _noticed_by_the_pipe(number: int, frame: FrameType | None) -> None:
    """Python needs a handler for the C handler to write to the pipe."""
