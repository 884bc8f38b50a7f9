"""``Services``, what endpoints work with, one of each per process: options, producer, store, reads,
threads."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
import redis

from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.reads import Reads
from countersink.store import Store
from countersink.web.auth.credentials import LoginCookie, NameQuotas, TokenBuckets, WaitingPlaces
from countersink.web.auth.register import Register
from countersink.web.options import WebOptions
from countersink.web.read_pool import ReadPool

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
