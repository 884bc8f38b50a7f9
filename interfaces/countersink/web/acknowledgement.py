"""``?wait=stored`` and ``?wait=applied``: requests that wait for their increments together, how
often that is checked; at most how long: ``wait_s`` in ``options.py``.

However many wait, one thread at a time works for each of the two: it does for all who came before
it began.
"""

import asyncio
import logging
import time
from typing import Final

import anyio

from countersink.producers.redis_link import StoredMark
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
ROUND_S: Final = 2.0
"""Seconds that one flush goes on at most before it begins again for those that came since."""
POLL_S: Final = 0.025
"""Seconds between two looks at the queue, as long as anybody waits for it."""
Waiter = asyncio.Future[bool | None]


class Acknowledgements:
    """Waits for increments of this process to be stored or applied. For the event loop's thread.

    Args:
        services: of the process.
    """

    def __init__(self, services: Services) -> None:
        self._producer = services.producer
        self._redis = services.redis
        self._flushing = asyncio.Lock()
        self._stored_from = 0.0  # when the last flush began that stored everything
        self._since: dict[Waiter, int] = {}  # who waits for MySQL, with the breaks before
        self._polling: asyncio.Task[None] | None = None

    async def stored(self, seconds: float) -> bool:
        """Wait until all that was accepted so far is in Redis, or fsynced in the spool; False after
        so many seconds.
        """
        asked = time.monotonic()
        try:
            async with asyncio.timeout(seconds), self._flushing:
                while self._stored_from < asked:
                    began = time.monotonic()
                    flush = self._producer.flush
                    if await anyio.to_thread.run_sync(flush, ROUND_S, abandon_on_cancel=True):
                        self._stored_from = began
        except TimeoutError:
            return False
        except Exception:  # no thread to be had, or a bug: the increments are accepted all the same
            LOGGER.exception("waiting for the queue:", extra={"action": "internal_error"})
            return False
        return True

    async def applied(self, seconds: float) -> bool | None:
        """Wait until all that was accepted so far is in MySQL, counted or as dead letters; False
        after so many seconds, None where that cannot be known any more.

        Each waits for what had been stored when its own was, so that others that go on bringing
        more do not keep it waiting, however far behind the workers are.
        """
        waiter: Waiter = asyncio.get_running_loop().create_future()
        since = self._producer.trail.breaks
        try:
            async with asyncio.timeout(seconds):
                if not await self.stored(seconds):
                    return False
                self._since[waiter] = since
                if self._polling is None or self._polling.done():
                    self._polling = asyncio.create_task(self._poll())
                return await waiter
        except TimeoutError:
            return False
        finally:
            self._since.pop(waiter, None)

    async def _poll(self) -> None:
        marks: dict[Waiter, StoredMark] = {}
        thread = anyio.CapacityLimiter(1)
        try:
            while self._since:
                for waiter, since in self._since.items():
                    if waiter not in marks and (mark := self._producer.mark(since)) is not None:
                        marks[waiter] = mark
                marks = {each: marks[each] for each in self._since if each in marks}
                verdicts = await anyio.to_thread.run_sync(
                    self._producer.trail.applied,
                    self._redis,
                    list(marks.values()),
                    limiter=thread,
                )
                for waiter, verdict in zip(marks, verdicts, strict=True):
                    if verdict is not False and not waiter.done():
                        waiter.set_result(verdict)
                await asyncio.sleep(POLL_S)
        except Exception:  # as above; they are told at once, and not left waiting
            LOGGER.exception("waiting for the queue:", extra={"action": "internal_error"})
            for waiter in self._since:
                if not waiter.done():
                    waiter.set_result(False)
