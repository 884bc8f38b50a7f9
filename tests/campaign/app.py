"""Applications of a round of `everything`: processes that are killed, and whose progress survives.

One counts by a producer, one sells in transactions of its own. A line on standard input ends each
of them in good order.
"""

import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import pymysql

from countersink.database.errors import StoreError
from countersink.producers import Increment, Producer
from countersink.store import Store
from tests.campaign.book import event
from tests.support.oracle import connect

RETURNED, STORED, SLOWEST_NS, DROPPED = range(4)
"""Numbers in the file of an application's progress, of 64 bits each."""
BURST: Final = 20
BULK_KEYS: Final = 5_000
"""Of the act `bulk`."""
TABLES: Final = (
    """CREATE TABLE sales (id BIGINT AUTO_INCREMENT PRIMARY KEY, product VARCHAR(10), pieces INT,
        invoice BIGINT UNIQUE) ENGINE = InnoDB""",
    "CREATE TABLE shop (id BIGINT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(10)) ENGINE = InnoDB",
)


def main() -> int:
    """Do what the plan in JSON says, until a line comes on standard input."""
    plan = json.loads(sys.argv[1])
    if "passes" in plan:
        hurry(**plan)
        return 0
    stopping = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stopping.set()

    threading.Thread(target=listen, daemon=True).start()
    sell(stopping, **plan) if "url" in plan else count(stopping, **plan)
    return 0


def count(
    stopping: threading.Event,
    redis_url: str,
    progress: str,
    seed: int,
    source: str,
    begin: int,
    base: int,
    named: bool,
    pause: float,
    options: dict[str, Any],
) -> None:
    """Call a producer for the source's increments from a number on, each with an id if they are
    named.

    The file of the progress says how many calls have returned, and how many of those are stored.
    """
    slept = []
    signal.signal(signal.SIGCONT, lambda *_: slept.append(True))
    number = begin
    with open(progress, "r+b") as file, Producer(redis_url, **options) as producer:
        seen = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        while not stopping.is_set():
            for _ in range(BURST):
                each = event(seed, source, number, base)
                slept.clear()
                began = time.perf_counter_ns()
                if named:
                    while not producer.increment_batch([each], id=f"{source} {number}"):
                        time.sleep(0.01)  # the salt is not known yet
                else:
                    _call(producer, each)
                    if not slept:  # SIGSTOP is no fault of the call
                        took = time.perf_counter_ns() - began
                        seen[SLOWEST_NS] = max(seen[SLOWEST_NS], took)
                number += 1
                seen[RETURNED] = number
            if producer.flush(timeout=0.2):
                seen[STORED] = number
            seen[DROPPED] = producer.stats().dropped
            stopping.wait(pause)
        while not producer.flush(timeout=1.0):
            pass
        seen[STORED], seen[DROPPED] = number, producer.stats().dropped


def hurry(redis_url: str, passes: int, spool: str) -> None:
    """Count all keys of ``bulk`` so often, as fast as calls return."""
    keys = [str(number) for number in range(BULK_KEYS)]
    with Producer(redis_url, spool=spool) as producer:
        increment = producer.increment
        for _ in range(passes):
            for key in keys:
                increment("bulk", key)
        while not producer.flush(timeout=1.0):
            pass
        stats = producer.stats()
    assert (stats.dropped, stats.accepted) == (0, passes * BULK_KEYS), stats


def _call(producer: Producer, each: Increment) -> None:
    if each.member is not None:
        producer.seen(each.counter, each.key, each.member)
    else:
        producer.increment(each.counter, each.key, each.amount, at=each.at)


def sell(stopping: threading.Event, url: str) -> None:
    """Sell in transactions: a row, its count, its invoice's number, and rows of a tracked table.
    The ids of those whose COMMIT was answered are printed, and further numbers that were taken.
    """
    while not stopping.is_set():
        try:
            with Store(url) as store, connect(url) as app:
                while not stopping.wait(0.02):
                    _sell_one(store, app)
        except (pymysql.err.MySQLError, StoreError, OSError):
            stopping.wait(0.1)


def _sell_one(store: Store, app: Any) -> None:
    product, pieces = f"p{time.time_ns() % 5}", time.time_ns() % 9 + 1
    app.begin()
    with app.cursor() as cursor:
        invoice = store.sequences.next_in(app, "invoice")
        cursor.execute(
            "INSERT INTO sales (product, pieces, invoice) VALUES (%s, %s, %s)",
            (product, pieces, invoice),
        )
        sold = cursor.lastrowid
        cursor.execute("INSERT INTO shop (state) VALUES (%s), (NULL)", (product,))
        cursor.execute("DELETE FROM shop WHERE state IS NULL ORDER BY id LIMIT 1")
    store.increment(app, "sold", product, pieces)
    if invoice % 5 == 0 and time.time_ns() % 2:
        app.rollback()
        return
    app.commit()
    os.write(1, b"sold %d\n" % sold)
    os.write(1, b"number %d\n" % store.sequences.next("tickets"))


class Progress:
    """The file of an application's progress, which survives its process."""

    def __init__(self, path: Path, begin: int) -> None:
        self.path = path
        path.write_bytes(struct.pack("4q", begin, begin, 0, 0))

    def __getitem__(self, number: int) -> int:
        return int(struct.unpack("4q", self.path.read_bytes())[number])


if __name__ == "__main__":
    sys.exit(main())
