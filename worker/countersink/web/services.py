"""What handlers work with: one of each per process."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
import redis

from countersink.producers import Producer
from countersink.reads import Reads
from countersink.store import Store
from countersink.web.credentials import LoginCookie
from countersink.web.limits import Buckets
from countersink.web.options import WebOptions
from countersink.web.read_places import ReadPlaces
from countersink.web.register import Register

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything that is opened at the start and closed at the end.

    Attributes:
        options: the settings.
        producer: takes increments.
        store: totals, counters, sequences.
        reads: totals together with how fresh they are.
        redis: the queue.
        system: the state of the whole installation, the document of ``countersink info``; blocks.
        threads: bounds :meth:`run`.
        read_places: for those that read totals, which may take long: nobody else waits for them.
        register: the keys and logins that are valid.
        cookie: of the logins to this installation.
        failures: wrong keys that each address may still show.
        stopping: set when the process is told to end: answers that go on without end end then.
        answers: how many there were, by status.
    """

    options: WebOptions
    producer: Producer
    store: Store
    reads: Reads
    redis: redis.Redis
    system: Callable[[], Mapping[str, Any]]
    threads: anyio.CapacityLimiter
    read_places: ReadPlaces
    register: Register
    cookie: LoginCookie
    failures: Buckets
    stopping: asyncio.Event
    answers: Counter[int] = field(default_factory=Counter, compare=False)

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run what blocks for a moment in a thread."""
        return await anyio.to_thread.run_sync(partial(work, *args, **kwargs), limiter=self.threads)
