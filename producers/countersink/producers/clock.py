"""Redis's clock, as well as this process can tell it."""

import time
from typing import Final

import redis

from countersink.stream.clock import offset_ms

RELEARN_SECONDS: Final = 300.0
JUMP_SECONDS: Final = 0.5
"""A wall clock that moves this much against the monotonic one was set (or the machine slept)."""


class RedisClock:
    """Unix ms on Redis's clock: the local one plus the difference learnt at the last connect, 0
    before.
    """

    def __init__(self) -> None:
        self._offset_ms = 0
        self._learnt: tuple[float, float] | None = None

    def learn(self, client: redis.Redis) -> None:
        """Ask Redis for its time.

        Raises:
            StreamError: it did not answer.
        """
        self._offset_ms = offset_ms(client)
        self._learnt = (time.time(), time.monotonic())

    def stale(self) -> bool:
        """Whether the difference is old, or this machine's clock was set since it was learnt."""
        if self._learnt is None:
            return True
        wall, steady = time.time() - self._learnt[0], time.monotonic() - self._learnt[1]
        return steady > RELEARN_SECONDS or abs(wall - steady) > JUMP_SECONDS

    def now_ms(self) -> int:
        """Now, in Unix ms."""
        return int(time.time() * 1000) + self._offset_ms

    def minute(self) -> int:
        """Now, in whole Unix minutes."""
        return max(0, self.now_ms() // 60_000)

    def seconds_to_next_minute(self) -> float:
        """Seconds until :meth:`minute` changes."""
        return (60_000 - self.now_ms() % 60_000) / 1000
