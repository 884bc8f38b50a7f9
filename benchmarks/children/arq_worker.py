"""The process of `peer_arq`: enqueues the jobs, then works through them.

A job waits for the database in a thread, as it has to where PyMySQL is used.
"""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import cycle, islice
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.peers.tables import Hits
from benchmarks.processes import Message, answer, first_message
from benchmarks.workload import zipf_keys


async def work(arguments: Message) -> None:
    """Enqueue, begin, and end when the queue is empty."""
    connections = threading.local()

    def add(key: str) -> None:
        if not hasattr(connections, "hits"):
            connections.hits = Hits(arguments["url"])
        connections.hits.add({key: 1})

    async def count(_: dict[str, Any], key: str) -> None:
        await asyncio.to_thread(add, key)

    pool = await create_pool(RedisSettings.from_dsn(arguments["redis_url"]))
    for key in islice(cycle(zipf_keys()), arguments["events"]):
        await pool.enqueue_job("count", key)
    worker = Worker(
        [func(count, name="count", keep_result=0)],
        redis_pool=pool,
        burst=True,
        poll_delay=0.01,
        handle_signals=False,
        log_results=False,
    )
    begun = time.monotonic()
    await worker.async_run()
    answer({"seconds": time.monotonic() - begun})
    await worker.close()


def main() -> None:
    asyncio.run(work(first_message()))


if __name__ == "__main__":
    main()
