"""The process of `benchmarks.calls`: counts in memory, and answers with calls and seconds.

All rows go through the same sequence of keys in the same loop; `increment_dimensions` has each of
them as the value of one dimension of three. The clocks:

=========================  ========================================================================
row                        seconds
=========================  ========================================================================
`bare`, `increment`,       CPU time of the calling thread. For the increments that leaves out what
`increment_dimensions`     the producer's own threads do meanwhile; for `bare`, alone in its
                           process, it is the wall time (also measured, in the extra
                           `wall_per_second`)
`increment_with_folding`,  wall time from the first call until everything is folded, all threads on
`increment_many`           the one interpreter lock. The extra `cpu_per_second` is by the CPU time
                           of the whole process: where it is much higher, the machine was busy
=========================  ========================================================================
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.measuring import Wrong
from benchmarks.processes import answer, first_message
from benchmarks.workload import COUNTER, SEQUENCE, zipf_counts, zipf_keys
from countersink.producers import Producer

PASSES: Final = 4
"""Through the sequence between two readings of the clock: 400,000 calls, some 50 ms."""
MANY: Final = 1_000
"""Rows per dict of increment_many."""
COUNTRIES: Final = ("DE", "FR", "US", "IN", "BR", "JP", "")
DEVICES: Final = ("phone", "tablet", "desktop")
NEVER_SECONDS: Final = 3_600.0
"""Flush interval: nothing is sent but what a measurement sends at its end."""
FLUSH_SECONDS: Final = 60.0

Timed = tuple[int, float, dict[str, float]]
"""(events, seconds, extras)."""


def bare(seconds: float) -> Timed:
    """The dictionary that an app would count in by itself."""
    keys = zipf_keys()
    lock = threading.Lock()
    counts: dict[str, int] = {}
    events, cpu, wall = 0, 0.0, 0.0
    while cpu < seconds:
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        for _ in range(PASSES):
            for key in keys:
                with lock:
                    counts[key] = counts.get(key, 0) + 1
        cpu += time.thread_time() - begun_cpu
        wall += time.perf_counter() - begun
        events += PASSES * SEQUENCE
    if sum(counts.values()) != events:
        raise Wrong("the dictionary lost count")
    return events, cpu, {"wall_per_second": events / wall}


def increment(producer: Producer, seconds: float) -> Timed:
    """The call alone: in stretches of 400,000, after each of which all is folded, off the clock."""
    return _calls(producer, zipf_keys(), seconds)


def increment_dimensions(producer: Producer, seconds: float) -> Timed:
    """The same with three dimensions; their mappings are made off the clock."""
    made = {
        name: {"page": name, "country": COUNTRIES[number % 7], "device": DEVICES[number % 3]}
        for number, name in enumerate(zipf_counts())
    }
    return _calls(producer, [made[key] for key in zipf_keys()], seconds)


def _calls(
    producer: Producer, keys: Sequence[str] | Sequence[dict[str, str]], seconds: float
) -> Timed:
    call = producer.increment
    events, cpu, wall = 0, 0.0, 0.0
    while cpu < seconds:
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        for _ in range(PASSES):
            for key in keys:
                call(COUNTER, key)
        cpu += time.thread_time() - begun_cpu
        wall += time.perf_counter() - begun
        events += PASSES * SEQUENCE
        fold(producer)
    return events, cpu, {"wall_per_second": events / wall}


def increment_with_folding(producer: Producer, seconds: float) -> Timed:
    """Calls without a pause, and then a wait until all is folded."""
    keys = zipf_keys()
    call = producer.increment
    events = 0
    begun, begun_cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < seconds:
        for _ in range(PASSES):
            for key in keys:
                call(COUNTER, key)
        events += PASSES * SEQUENCE
    fold(producer)
    cpu = time.process_time() - begun_cpu
    return events, time.perf_counter() - begun, {"cpu_per_second": events / cpu}


def increment_many(producer: Producer, seconds: float) -> Timed:
    """Rows, in dicts of 1,000: all names in five dicts, by turns."""
    names = sorted(zipf_counts())
    dicts = [
        dict.fromkeys(names[start : start + MANY], 3)
        for start in range(0, len(names) - MANY + 1, MANY)
    ]
    call = producer.increment_many
    events = 0
    begun, begun_cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < seconds:
        for amounts in dicts:
            call(COUNTER, amounts)
            events += len(amounts)
    fold(producer)
    cpu = time.process_time() - begun_cpu
    return events, time.perf_counter() - begun, {"cpu_per_second": events / cpu}


def fold(producer: Producer) -> None:
    """Wait until nothing is left to fold.

    By the public way, which also sends the folded rows: 5,000 at most, a few ms of CPU time.
    """
    if not producer.flush(timeout=FLUSH_SECONDS):
        raise Wrong(f"not folded and stored within {FLUSH_SECONDS:g} s: {producer.stats()}")


CALLS: Final[dict[str, Callable[[Producer, float], Timed]]] = {
    "increment": increment,
    "increment_dimensions": increment_dimensions,
    "increment_with_folding": increment_with_folding,
    "increment_many": increment_many,
}


def main() -> None:
    arguments = first_message()
    name, seconds = arguments["name"], arguments["seconds"]
    if name == "bare":
        events, taken, extras = bare(seconds)
    else:
        zipf_keys()
        with Producer(
            arguments["redis_url"], flush_interval=NEVER_SECONDS, max_rows=100_000
        ) as producer:
            events, taken, extras = CALLS[name](producer, seconds)
            stats = producer.stats()
        if stats.dropped or stats.accepted != events:
            raise Wrong(f"{events} increments were asked for: {stats}")
    answer({"events": events, "seconds": taken, "extras": extras})


if __name__ == "__main__":
    main()
