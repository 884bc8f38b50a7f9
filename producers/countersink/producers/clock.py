"""Redis's clock, as well as this process can tell it."""

import sys
import time
from typing import Final

import redis

from countersink.stream.clock import offset_ms

RELEARN_SECONDS: Final = 300.0
JUMP_SECONDS: Final = 0.5
"""A wall clock that moves this much against the monotonic one was set (or the machine slept)."""


if sys.platform == "linux":
    _STEADY: Final = time.CLOCK_BOOTTIME  # goes on while the machine sleeps, other than monotonic()
else:
    _STEADY: Final = time.CLOCK_MONOTONIC


def _steady() -> float:
    return time.clock_gettime(_STEADY)


class RedisClock:
    """Unix ms on Redis's clock: the local one plus the difference learnt at the last connect, 0
    before.
    """

    def __init__(self) -> None:
        self._offset_ms = 0
        self._learnt: tuple[float, float] | None = None  # wall clock, steady clock

    def learn(self, client: redis.Redis) -> None:
        """Ask Redis for its time.

        Raises:
            StreamError: it did not answer.
        """
        self._offset_ms = offset_ms(client)
        self._learnt = (time.time(), _steady())

    def stale(self) -> bool:
        """Whether the difference is old, or this machine's clock was set since it was learnt."""
        if self._learnt is None:
            return True
        wall, steady = time.time() - self._learnt[0], _steady() - self._learnt[1]
        return steady > RELEARN_SECONDS or abs(wall - steady) > JUMP_SECONDS

    def now_ms(self) -> int:
        """Now, in Unix ms. A wall clock that is set after the difference was learnt does not
        matter.
        """
        learnt = self._learnt
        wall = time.time() if learnt is None else learnt[0] + _steady() - learnt[1]
        return int(wall * 1000) + self._offset_ms

    def minute(self) -> int:
        """Now, in whole Unix minutes."""
        return max(0, self.now_ms() // 60_000)

    def seconds_to_next_minute(self) -> float:
        """Seconds until :meth:`minute` changes."""
        return (60_000 - self.now_ms() % 60_000) / 1000
