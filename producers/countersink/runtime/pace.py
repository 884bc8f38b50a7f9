"""Pauses between pieces of work (``Pace``): the work takes a share of the time, above 0 and up to
1, and each pause at most ``LONGEST_PAUSE_S``. The shares are settings of commands and jobs."""

import time
from collections.abc import Callable
from typing import Final

LONGEST_PAUSE_S: Final = 10.0
"""Well below the time after which MySQL ends an idle session."""
_SLICE_S: Final = 0.05
"""Seconds after which a stop is noticed."""


def pause(
    seconds: float,
    stop: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Sleep for ``seconds``, or until ``stop`` returns true: for stops without an
    :class:`threading.Event`.
    """
    until = clock() + seconds
    while (left := until - clock()) > 0 and not stop():
        sleep(min(left, _SLICE_S))


class Pace:
    """Keeps work to a share of the time: call :meth:`rest` after each piece of work.

    Args:
        share: part of the time for work, above 0 and up to 1; 1: no pauses.
        stop: returns true once the work should end.
        clock: monotonic seconds.
        sleep: waits for a number of seconds.

    Raises:
        ValueError: ``share`` is out of range.
    """

    def __init__(
        self,
        share: float = 1.0,
        stop: Callable[[], bool] = lambda: False,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"the share of the time is {share}: it must be above 0 and at most 1")
        self._ratio = (1 - share) / share
        self._stop = stop
        self._clock = clock
        self._sleep = sleep
        self._since = clock()

    @property
    def stopped(self) -> bool:
        """Whether the work should end."""
        return self._stop()

    def rest(self) -> None:
        """Pause in proportion to the work since the last pause; a stop ends the pause."""
        worked = self._clock() - self._since
        self.pause(min(worked * self._ratio, LONGEST_PAUSE_S))

    def pause(self, seconds: float) -> None:
        """Pause for ``seconds``, or until a stop."""
        pause(seconds, self._stop, clock=self._clock, sleep=self._sleep)
        self._since = self._clock()
