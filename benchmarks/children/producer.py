"""The producing process of the end-to-end rows: increment(), then a wait until all is applied."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.measuring import Wrong
from benchmarks.processes import answer, first_message
from benchmarks.workload import COUNTER, SEQUENCE, distinct_keys, zipf_keys
from countersink.producers import Producer

WARM_UP: Final = "warm_up"
APPLIED_SECONDS: Final = 120.0
STORED_EVERY: Final = 25_000
"""Distinct keys between two waits until all is in Redis: they come faster than any database takes
them, and a producer's memory is bounded."""


def flushed(producer: Producer, *, applied: bool) -> None:
    """Wait until everything is stored, or applied. Raises Wrong if that takes too long."""
    if not producer.flush(timeout=APPLIED_SECONDS, applied=applied):
        raise Wrong(f"not all events were applied within {APPLIED_SECONDS:g} s: {producer.stats()}")


def count_zipf(producer: Producer, seconds: float) -> int:
    """Whole passes through the sequence until the time is up; returns their number."""
    keys = zipf_keys()
    increment = producer.increment
    passes = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for key in keys:
            increment(COUNTER, key)
        passes += 1
    return passes


def count_distinct(producer: Producer, keys: list[str]) -> None:
    """Every key once."""
    increment = producer.increment
    for start in range(0, len(keys), STORED_EVERY):
        for key in keys[start : start + STORED_EVERY]:
            increment(COUNTER, key)
        flushed(producer, applied=False)


def main() -> None:
    arguments = first_message()
    distinct = distinct_keys(arguments["distinct"])
    zipf_keys()
    with Producer(arguments["redis_url"]) as producer:
        # The worker is ready, and both have their connections, when this has been applied.
        producer.increment(WARM_UP, "")
        flushed(producer, applied=True)
        passes = 0
        first, cpu = time.monotonic(), time.process_time()
        if distinct:
            count_distinct(producer, distinct)
            events = len(distinct)
        else:
            passes = count_zipf(producer, arguments["seconds"])
            events = passes * SEQUENCE
        called = time.monotonic()
        flushed(producer, applied=True)
        last = time.monotonic()
        cpu = time.process_time() - cpu
        stats = producer.stats()
    if stats.dropped or stats.accepted != events + 1:
        raise Wrong(f"{events} increments were asked for: {stats}")
    extras = {
        "seconds_after_last_call": last - called,
        "producer_cpu_share": cpu / (last - first),
    }
    answer({"events": events, "passes": passes, "seconds": last - first, "extras": extras})


if __name__ == "__main__":
    main()
