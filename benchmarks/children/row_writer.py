"""One process of `benchmarks.tracked_inserts` and `benchmarks.row_counts`: threads that insert rows
over a connection each, until the time is up or the parent says so.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from benchmarks.app_table import insert
from benchmarks.database import connect
from benchmarks.processes import Interrupted, answer, first_message, next_message

NEVER: Final = 3_600.0
"""Seconds, where the parent says when it is over."""


class Inserter(threading.Thread):
    """Autocommitted INSERTs over one connection.

    Attributes:
        rows: inserted so far.
        took: (when it had ended, seconds) of each statement, if asked for.
    """

    def __init__(
        self, url: str, number: int, rows: int, together: threading.Barrier, stop: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self.rows = 0
        self.took: list[tuple[float, float]] = []
        self.seconds = NEVER
        self._connection = connect(url, autocommit=True)
        self._number = number
        self._rows = rows
        self._start_together = together
        self._ended = stop

    def run(self) -> None:
        with self._connection.cursor() as cursor:
            self._start_together.wait()
            deadline = time.monotonic() + self.seconds
            at = time.monotonic()
            while at < deadline and not self._ended.is_set():
                cursor.execute(*insert(self._number + self.rows, self._rows))
                before, at = at, time.monotonic()
                self.took.append((at, at - before))
                self.rows += self._rows


def main() -> None:
    arguments = first_message()
    threads: int = arguments["threads"]
    together, stop = threading.Barrier(threads + 1), Interrupted()
    inserters = [
        Inserter(arguments["url"], number * 7, arguments["rows"], together, stop)
        for number in range(threads)
    ]
    answer({"connected": threads})
    seconds: float | None = next_message().get("seconds")
    if seconds is None:
        stop.listen()
    for inserter in inserters:
        inserter.seconds = NEVER if seconds is None else seconds
        inserter.start()
    first = time.monotonic()
    together.wait()
    for inserter in inserters:
        inserter.join()
    last = time.monotonic()
    answer(
        {
            "rows": sum(inserter.rows for inserter in inserters),
            "first": first,
            "last": last,
            "took": [one for inserter in inserters for one in inserter.took]
            if arguments["each"]
            else [],
        }
    )


if __name__ == "__main__":
    main()
