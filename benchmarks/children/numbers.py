"""Processes of `benchmarks.sequences` that take numbers until the time is up.

They are forked from this one: starting eight interpreters would take longer than a quick run.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.peers.numbers import NAME, Way, open_peer
from benchmarks.processes import LIFETIME_SECONDS, answer, first_message
from countersink.store import Store


def take(way: Way, url: str, block: int) -> Callable[[], int]:
    """What gives the next number, or the first one of the next block."""
    if way == "sequence":
        sequences = Store(url).sequences
        if block == 1:
            return partial(sequences.next, NAME)
        return lambda: sequences.next_block(NAME, block)[0]
    return open_peer(way, url)


def taker(arguments: dict[str, Any], together: Barrier, parent: Connection) -> None:
    """One of the processes: tells its numbers, and when it began and ended."""
    signal.alarm(LIFETIME_SECONDS)
    one = take(arguments["way"], arguments["url"], arguments["block"])
    numbers = [one()]  # connects, and makes the row
    together.wait()
    begun = time.monotonic()
    deadline = begun + arguments["seconds"]
    while time.monotonic() < deadline:
        numbers.append(one())
    parent.send((numbers, begun, time.monotonic()))


def main() -> None:
    arguments = first_message()
    processes: int = arguments["processes"]
    forking = multiprocessing.get_context("fork")
    together = forking.Barrier(processes)
    ends = []
    takers = []
    for _ in range(processes):
        ours, theirs = forking.Pipe(duplex=False)
        process = forking.Process(target=taker, args=(arguments, together, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        ends.append(ours)
        takers.append(process)
    told = [end.recv() for end in ends]
    for process in takers:
        process.join()
    answer(
        {
            "numbers": sorted(number for numbers, _, _ in told for number in numbers),
            "timed": sum(len(numbers) - 1 for numbers, _, _ in told),
            "seconds": max(ended for _, _, ended in told) - min(begun for _, begun, _ in told),
        }
    )


if __name__ == "__main__":
    main()
