"""A producer that sends entries of so many rows, one after the other: what CPU time that takes."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.measuring import Wrong
from benchmarks.processes import answer, first_message
from benchmarks.workload import COUNTER, distinct_keys
from countersink.producers import Producer

FLUSH_SECONDS: Final = 60.0


def main() -> None:
    arguments = first_message()
    flushes, rows = arguments["flushes"], arguments["rows"]
    keys = distinct_keys(flushes * rows if arguments["distinct"] else rows)
    with Producer(arguments["redis_url"], max_rows=10 * rows) as producer:
        begun = time.process_time()
        for number in range(flushes):
            start = number * rows % len(keys)
            for key in keys[start : start + rows]:
                producer.increment(COUNTER, key)
            if not producer.flush(timeout=FLUSH_SECONDS):
                raise Wrong(f"not stored within {FLUSH_SECONDS:g} s: {producer.stats()}")
        cpu = time.process_time() - begun
    answer({"cpu": cpu})


if __name__ == "__main__":
    main()
