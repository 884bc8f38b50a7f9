"""The reader of `benchmarks.compaction_load`: nothing is ever subtracted, so no total may fall."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.database import Connected, connect
from benchmarks.processes import Interrupted, answer, first_message, next_message
from benchmarks.workload import COUNTER

PAUSE_SECONDS: Final = 0.1
TOTAL: Final = "SELECT SUM(amount) FROM counter_slot WHERE counter = %s"


def total(connection: Connected) -> int:
    """What a dashboard would show."""
    with connection.cursor() as cursor:
        cursor.execute(TOTAL, (COUNTER,))
        row: tuple[Any, ...] = cursor.fetchone() or (0,)
    connection.commit()
    return int(row[0] or 0)


def main() -> None:
    arguments = first_message()
    readers = [
        connect(arguments["url"], isolation="READ COMMITTED"),
        connect(arguments["url"], isolation="REPEATABLE READ"),
    ]
    answer({"connected": len(readers)})
    next_message()
    stop = Interrupted()
    stop.listen()
    reads = went_down = before = 0
    while not stop.wait(PAUSE_SECONDS):
        found = total(readers[reads % len(readers)])
        reads += 1
        went_down += found < before
        before = found
    answer({"reads": reads, "went_down": went_down})


if __name__ == "__main__":
    main()
