"""``Services``, what endpoints work with, one of each per process: options, producer, store, reads,
threads. ``?wait=stored`` and ``?wait=applied``: requests that wait for their increments together,
how often that is checked; at most how long: ``wait_s`` in ``options.py``.

However many wait, one thread at a time works for each of the two: it does for all who came before
it began.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import redis

from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.producers.redis_link import StoredMark
from countersink.reads import Reads
from countersink.store import Store
from countersink.web.auth.credentials import LoginCookie, NameQuotas, TokenBuckets, WaitingPlaces
from countersink.web.auth.register import Register
from countersink.web.options import WebOptions
from countersink.web.read_pool import ReadPool

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

    def __init__(self, services: "Services") -> None:
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


T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class Services:
    """Everything that endpoints share, opened at the start and closed at the end.

    Attributes:
        options: the settings.
        producer: takes increments.
        store: totals, counters, sequences.
        reads: totals together with how fresh they are.
        redis: the queue.
        system: the state of the whole installation, the document of ``countersink info``; blocks.
        schedule: pauses, resumes or runs a scheduled job: ``schedule(what, job)``; blocks, and
            raises LookupError where there is none of this name.
        read_pool: runs what reads totals, which may take long: nobody else waits for it.
        register: the keys and logins that are valid.
        cookie: of the logins to this installation.
        failures: wrong keys that each address may still show.
        places: of requests that may wait for a server.
        quotas: of names that each key may use.
        stopping: set when the process is told to end: answers that go on without end end then.
        answers: how many there were, by status.
    """

    options: WebOptions
    producer: Producer
    store: Store
    reads: Reads
    redis: redis.Redis
    system: Callable[[], Mapping[str, Any]]
    schedule: Callable[[str, str], Mapping[str, Any]]
    read_pool: ReadPool
    register: Register
    cookie: LoginCookie
    failures: TokenBuckets
    places: WaitingPlaces
    quotas: NameQuotas
    stopping: asyncio.Event
    answers: Counter[int] = field(default_factory=Counter)
    _made: dict[object, Any] = field(default_factory=dict, repr=False)
    _places: dict[str, anyio.CapacityLimiter] = field(default_factory=dict, repr=False)

    def one(self, kind: Callable[["Services"], T]) -> T:
        """The only ``kind`` of the process, made when it is first asked for.

        For the event loop's thread.
        """
        found: T | None = self._made.get(kind)
        if found is None:
            found = self._made[kind] = kind(self)
        return found

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run what blocks for a moment in a thread; the work of each module has places of its own,
        so that what waits for a lock holds up nothing else.
        """
        kind = getattr(work, "func", work).__module__  # of a partial what it calls
        return await self._run(kind, partial(work, *args, **kwargs))

    async def run_in_session(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run ``work`` in such a thread, with a session of its own as its first argument."""

        def opened() -> T:
            with open_tables(self.options.mysql_url) as session:
                return work(session, *args, **kwargs)

        return await self._run(work.__module__, opened)

    async def _run(self, kind: str, work: Callable[[], T]) -> T:
        places = self._places.get(kind)
        if places is None:
            places = self._places[kind] = anyio.CapacityLimiter(self.options.threads)
        return await anyio.to_thread.run_sync(work, limiter=places)
