"""Redis's clock on this machine: the difference of the two clocks, and when it is measured again
(``RELEARN_SECONDS``).

All ``at`` fields and default event times of a deployment are on Redis's clock, so that a producer
with a clock that is a year off does not count into the wrong year.
"""

import sys
import time
from typing import Final

import redis

from countersink.stream.connection import cluster_of, mapped, time_us


def offset_ms(client: redis.Redis, key: str | None = None) -> int:
    """Redis's clock minus this machine's in ms, precise to half of this call's round trip.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        key: on a cluster: use the clock of the master that serves this key; None: of any master.

    Raises:
        StreamError: Redis did not answer.
    """
    cluster = cluster_of(client)
    with mapped():
        if cluster is None or key is None:
            return _offset_ms(client)
        with cluster.with_short_timeout.asked_for(key) as node:
            return _offset_ms(node)


def _offset_ms(server: redis.Redis) -> int:
    before = time.time()
    then = time_us(server)
    middle = (before + time.time()) / 2
    return round(then / 1000 - middle * 1000)


RELEARN_SECONDS: Final = 300.0
JUMP_SECONDS: Final = 0.5
"""Seconds that the wall clock may move against the steady clock before it counts as set."""

if sys.platform == "linux":
    _STEADY: Final = time.CLOCK_BOOTTIME  # unlike CLOCK_MONOTONIC, runs while the machine sleeps
else:
    _STEADY: Final = time.CLOCK_MONOTONIC


def _steady() -> float:
    return time.clock_gettime(_STEADY)


class RedisClock:
    """Unix ms on Redis's clock: this machine's clock plus the difference learnt last; before the
    first :meth:`learn`, this machine's clock.
    """

    def __init__(self) -> None:
        self._offset_ms = 0
        self._learnt: tuple[float, float] | None = None  # wall clock, steady clock

    def learn(self, client: redis.Redis, key: str | None = None) -> None:
        """Measure the difference; on a cluster, to the master that serves ``key``.

        Raises:
            StreamError: Redis did not answer.
        """
        self._offset_ms = offset_ms(client, key)
        self._learnt = (time.time(), _steady())

    def stale(self) -> bool:
        """Whether the difference is old, or this machine's clock was set since it was learnt."""
        if self._learnt is None:
            return True
        wall, steady = time.time() - self._learnt[0], _steady() - self._learnt[1]
        return steady > RELEARN_SECONDS or abs(wall - steady) > JUMP_SECONDS

    def now_ms(self) -> int:
        """Now, in Unix ms on Redis's clock. A change of the wall clock after :meth:`learn` has no
        effect.
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
