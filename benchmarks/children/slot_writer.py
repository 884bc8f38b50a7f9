"""One of the writers of `benchmarks.compaction_load`: batches as a worker applies them, for as long
as the parent wants.

A batch is one flush of a busy producer: 1,000 rows with different keys, all of one day.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final

from benchmarks.processes import Interrupted, answer, first_message, next_message
from benchmarks.workload import COUNTER
from countersink.store import StoreError
from countersink.store.apply import Applier
from countersink.store.merge import Incoming, Row

ROWS: Final = 1_000
BATCHES: Final = 40
"""Different choices of keys, made before the clock runs."""


def batches(keys: int, minute: int, seed: int) -> list[list[Row]]:
    """The rows of some batches, in the order of a producer's flush: none in particular."""
    draw = random.Random(seed)
    return [
        [
            (position, COUNTER, f"/articles/{number:06d}", minute, 1)
            for position, number in enumerate(draw.sample(range(keys), min(keys, ROWS)))
        ]
        for _ in range(BATCHES)
    ]


def main() -> None:
    arguments = first_message()
    prepared = batches(arguments["keys"], arguments["minute"], arguments["slot"])
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
    number = 0
    while not stop.is_set():
        rows = prepared[number % BATCHES]
        number += 1
        now = int(time.time() * 1000)
        entry = Incoming(now.to_bytes(6, "big") + os.urandom(10), now, rows)
        while True:
            try:
                applier.apply([entry])
                break
            except StoreError:
                errors += 1  # and again: the guard decides whether it was counted
        commits.append((time.monotonic(), len(rows)))
    applier.close()
    answer({"commits": commits, "reruns": reruns, "errors": errors})


if __name__ == "__main__":
    main()
