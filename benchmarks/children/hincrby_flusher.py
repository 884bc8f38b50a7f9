"""The flushing process of `benchmarks.peers.hincrby`: RENAME, HGETALL, one transaction, DEL."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Final

from redis import Redis

from benchmarks.children.hincrby_producer import HASH
from benchmarks.database import Connected, add_amount, connect, upsert
from benchmarks.peers.tables import DAY
from benchmarks.processes import answer, first_message, next_message
from benchmarks.workload import COUNTER

INTERVAL_SECONDS: Final = 1.0
FLUSHING: Final = "hits:flushing"


def flush(client: Redis, connection: Connected, statement: str) -> None:
    """Move what has been counted so far into the table."""
    if not client.exists(HASH):
        return
    client.rename(HASH, FLUSHING)
    counts: dict[Any, Any] = client.hgetall(FLUSHING)
    rows: list[tuple[Any, ...]] = [
        (COUNTER, DAY, name.decode(), int(amount)) for name, amount in sorted(counts.items())
    ]
    upsert(connection, statement, rows)
    connection.commit()
    client.delete(FLUSHING)


def main() -> None:
    arguments = first_message()
    client = Redis.from_url(arguments["redis_url"])
    client.ping()
    connection = connect(arguments["url"])
    statement = "INSERT INTO hits (counter, day, name, cnt) VALUES (%s, %s, %s, %s) "
    statement += add_amount(connection, "hits", "cnt")
    answer({"connected": True})
    finish: queue.SimpleQueue[object] = queue.SimpleQueue()
    threading.Thread(target=lambda: finish.put(next_message()), daemon=True).start()
    finished = False
    while not finished:
        try:
            finish.get(timeout=INTERVAL_SECONDS)
            finished = True
        except queue.Empty:
            pass  # the interval is over
        flush(client, connection, statement)
    answer({"at": time.monotonic()})


if __name__ == "__main__":
    main()
