"""SIGINT and SIGTERM as a wish to end in good order; a second one ends at once."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from countersink.cli import exits


class Asked:
    """Whether, and by which signal, the process was asked to stop. Calling it tells."""

    def __init__(self) -> None:
        self._by: int | None = None

    def __call__(self) -> bool:
        """Whether it was asked."""
        return self._by is not None

    def note(self, number: int) -> None:
        """A signal came."""
        self._by = number

    @property
    def status(self) -> int | None:
        """The exit status of a command that ended because of it; None: it was not asked."""
        if self._by is None:
            return None
        return exits.INTERRUPTED if self._by == signal.SIGINT else exits.TERMINATED


@contextmanager
def stopped_by_signals() -> Iterator[Asked]:
    """What SIGINT and SIGTERM ask for, while the context is open."""
    asked = Asked()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked():
            sys.exit(128 + number)
        asked.note(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
