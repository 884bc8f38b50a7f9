"""Token buckets (arithmetic only); how many requests: ``web/options.py``, the answer 429:
``authentication.py``."""

import time
from collections.abc import Callable
from typing import Final

KEPT: Final = 50_000
"""Names that are remembered at least; twice as many at most."""
_ROUNDING_S: Final = 1e-6


class TokenBuckets:
    """One bucket for each name, such as an address or a key.

    A bucket is one number: the time at which it is full again if nobody takes from it (the generic
    cell rate algorithm, ITU-T I.371). A name that is forgotten has a full one.

    Args:
        rate: tokens per second that flow in; 0 or less: no limit.
        burst: tokens that a full bucket holds.
        kept: names that are remembered at least.
        clock: seconds.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        kept: int = KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = 1.0 / rate if rate > 0 else 0.0
        self._room = max(0.0, burst - 1.0) * self._pause
        self._kept = kept
        self._clock = clock
        # Two generations: when the young one is full it becomes the old one, whose last part is
        # forgotten as a whole. So the least recently seen go, and no list has to be kept in order.
        self._young: dict[str, float] = {}
        self._old: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def take(self, name: str) -> float:
        """Take one token: 0.0, or how many seconds to wait for one, and none is taken then."""
        now = self._clock()
        full_at = self._full_at(name, now)
        wait = full_at - now - self._room
        if wait <= _ROUNDING_S:
            full_at += self._pause
            wait = 0.0
        if name not in self._young and len(self._young) >= self._kept:
            self._old, self._young = self._young, {}
        # Also of one that is refused: who asks on and on is not forgotten meanwhile.
        self._young[name] = full_at
        return wait

    def wait(self, name: str) -> float:
        """How many seconds to wait for a token; 0.0: there is one. Nothing is taken."""
        now = self._clock()
        wait = self._full_at(name, now) - now - self._room
        return wait if wait > _ROUNDING_S else 0.0

    def _full_at(self, name: str, now: float) -> float:
        found = self._young.get(name)
        if found is None:
            found = self._old.get(name, now)
        return found if found > now else now
