"""The process of `benchmarks.sightings`: different members, until all of them are in Redis.

Each time through the sightings is of other keys, whose names are made off the clock. `seen` is
through a Producer as shipped; `pfadd` is redis-py by hand, one key of Redis for each key and day.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from redis import Redis

from benchmarks.children.producer import flushed
from benchmarks.measuring import Wrong
from benchmarks.pipeline import until_salted
from benchmarks.processes import answer, first_message, next_message
from benchmarks.workload import COUNTER, pages_of, sightings
from countersink.producers import Producer

PER_PIPELINE: Final = 1_000
DAY: Final = "2026-11-21"

Count = Callable[[list[str], list[str]], None]
"""Counts keys and their members, and returns when they are in Redis."""


def seen(producer: Producer, keys: list[str], members: list[str]) -> None:
    """Through a Producer."""
    call = producer.seen
    for key, member in zip(keys, members, strict=True):
        call(COUNTER, key, member)
    flushed(producer, applied=False)


def pfadd(client: Redis, keys: list[str], members: list[str]) -> None:
    """By hand. `keys` are those of Redis."""
    pipeline = client.pipeline(transaction=False)
    add: Callable[..., object] = pipeline.execute_command
    for start in range(0, len(keys), PER_PIPELINE):
        end = start + PER_PIPELINE
        for key, member in zip(keys[start:end], members[start:end], strict=True):
            add("PFADD", key, member)
        pipeline.execute()


def timed(count: Count, keys: list[str], members: list[str], seconds: float, tail: str) -> None:
    """Go through the sightings until it has taken so long, and answer."""
    passes, taken, cpu = 0, 0.0, 0.0
    while taken < seconds:
        named = pages_of(passes, keys, tail)
        begun, begun_cpu = time.perf_counter(), time.process_time()
        count(named, members)
        taken += time.perf_counter() - begun
        cpu += time.process_time() - begun_cpu
        passes += 1
    events = passes * len(keys)
    answer({"passes": passes, "events": events, "seconds": taken, "cpu": cpu})


def main() -> None:
    arguments = first_message()
    keys, members = sightings(arguments["members"], arguments["count"])
    seconds: float = arguments["seconds"]
    if arguments["by_hand"]:
        client = Redis.from_url(arguments["redis_url"])
        client.ping()
        timed(lambda *each: pfadd(client, *each), keys, members, seconds, f":{DAY}")
        return
    with Producer(arguments["redis_url"]) as producer:
        until_salted(producer)
        answer({"ready": True})
        next_message()
        timed(lambda *each: seen(producer, *each), keys, members, seconds, "")
        stats = producer.stats()
    if stats.dropped:
        raise Wrong(f"sightings were dropped: {stats}")


if __name__ == "__main__":
    main()
