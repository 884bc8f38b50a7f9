"""Requests that wait until what they brought is stored or applied: all of them for one flush.

However many wait, one thread at a time flushes for each of the two: whoever comes while it does
waits for the next flush, which then is for all that came meanwhile.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import anyio

from countersink.producers import Producer
from countersink.web.memory import OnePer

ROUND_S: Final = 2.0
"""Seconds that one flush goes on at most before it begins again for those that came since."""

Flush = Callable[[float], bool]
"""Waits as many seconds at most; whether all that was accepted before is where it should be."""


class Waiting:
    """Those that wait for one thing. For the event loop's thread.

    Args:
        flush: waits for it; blocks.
    """

    def __init__(self, flush: Flush) -> None:
        self._flush = flush
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = anyio.CapacityLimiter(1)

    async def reached(self, seconds: float) -> bool:
        """Wait until all that was accepted so far has got there; False after so many seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            future.cancel()
        return True

    async def _work(self) -> None:
        while self._waiting:
            mine, self._waiting = self._waiting, []
            there = await anyio.to_thread.run_sync(
                self._flush, ROUND_S, limiter=self._thread, abandon_on_cancel=True
            )
            if there:
                for future in mine:
                    if not future.done():
                        future.set_result(None)
            else:
                self._waiting += [future for future in mine if not future.done()]


class WaitingRoom:
    """Waits for a producer's increments.

    Attributes:
        stored: those that wait until theirs are in Redis, or fsynced in the spool.
        applied: those that wait until theirs are in MySQL.
    """

    def __init__(self, producer: Producer) -> None:
        self.stored: Final = Waiting(producer.flush)
        self.applied: Final = Waiting(partial(producer.flush, applied=True))


WAITING_ROOM: Final[OnePer[WaitingRoom]] = OnePer(lambda services: WaitingRoom(services.producer))
"""One per process."""
