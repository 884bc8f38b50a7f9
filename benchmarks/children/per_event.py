"""One process of `benchmarks.peers.per_event`: threads with a connection each."""

from __future__ import annotations

import random
import threading
import time
from itertools import cycle, islice
from typing import Any, Final

from benchmarks.database import Connected, connect
from benchmarks.peers.tables import DAY
from benchmarks.processes import answer, first_message, next_message
from benchmarks.workload import COUNTER, SEQUENCE, zipf_keys

SLOTS: Final = 64

UPDATE: Final = "UPDATE hits SET cnt = cnt + 1 WHERE counter = %s AND day = %s AND name = %s"
SLOTTED_UPSERT: Final = (
    "INSERT INTO hits (counter, day, name, slot, cnt) VALUES (%s, %s, %s, %s, 1)"
    " ON DUPLICATE KEY UPDATE cnt = cnt + 1"
)


class Sender(threading.Thread):
    """Counts events over one connection until the time is up."""

    def __init__(
        self, connection: Connected, *, slotted: bool, offset: float, start: threading.Barrier
    ) -> None:
        super().__init__(daemon=True)
        self.events = 0
        self._connection = connection
        self._slotted = slotted
        self._offset = offset
        self._start_together = start
        self.seconds = 0.0

    def run(self) -> None:
        keys = islice(cycle(zipf_keys()), int(self._offset * SEQUENCE), None)
        draw = random.Random()
        events = 0
        with self._connection.cursor() as cursor:
            self._start_together.wait()
            deadline = time.monotonic() + self.seconds
            for key in keys:
                arguments: tuple[Any, ...] = (COUNTER, DAY, key)
                if self._slotted:
                    cursor.execute(SLOTTED_UPSERT, (*arguments, draw.randrange(SLOTS)))
                else:
                    cursor.execute(UPDATE, arguments)
                events += 1
                if time.monotonic() >= deadline:
                    break
        self.events = events


def main() -> None:
    arguments = first_message()
    threads: int = arguments["threads"]
    barrier = threading.Barrier(threads + 1)
    zipf_keys()  # draw them before the clock runs
    senders = [
        Sender(
            connect(arguments["url"], autocommit=True),
            slotted=arguments["slotted"],
            offset=(arguments["offset"] + number / threads / 2) % 1,
            start=barrier,
        )
        for number in range(threads)
    ]
    answer({"connected": threads})
    seconds: float = next_message()["seconds"]
    for sender in senders:
        sender.seconds = seconds
        sender.start()
    first = time.monotonic()
    barrier.wait()
    for sender in senders:
        sender.join()
    last = time.monotonic()
    answer({"events": sum(sender.events for sender in senders), "first": first, "last": last})


if __name__ == "__main__":
    main()
