"""``?wait=stored`` and ``?wait=applied``: requests that wait for their increments together, how
often that is checked; at most how long: ``wait_s`` in ``options.py``.

However many wait, one thread at a time works for each of the two: whoever comes while it does is
looked after in its next round, which then is for all that came meanwhile.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import redis

from countersink.producers import Producer
from countersink.producers.redis_link import StoredMark
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
ROUND_S: Final = 2.0
"""Seconds that one flush goes on at most before it begins again for those that came since."""
POLL_S: Final = 0.025
"""Seconds between two looks at the queue, as long as anybody waits for it."""
Waiter = asyncio.Future[bool | None]
Flush = Callable[[float], bool]
"""Waits as many seconds at most; whether all that was accepted before is where it should be."""


class Acknowledgements:
    """Waits for increments of this process to be stored or applied.

    Attributes:
        stored: those that wait until theirs are in Redis, or fsynced in the spool.
        applied: those that wait until theirs are in MySQL.

    Args:
        services: of the process.
    """

    def __init__(self, services: Services) -> None:
        producer = services.producer
        self.stored: Final = StoredWaiters(producer.flush)
        self.applied: Final = AppliedWaiters(self.stored, producer, services.redis)


class Waiters(ABC):
    """Requests that wait until their increments have got to one place. For the event loop's
    thread."""

    def __init__(self) -> None:
        self._waiting: list[Waiter] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = anyio.CapacityLimiter(1)

    async def reached(self, seconds: float) -> bool | None:
        """Wait until all that was accepted so far has got there; False after so many seconds, None
        where that cannot be known any more.
        """
        return await self._wait(asyncio.get_running_loop().create_future(), seconds)

    async def _wait(self, waiter: Waiter, seconds: float) -> bool | None:
        self._waiting.append(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            return False
        finally:
            waiter.cancel()

    async def _work(self) -> None:
        try:
            while waiting := tuple([each for each in self._waiting if not each.done()]):
                self._waiting = list(waiting)  # grows by those who come during this round
                for waiter, answer in await self._round(waiting):
                    _answer(waiter, answer)
        except Exception:
            # No thread to be had, or a bug: they are told at once, and not left waiting.
            LOGGER.exception("waiting for the queue:", extra={"action": "internal_error"})
        finally:
            while self._waiting:
                _answer(self._waiting.pop(), False)

    @abstractmethod
    async def _round(self, waiting: Sequence[Waiter]) -> Sequence[tuple[Waiter, bool | None]]:
        """Wait a while; who of them needs to wait no longer, and what they are told."""


def _answer(waiter: Waiter, answer: bool | None) -> None:
    if not waiter.done():
        waiter.set_result(answer)


class StoredWaiters(Waiters):
    """Requests that wait until their increments are in Redis, or fsynced in the spool.

    Args:
        flush: waits for it; blocks.
    """

    def __init__(self, flush: Flush) -> None:
        super().__init__()
        self._flush = flush

    async def _round(self, waiting: Sequence[Waiter]) -> Sequence[tuple[Waiter, bool | None]]:
        there = await anyio.to_thread.run_sync(
            self._flush, ROUND_S, limiter=self._thread, abandon_on_cancel=True
        )
        return [(waiter, True) for waiter in waiting] if there else ()


class AppliedWaiters(Waiters):
    """Requests that wait until their increments are in MySQL, counted or as dead letters.

    Each waits for what had been stored when its own was, so that others that go on bringing more do
    not keep it waiting, however far behind the workers are.

    Args:
        stored: waits until it is stored.
        producer: whose.
        client: of the queue.
    """

    def __init__(self, stored: StoredWaiters, producer: Producer, client: redis.Redis) -> None:
        super().__init__()
        self._stored = stored
        self._producer = producer
        self._client = client
        self._since: dict[Waiter, int] = {}
        self._marks: dict[Waiter, StoredMark] = {}

    async def reached(self, seconds: float) -> bool | None:
        """Wait until all that was accepted so far has got there; False after so many seconds, None
        where that cannot be known any more.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        waiter: Waiter = loop.create_future()
        self._since[waiter] = self._producer.trail.breaks
        try:
            stored = await self._stored.reached(seconds)
            return stored and await self._wait(waiter, until - loop.time())
        finally:
            del self._since[waiter]

    async def _round(self, waiting: Sequence[Waiter]) -> Sequence[tuple[Waiter, bool | None]]:
        for waiter in waiting:
            if waiter in self._since and waiter not in self._marks:
                mark = self._producer.mark(self._since[waiter])
                if mark is not None:
                    self._marks[waiter] = mark
        marks = self._marks = {each: self._marks[each] for each in waiting if each in self._marks}
        applied = self._producer.trail.applied
        verdicts = await anyio.to_thread.run_sync(
            applied,
            self._client,
            list(marks.values()),
            limiter=self._thread,
            abandon_on_cancel=True,
        )
        there = [each for each in zip(marks, verdicts, strict=True) if each[1] is not False]
        if not there:
            await asyncio.sleep(POLL_S)
        return there
