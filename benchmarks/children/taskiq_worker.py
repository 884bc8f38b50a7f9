"""The process of `peer_taskiq`: sends the tasks, then works through them.

Tasks are functions that wait for the database, so they run in a pool of threads, as they do where
PyMySQL is used.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Final

from taskiq.receiver import Receiver
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.tables import Hits
from benchmarks.processes import Message, answer, first_message
from benchmarks.workload import zipf_keys

THREADS: Final = 8
TOGETHER: Final = 100
"""Tasks that are sent at once, and that a worker has at hand at most."""


async def work(arguments: Message) -> None:
    """Send, begin, and end when the last is done."""
    left: int = arguments["events"]
    broker = RedisStreamBroker(arguments["redis_url"], consumer_id="0")
    loop, finished = asyncio.get_running_loop(), asyncio.Event()
    connections = threading.local()
    counting = threading.Lock()

    @broker.task
    def count(key: str) -> None:
        nonlocal left
        if not hasattr(connections, "hits"):
            connections.hits = Hits(arguments["url"])
        connections.hits.add({key: 1})
        with counting:
            left -= 1
            if not left:
                loop.call_soon_threadsafe(finished.set)

    await broker.startup()
    keys = cycle(zipf_keys())
    for sent in range(0, left, TOGETHER):
        some = islice(keys, min(TOGETHER, arguments["events"] - sent))
        await asyncio.gather(*(count.kiq(key) for key in some))
    begun = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        receiver = Receiver(broker, executor=pool, max_async_tasks=TOGETHER, run_startup=False)
        listening = asyncio.create_task(receiver.listen(asyncio.Event()))
        await finished.wait()
        answer({"seconds": time.monotonic() - begun})
        listening.cancel()
    await broker.shutdown()


def main() -> None:
    asyncio.run(work(first_message()))


if __name__ == "__main__":
    main()
