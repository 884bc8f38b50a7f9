"""Reading no faster than was asked for, so that live traffic is not starved."""

import time
from collections.abc import Callable
from typing import Final

from countersink.backfill.spans import LINES

FEWEST: Final = 1_000
"""Lines of a chunk, however slow it is to go."""
_LOOK: Final = 0.1
"""Seconds between two looks whether to stop."""


class Pace:
    """Pauses between chunks.

    Args:
        rate: lines per second at most; None: no pauses.
        stop: true: pause no longer.

    Attributes:
        max_lines: how many lines a chunk is to have, so that the pauses are about a second.
    """

    def __init__(self, rate: float | None, stop: Callable[[], bool]) -> None:
        self._rate = rate
        self._stop = stop
        self._began = time.monotonic()
        self._lines = 0
        self.max_lines = LINES if rate is None else min(LINES, max(FEWEST, int(rate)))

    def note(self, lines: int) -> None:
        """So many lines more were counted."""
        self._lines += lines

    def wait(self) -> None:
        """Wait as long as it takes that those that were counted are no more than may be: before
        the next chunk, so that nothing is waited for after the last.
        """
        if self._rate is None:
            return
        ready = self._began + self._lines / self._rate
        while (left := ready - time.monotonic()) > 0 and not self._stop():
            time.sleep(min(left, _LOOK))
