"""One of the writers of `benchmarks.compaction_load`: batches as a worker applies them, for as long
as the parent wants.

A batch is one flush of a busy producer: 1,000 events of the workload, folded to a row per key.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from itertools import cycle
from typing import Final

from benchmarks.processes import Interrupted, answer, first_message, next_message
from benchmarks.workload import COUNTER, zipf_keys
from countersink.counting.apply.amounts import Incoming, Row
from countersink.counting.apply.applier import Applier
from countersink.store import StoreError

EVENTS: Final = 1_000
LATE_EVERY: Final = 10
"""One batch out of so many is late: of the day that is being compacted."""


def batches(minute: int, late_minute: int, offset: int) -> list[list[Row]]:
    """The rows of the workload's batches, beginning with one of them."""
    keys = zipf_keys()
    found: list[list[Row]] = []
    for start in range(0, len(keys), EVENTS):
        at = minute if start // EVENTS % LATE_EVERY else late_minute
        folded = Counter(keys[start : start + EVENTS]).items()
        batch: list[Row] = [(index, COUNTER, key, at, n) for index, (key, n) in enumerate(folded)]
        found.append(batch)
    return found[offset:] + found[:offset]


def main() -> None:
    arguments = first_message()
    prepared = cycle(batches(arguments["minute"], arguments["late_minute"], arguments["offset"]))
    reruns = errors = 0

    def pause(seconds: float) -> None:
        nonlocal reruns
        reruns += 1
        time.sleep(seconds)

    applier = Applier(arguments["url"], arguments["slot"], pause=pause)
    answer({"connected": applier.apply([]).applied})
    next_message()
    stop = Interrupted()
    stop.listen()
    commits: list[tuple[float, int]] = []
    while not stop.is_set():
        rows = next(prepared)
        now = int(time.time() * 1000)
        entry = Incoming(now.to_bytes(6, "big") + os.urandom(10), now, rows, checked=True)
        while True:
            try:
                applier.apply([entry])
                break
            except StoreError:
                errors += 1  # and again: the guard decides whether it was counted
        commits.append((time.monotonic(), EVENTS))
    applier.close()
    answer({"commits": commits, "reruns": reruns, "errors": errors})


if __name__ == "__main__":
    main()
