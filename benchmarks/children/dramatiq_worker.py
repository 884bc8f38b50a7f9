"""The process of `peer_dramatiq` and `peer_dramatiq_batches`: sends the messages, then works."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import cycle, islice
from typing import Final

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.tables import Hits
from benchmarks.processes import ANSWER_SECONDS, answer, first_message
from benchmarks.workload import zipf_keys

THREADS: Final = 8
"""As many as a worker process has where nothing is said."""


def main() -> None:
    arguments = first_message()
    left: int = arguments["events"]
    size: int = arguments["events_per_job"]
    broker = RedisBroker(url=arguments["redis_url"])
    dramatiq.set_broker(broker)
    connections = threading.local()
    counting = threading.Lock()
    done = threading.Event()

    @dramatiq.actor
    def count(keys: list[str]) -> None:
        nonlocal left
        if not hasattr(connections, "hits"):
            connections.hits = Hits(arguments["url"])
        connections.hits.add(Counter(keys))
        with counting:
            left -= len(keys)
            if not left:
                done.set()

    keys = cycle(zipf_keys())
    for _ in range(left // size):
        count.send(list(islice(keys, size)))
    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    begun = time.monotonic()
    worker.start()
    done.wait(ANSWER_SECONDS)
    answer({"seconds": time.monotonic() - begun})
    worker.stop()


if __name__ == "__main__":
    main()
