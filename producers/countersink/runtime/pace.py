"""``Pace``: pauses after pieces of work so that they take a share of the time (0 to 1), at most
``LONGEST_PAUSE_S`` each; the shares are settings of commands and jobs."""

import time
from collections.abc import Callable
from typing import Final

LONGEST_PAUSE_S: Final = 10.0
"""Well below the seconds after which the server ends an idle session."""
_SLICE_S: Final = 0.05
"""How soon a stop is noticed."""


def pause(
    seconds: float,
    stop: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Sleep for so long, or until ``stop`` says so: for what is no :class:`threading.Event`."""
    until = clock() + seconds
    while (left := until - clock()) > 0 and not stop():
        sleep(min(left, _SLICE_S))


class Pace:
    """Keeps work to a share of the time: after a piece of work :meth:`rest` for what is due.

    Args:
        share: of the time, above 0 and at most 1, at which there are no pauses.
        stop: true once the work should end.
        clock: seconds, monotonic.
        sleep: waits for some seconds.

    Raises:
        ValueError: not a share.
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
            raise ValueError(f"the share of the time is {share}: above 0 and at most 1")
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
        """Pause for the work since the last pause; cut short by a stop."""
        worked = self._clock() - self._since
        self.pause(min(worked * self._ratio, LONGEST_PAUSE_S))

    def pause(self, seconds: float) -> None:
        """Pause for so long, or until a stop."""
        pause(seconds, self._stop, clock=self._clock, sleep=self._sleep)
        self._since = self._clock()
