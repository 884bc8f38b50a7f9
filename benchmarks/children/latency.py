"""The process of `benchmarks.latency`: calls at a fixed rate, each timed on its own.

It never rests: between two calls it spins until the next is due, as a busy app would compute. So
every time that the producer's threads take the interpreter lock, they take it from this loop.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from itertools import cycle
from time import perf_counter_ns
from typing import Final

from benchmarks.processes import answer, first_message, next_message
from benchmarks.workload import COUNTER, zipf_keys
from countersink.producers import Producer

PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999, "p99_99": 0.9999}
WARM_UP_SECONDS: Final = 1.0
FLUSH_SECONDS: Final = 60.0
NS: Final = 1_000_000_000

Call = Callable[[str, str], object]


def bare() -> Call:
    """The locked dictionary, called like increment()."""
    lock = threading.Lock()
    counts: dict[str, int] = {}

    def count(_: str, key: str) -> None:
        with lock:
            counts[key] = counts.get(key, 0) + 1

    return count


def paced(
    call: Call, keys: list[str], *, seconds: float, per_second: int
) -> tuple[array[int], array[int]]:
    """Call for ``seconds`` at ``per_second``: the ns that each call took, and by how many ns after
    its due time it had ended.

    A call that is late is made at once, so that a stall is followed by calls without a pause. The
    first figure leaves out what hit the loop between two calls, the second does not.
    """
    total = int(seconds * per_second)
    taken, late = array("q", bytes(8 * total)), array("q", bytes(8 * total))
    step = NS // per_second
    sequence = cycle(keys)
    due = perf_counter_ns()
    for number in range(total):
        key = next(sequence)
        due += step
        while perf_counter_ns() < due:
            pass
        begun = perf_counter_ns()
        call(COUNTER, key)
        ended = perf_counter_ns()
        taken[number] = ended - begun
        late[number] = ended - due
    return taken, late


def figures(taken: array[int], late: array[int], wall_ns: int) -> dict[str, float]:
    """Percentiles in µs, and the rate that was kept."""
    ordered, ordered_late = sorted(taken), sorted(late)
    last = len(ordered) - 1
    return {
        **{name: ordered[int(last * share)] / 1000 for name, share in PERCENTILES.items()},
        "max": ordered[-1] / 1000,
        "late_p99": ordered_late[int(last * 0.99)] / 1000,
        "late_p99_9": ordered_late[int(last * 0.999)] / 1000,
        "calls": len(ordered),
        "calls_per_second": len(ordered) * NS / wall_ns,
    }


def measure(call: Call, keys: list[str], seconds: float, per_second: int) -> dict[str, float]:
    """Warm up, say that we are ready, and measure when told to."""
    paced(call, keys, seconds=WARM_UP_SECONDS, per_second=per_second)
    answer({"ready": True})
    next_message()
    begun = perf_counter_ns()
    taken, late = paced(call, keys, seconds=seconds, per_second=per_second)
    return figures(taken, late, perf_counter_ns() - begun)


def main() -> None:
    arguments = first_message()
    keys = zipf_keys(arguments["names"])
    seconds, per_second = arguments["seconds"], arguments["per_second"]
    if arguments["bare"]:
        answer(measure(bare(), keys, seconds, per_second))
        return
    with Producer(arguments["redis_url"], spool=arguments["spool"]) as producer:
        answer(measure(producer.increment, keys, seconds, per_second))
        next_message()  # Redis goes on
        stored = producer.flush(timeout=FLUSH_SECONDS)
        stats = producer.stats()
    answer(
        {
            "stored": stored,
            "accepted": stats.accepted,
            "in_redis": stats.stored + stats.replayed,
            "dropped": stats.dropped,
        }
    )


if __name__ == "__main__":
    main()
