"""What lies in the streams at a moment: read before MySQL is asked, so that nothing falls between
the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final

import redis

from countersink.store.totals_sql import check_days
from countersink.stream.connection import command, mapped
from countersink.stream.decode import MAX_AT, Decoded, decode
from countersink.stream.group import pages
from countersink.stream.partitions import stream_keys

Cell = tuple[str, date, str]
"""(counter, UTC day, key): what a total is kept for."""

MINUTES_PER_DAY: Final = 1440
_EPOCH: Final = date(1970, 1, 1).toordinal()
_PAGE: Final = 100
"""Entries per page; of at most 1,000 rows each where our own producers wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rows a read is about; None means all.

    Attributes:
        counter: one counter's name.
        keys: these keys only.
        start, end: event days (UTC), both inclusive.

    Raises:
        TypeError: a day is no ``datetime.date``.
        ValueError: the range ends before it begins.
    """

    counter: str | None = None
    keys: Sequence[str] | None = None
    start: date | None = None
    end: date | None = None

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        check_days(self.start, self.end)

    def fold(self, entry: Decoded) -> "Queued":
        """The wanted rows of an entry, added up by cell."""
        first = 0 if self.start is None else _day_number(self.start)
        last = _day_number(date.max if self.end is None else self.end)
        keys = None if self.keys is None else frozenset(self.keys)
        counters: set[str] = set()
        cells: dict[Cell, int] = {}
        for _, counter, key, minute, amount in entry.rows:
            if self.counter is not None and counter != self.counter:
                continue
            counters.add(counter)
            day = minute // MINUTES_PER_DAY
            if first <= day <= last and (keys is None or key in keys):
                cell = counter, date.fromordinal(_EPOCH + day), key
                cells[cell] = cells.get(cell, 0) + amount
        return Queued(entry.at, counters, cells)


@dataclass(frozen=True, slots=True)
class Queued:
    """One entry that was in a stream, without its bad rows, which the worker will leave out too.

    Attributes:
        at: Unix ms of the first attempt to send.
        counters: the wanted counters it has rows of, whatever the keys and days.
        cells: its wanted rows, added up.
    """

    at: int
    counters: set[str]
    cells: dict[Cell, int]


@dataclass(slots=True)
class Queue:
    """What the streams held.

    Attributes:
        asked: Redis's time before the first stream was read.
        oldest: when the oldest entry still in a stream got there; None when all were empty.
        entries: by entry id (16 bytes), each id once.
    """

    asked: datetime
    oldest: datetime | None = None
    entries: dict[bytes, Queued] = field(default_factory=dict)

    @property
    def applied_up_to(self) -> datetime:
        """Every entry that reached Redis before this time is in MySQL."""
        return self.asked if self.oldest is None else min(self.oldest, self.asked)


def look(client: redis.Redis) -> Queue:
    """How far the workers have come, without the entries: one small read per stream.

    Raises:
        StreamError: Redis did not do its part.
    """
    queue = Queue(_now(client))
    for stream in stream_keys(client):
        for stream_id, _ in command(client, "XRANGE", stream, "-", "+", "COUNT", 1):
            _note(queue, stream_id.decode())
    return queue


def read(client: redis.Redis, wanted: Wanted) -> Queue:
    """All entries of all streams, folded to what is wanted.

    Entries that arrive while this reads are left out or in, as they come. Memory grows with the
    wanted cells.

    Raises:
        StreamError: Redis did not do its part.
    """
    queue = Queue(_now(client))
    for stream in stream_keys(client):
        # Up to what is there now: a fast producer would otherwise keep this reading for ever.
        newest = command(client, "XREVRANGE", stream, "+", "-", "COUNT", 1)
        if not newest:
            continue
        end = newest[0][0].decode()
        for page in pages(client, stream, end=end, size=_PAGE):
            for delivery in page:
                _note(queue, delivery.stream_id)
                entry = decode(delivery)
                name = bytes.fromhex(entry.id)
                if name not in queue.entries:
                    queue.entries[name] = wanted.fold(entry)
    return queue


def _note(queue: Queue, stream_id: str) -> None:
    # Anybody may XADD with an id of their own, far in the future too.
    milliseconds = min(int(stream_id.partition("-")[0]), MAX_AT)
    arrived = datetime.fromtimestamp(milliseconds / 1000, UTC)
    if queue.oldest is None or arrived < queue.oldest:
        queue.oldest = arrived


def _now(client: redis.Redis) -> datetime:
    with mapped():
        seconds, microseconds = client.time()
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


def _day_number(day: date) -> int:
    return day.toordinal() - _EPOCH
