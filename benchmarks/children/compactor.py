"""The compacting process of `benchmarks.compaction_load`: pass after pass, when told to."""

from __future__ import annotations

from benchmarks.compaction_ways import Way, open_way
from benchmarks.processes import Interrupted, answer, first_message, next_message


def main() -> None:
    arguments = first_message()
    way: Way = arguments["way"]
    stop = Interrupted()
    with open_way(way, arguments["url"], bucket=arguments["bucket"], stop=stop.is_set) as compact:
        answer({"connected": True})
        while True:
            next_message()
            stop.listen()
            passes = removed = refused = 0
            while not stop.is_set():
                done = compact()
                passes += 1
                removed += done.removed
                refused += done.refused
            answer({"passes": passes, "removed": removed, "refused": refused})


if __name__ == "__main__":
    main()
