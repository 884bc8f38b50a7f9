"""``Services``, the objects that endpoints share (options, producer, store, reads, threads), and
``Acknowledgements``, which waits until increments are stored or applied (``?wait=``).

Requests that wait for the same state share one thread. A request that arrives while the thread
flushes or polls is included in its next flush or poll. See ``wait_s`` in ``options.py`` for the
longest wait.
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
from countersink.producers.redis_link import Checkpoint
from countersink.reads import Reads
from countersink.store import Store
from countersink.web.auth.credentials import LoginCookie, NameQuotas, TokenBuckets, WaitingPlaces
from countersink.web.auth.register import Register
from countersink.web.options import WebOptions
from countersink.web.read_pool import ReadPool

LOGGER: Final = logging.getLogger("countersink.web")
ROUND_S: Final = 2.0
"""Maximum seconds of one flush. The next flush includes the requests that arrived during it."""
POLL_S: Final = 0.025
"""Seconds between two polls of the queue while requests wait for it."""
Waiter = asyncio.Future[bool | None]


class Acknowledgements:
    """Waits until increments that this process has accepted are stored or applied, for requests
    with ``?wait=``. Use it only in the event loop's thread.

    Args:
        services: the objects that endpoints share.
    """

    def __init__(self, services: "Services") -> None:
        self._producer = services.producer
        self._redis = services.redis
        self._flushing = asyncio.Lock()
        self._stored_from = 0.0  # start of the last flush that stored everything
        self._since: dict[Waiter, int] = {}  # waiters for MySQL, with the trail's breaks before
        self._polling: asyncio.Task[None] | None = None

    async def stored(self, seconds: float) -> bool:
        """Wait until all increments that this process has accepted so far are in Redis, or fsynced
        in the spool. Return True then, or False if that takes longer than ``seconds`` or fails."""
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
        except Exception:  # no thread, or a bug: the increments are accepted nevertheless
            LOGGER.exception("waiting for the queue failed", extra={"action": "internal_error"})
            return False
        return True

    async def applied(self, seconds: float) -> bool | None:
        """Wait until all increments that this process has accepted so far are in MySQL, counted or
        as dead letters. Return True then, or False if that takes longer than ``seconds`` or fails.
        Return None if Redis may have lost entries, for example after its restart: nobody can know
        then whether they were applied.

        Each call waits only for its own entries, and for those that were stored before them. Later
        entries do not prolong the wait, however far behind the workers are.
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
        known: dict[Waiter, Checkpoint] = {}
        thread = anyio.CapacityLimiter(1)
        try:
            while self._since:
                for waiter, since in self._since.items():
                    if waiter not in known and (now := self._producer.checkpoint(since)):
                        known[waiter] = now
                known = {each: known[each] for each in self._since if each in known}
                verdicts = await anyio.to_thread.run_sync(
                    self._producer.trail.applied,
                    self._redis,
                    list(known.values()),
                    limiter=thread,
                )
                for waiter, verdict in zip(known, verdicts, strict=True):
                    if verdict is not False and not waiter.done():
                        waiter.set_result(verdict)
                await asyncio.sleep(POLL_S)
        except Exception:  # as above; the waiters are answered at once
            LOGGER.exception("waiting for the queue failed", extra={"action": "internal_error"})
            for waiter in self._since:
                if not waiter.done():
                    waiter.set_result(False)


T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class Services:
    """The objects that endpoints share. They are opened at the start of the process and closed at
    its end.

    Attributes:
        options: the settings.
        producer: takes increments.
        store: has totals, counters and sequences.
        reads: answers queries for totals, with the time up to which they are complete.
        redis: the client of the queue.
        system: returns the state of the installation, the document of ``countersink info``; blocks.
        schedule: pauses, resumes or runs a scheduled job, and returns its state. It is called as
            ``schedule(what, job)`` with ``pause``, ``resume`` or ``run``, and the job's name. It
            blocks, and raises LookupError for an unknown job, or one never planned.
        read_pool: runs reads of totals, which may take long, in threads of their own.
        register: has the valid keys, logins and links.
        cookie: finds the login of a request.
        failures: limits wrong keys per address.
        places: limits the number of requests that wait for MySQL or Redis at the same time.
        quotas: limits names of counters and sequences per key.
        stopping: is set when the process is asked to end; endless answers end then.
        answers: number of answers of this process so far, by HTTP status.
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

    def single(self, kind: Callable[["Services"], T]) -> T:
        """Return this process's only object of ``kind``, a class or function. The first call makes
        it by ``kind(self)``, and later calls return the same object. Only for the event loop's
        thread."""
        found: T | None = self._made.get(kind)
        if found is None:
            found = self._made[kind] = kind(self)
        return found

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``work``, which blocks for a short time, in a thread, and return its result. All
        functions that are defined in the same module share ``options.threads`` threads. So if they
        wait for a lock, they do not delay the functions of other modules."""
        kind = getattr(work, "func", work).__module__  # of a partial: its function's
        return await self._run(kind, partial(work, *args, **kwargs))

    async def run_in_session(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``work`` in a thread, as :meth:`run` does, with a new MySQL session as its first
        argument, and return its result. The session is closed afterwards."""

        def opened() -> T:
            with open_tables(self.options.mysql_url) as session:
                return work(session, *args, **kwargs)

        return await self._run(work.__module__, opened)

    async def _run(self, kind: str, work: Callable[[], T]) -> T:
        places = self._places.get(kind)
        if places is None:
            places = self._places[kind] = anyio.CapacityLimiter(self.options.threads)
        return await anyio.to_thread.run_sync(work, limiter=places)
