"""Entries drawn from a seed, and the dictionary of what they must add up to."""

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import redis

from countersink.stream.connection import command
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from countersink.stream.names import stream_key

Cell = tuple[str, date, bytes]
"""(counter, UTC day, key): what a total is kept for."""

STREAM = stream_key(0)
FIRST_MINUTE = int(datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()) // 60
DAYS = 3
MINUTES_PER_DAY = 24 * 60
COUNTERS = ("views", "clicks")
KEYS = (*(f"/page/{number}" for number in range(12)), "", "ä", "a", "A", "a ", "😀")

Row = tuple[str, str, int, int]
"""A row with a key: counter, key, minute, amount."""


class Traffic:
    """Makes entries and keeps the books: `expected` is what the tables must say."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.expected: Counter[Cell] = Counter()
        self.increments = 0
        """How many rows were sealed: each is one increment of the app's."""

    def rows(self, count: int) -> list[Row]:
        """Rows at random: a few counters, keys and days, mostly up, sometimes down or 0."""
        draw = self.random
        return [
            (
                draw.choice(COUNTERS),
                draw.choice(KEYS),
                FIRST_MINUTE + draw.randrange(DAYS * MINUTES_PER_DAY),
                draw.choice((1, 1, 1, 2, 7, -1, -3, 0)),
            )
            for _ in range(count)
        ]

    def entry(self, at: int, rows: Sequence[Row] | int = 20) -> Sealed:
        """A sealed entry, first sent at `at` (Unix ms), counted in `expected` from now on."""
        made = self.rows(rows) if isinstance(rows, int) else list(rows)
        self.count(made)
        return sealed(at, made)

    def count(self, rows: Sequence[Row]) -> None:
        """Book rows that reach the stream some other way, each as one increment."""
        for counter, key, minute, amount in rows:
            self.expected[counter, day_of(minute), key.encode()] += amount
        self.increments += len(rows)


def sealed(at: int, rows: Sequence[Any]) -> Sealed:
    """A sealed entry of rows of any kind, first sent at `at` (Unix ms)."""
    return Sealed(new_entry_id(at), at, encode_rows(rows), len(rows))


def day_of(minute: int) -> date:
    """The UTC day that a Unix minute lies in."""
    return datetime.fromtimestamp(minute * 60, UTC).date()


def now_minute() -> int:
    """The Unix minute that this machine's clock shows."""
    return int(time.time()) // 60


def now_ms(client: redis.Redis) -> int:
    """Redis's clock in Unix ms."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def send(client: redis.Redis, *entries: Sealed, partition: int = 0) -> list[str]:
    """XADD each entry; their stream ids."""
    return [add(client, entry.fields(), partition=partition) for entry in entries]


def send_together(client: redis.Redis, entries: Sequence[Sealed]) -> list[str]:
    """XADD all in one MULTI, so that a reader gets all or none of them; their stream ids."""
    pipeline = client.pipeline(transaction=True)
    for entry in entries:
        pipeline.xadd(STREAM, dict(entry.fields().items()))
    return [stream_id.decode() for stream_id in pipeline.execute()]


def add(
    client: redis.Redis, fields: Mapping[Any, Any], *, partition: int = 0, stream_id: str = "*"
) -> str:
    """XADD whatever fields; the stream id they got."""
    flat = [part for pair in fields.items() for part in pair]
    given: bytes = command(client, "XADD", stream_key(partition), stream_id, *flat)
    return given.decode()


def backlog(client: redis.Redis, partitions: int = 1) -> int:
    """How many entries lie in the streams, delivered or not."""
    return sum(int(client.xlen(stream_key(partition))) for partition in range(partitions))
