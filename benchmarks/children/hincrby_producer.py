"""The counting process of `benchmarks.peers.hincrby`."""

from __future__ import annotations

import time
from typing import Final

from redis import Redis

from benchmarks.processes import answer, first_message, next_message
from benchmarks.workload import zipf_keys

HASH: Final = "hits"
PER_PIPELINE: Final = 500


def main() -> None:
    arguments = first_message()
    client = Redis.from_url(arguments["redis_url"])
    client.ping()
    keys = zipf_keys()
    batches = [keys[start : start + PER_PIPELINE] for start in range(0, len(keys), PER_PIPELINE)]
    pipeline = client.pipeline(transaction=False)
    answer({"connected": True})
    seconds: float = next_message()["seconds"]
    events = 0
    first = time.monotonic()
    deadline = first + seconds
    while time.monotonic() < deadline:
        for batch in batches:
            for key in batch:
                pipeline.hincrby(HASH, key, 1)
            pipeline.execute()
            events += len(batch)
            if time.monotonic() >= deadline:
                break
    answer({"events": events, "first": first})


if __name__ == "__main__":
    main()
