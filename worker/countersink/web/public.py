"""Which counters anybody may add 1 to: those that are named, and of those that fit a pattern the
ones that there are already, so that no visitor can make any."""

import asyncio
import math
import re
import time
from fnmatch import translate
from typing import Final

import anyio

from countersink.store.errors import StoreError
from countersink.store.shapes import counter_names
from countersink.web.memory import OnePer
from countersink.web.problem import Problem
from countersink.web.services import Services

FRESH_S: Final = 2.0
"""Seconds after which there may be another counter."""
KNOWN_S: Final = 60.0
"""Seconds after which one that there was may be gone."""
REST: Final = 4.0
"""Where reading the names takes long, the pause after it is so many times as long."""
PATIENCE_S: Final = 2.0
"""Seconds that a visitor waits for that at most."""
_WILD: Final = frozenset("*?[")


class PublicCounters:
    """The public counters of one process. For the event loop's thread.

    Args:
        services: what they are looked up with.
    """

    def __init__(self, services: Services) -> None:
        patterns = services.options.public_counters
        wild = [one for one in patterns if not _WILD.isdisjoint(one)]
        self._named = frozenset(patterns).difference(wild)
        self._fits = re.compile("|".join(map(translate, wild))).match if wild else None
        self._services = services
        self._known: frozenset[str] = frozenset()
        self._read_at = -math.inf
        self._again_at = -math.inf
        self._away = False
        self._reading: asyncio.Task[None] | None = None
        self._thread = anyio.CapacityLimiter(1)

    async def has(self, counter: str) -> bool:
        """Whether a counter is public.

        Raises:
            Problem: 503, MySQL does not tell whether there is such a counter.
        """
        if counter in self._named:
            return True
        if self._fits is None or not self._fits(counter):
            return False
        now = time.monotonic()
        if counter in self._known and now < self._read_at + KNOWN_S:
            return True
        if now >= self._again_at:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            await asyncio.wait([self._reading], timeout=PATIENCE_S)
        if counter in self._known:
            return True
        if self._away or self._reading is not None:
            raise Problem(
                503,
                "Whether there is such a counter cannot be told for now; nothing was counted",
                headers={"Retry-After": "2"},
            )
        return False

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            self._known = await anyio.to_thread.run_sync(self._names, limiter=self._thread)
            self._read_at = began
            self._away = False
        except StoreError:
            self._away = True  # what was known stays
        finally:
            ended = time.monotonic()
            self._again_at = ended + max(FRESH_S, REST * (ended - began))
            self._reading = None

    def _names(self) -> frozenset[str]:
        assert self._fits is not None
        return frozenset(filter(self._fits, self._services.store.snapshot(counter_names)))


PUBLIC: Final = OnePer(PublicCounters)
