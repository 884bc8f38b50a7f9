"""What lies in the streams at a moment: read before MySQL is asked, so that nothing falls between
the two.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import redis

from countersink.reads.wanted import Folding, Queued
from countersink.stream.connection import command, mapped
from countersink.stream.decode import MAX_AT, decode
from countersink.stream.group import pages
from countersink.stream.partitions import stream_keys

_PAGE: Final = 100
"""Entries per page; of at most 1,000 rows each where our own producers wrote them."""


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


def read(client: redis.Redis, folding: Folding) -> Queue:
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
                    queue.entries[name] = folding.fold(entry)
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
