"""What one `increment()` costs: `python -m benchmarks.increment_calls URL`.

Two ratios to `with lock: d[k] = d.get(k, 0) + 1`, which is what an app would write without us:

- the call alone: CPU time of the calling thread;
- with folding: CPU time of the whole process until every event is a row of the buffer.

And the 99.9th percentile of a call at 100,000 calls per second, while Redis answers and while it is
frozen (give the URL and, for the latter, the process id of a private server).
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

from countersink.producers import Producer

BATCH = 200_000
"""Calls timed at a time, well above what a fold takes at once."""


def bare(keys: Sequence[str], _: Producer) -> tuple[float, float]:
    """Seconds of CPU, twice the same: there is nothing to fold."""
    lock, counts = threading.Lock(), dict[str, int]()
    start = time.thread_time()
    for key in keys:
        with lock:
            counts[key] = counts.get(key, 0) + 1
    spent = time.thread_time() - start
    return spent, spent


def increment(keys: Sequence[str], producer: Producer) -> tuple[float, float]:
    """Seconds of CPU: of the calling thread, and of the process until all is folded."""
    whole, start = time.process_time(), time.thread_time()
    call = producer.increment
    for key in keys:
        call("page_views", key)
    spent = time.thread_time() - start
    producer.stats()  # folds what is left
    return spent, time.process_time() - whole


def increment_many(keys: Sequence[str], producer: Producer) -> tuple[float, float]:
    """Seconds of CPU, in calls of 100 keys."""
    amounts = [{f"{key}{n}": 1 for n in range(100)} for key in keys[: len(keys) // 1000]]
    rounds = len(keys) // (100 * len(amounts))
    whole, start = time.process_time(), time.thread_time()
    for _ in range(rounds):
        for each in amounts:
            producer.increment_many("page_views", each)
    spent = time.thread_time() - start
    producer.stats()
    return spent, time.process_time() - whole


def measure(
    way: Callable[[Sequence[str], Producer], tuple[float, float]],
    keys: Sequence[str],
    producer: Producer,
) -> tuple[float, float]:
    """Nanoseconds per increment, both ways, once."""
    alone, all_of_it = way(keys, producer)
    return alone / len(keys) * 1e9, all_of_it / len(keys) * 1e9


def ratios(producer: Producer, rounds: int) -> None:
    """Print the ratios, each a median of alternating rounds."""
    for name, keys in (
        ("one key", ["/home"] * BATCH),
        ("5,000 keys", [f"/page/{number % 5000}" for number in range(BATCH)]),
    ):
        figures: dict[str, list[tuple[float, float]]] = {}
        for _ in range(rounds):
            for way in (bare, increment, increment_many):
                figures.setdefault(way.__name__, []).append(measure(way, keys, producer))
        base = statistics.median(alone for alone, _ in figures["bare"])
        for way_name, each in figures.items():
            alone = statistics.median(alone for alone, _ in each)
            folded = statistics.median(folded for _, folded in each)
            print(
                f"{name:>10}  {way_name:<14} {alone:6.0f} ns alone ({alone / base:.2f}x)"
                f"  {folded:6.0f} ns with folding ({folded / base:.2f}x)"
            )


def percentiles(producer: Producer, seconds: float, per_second: int, keys: Sequence[str]) -> str:
    """Call at a steady rate; what the slowest calls took, in µs."""
    clock, call, count = time.perf_counter_ns, producer.increment, len(keys)
    gap = 1_000_000_000 // per_second
    total = int(seconds * per_second)
    took = [0] * total
    begin = clock()
    for number in range(total):
        due = begin + number * gap
        while clock() < due:
            pass
        before = clock()
        call("page_views", keys[number % count])
        took[number] = clock() - before
    late = (clock() - begin) / 1e9 - seconds
    took.sort()
    shown = [
        f"p{100 * at:g} {took[int(at * total) - 1] / 1000:.1f} µs" for at in (0.5, 0.99, 0.999)
    ]
    above = sum(1 for each in took if each > 100_000)
    return (
        f"{', '.join(shown)}, max {took[-1] / 1000:.0f} µs, "
        f"{above} of {total} above 100 µs, {late:.2f} s late"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="a private Redis")
    parser.add_argument("--pid", type=int, help="its process id, to freeze it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args(arguments)
    with Producer(options.url) as producer:
        ratios(producer, options.rounds)
    many = [f"/page/{number}" for number in range(5000)]
    with Producer(options.url) as producer:
        print("steady, answering:", percentiles(producer, options.seconds, 100_000, many))
        if options.pid:
            os.kill(options.pid, signal.SIGSTOP)
            try:
                print("steady, frozen:   ", percentiles(producer, options.seconds, 100_000, many))
            finally:
                os.kill(options.pid, signal.SIGCONT)
        producer.flush(30)
        print(producer.stats())
    return 0


if __name__ == "__main__":
    sys.exit(main())
