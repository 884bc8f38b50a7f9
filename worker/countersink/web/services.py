"""What handlers work with: one of each per process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import anyio
import redis

from countersink.producers import Producer
from countersink.reads import Reads
from countersink.store import Store
from countersink.web.options import WebOptions

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
    """

    options: WebOptions
    producer: Producer
    store: Store
    reads: Reads
    redis: redis.Redis
    system: Callable[[], Mapping[str, Any]]
    threads: anyio.CapacityLimiter

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run what blocks in a thread."""
        return await anyio.to_thread.run_sync(partial(work, *args, **kwargs), limiter=self.threads)
