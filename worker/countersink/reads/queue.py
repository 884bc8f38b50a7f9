"""What lies in the streams at a moment: read before MySQL is asked, so that nothing falls between
the two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import redis

from countersink.reads.wanted import Folding, Queued
from countersink.stream.connection import command, mapped
from countersink.stream.decode import MAX_AT, decode
from countersink.stream.delivery import ends, pages
from countersink.stream.errors import StreamError
from countersink.stream.partitions import stream_keys

_PAGE: Final = 100
"""Entries per page; of at most 1,000 rows each where our own producers wrote them."""


class QueueTooLong(StreamError):
    """There is more in the queue than is read at once."""


class Stopped(StreamError):
    """The read was told to end before it had all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of the queue is read at once.

    Attributes:
        entries: in all streams; None for any number.
        rows: of these entries; None for any number.
        stop: asked between pages: true once reading is to end.
    """

    entries: int | None = None
    rows: int | None = None
    stop: Callable[[], bool] = lambda: False

    def check(self, entries: int, rows: int = 0) -> None:
        """Refuse what is too much.

        Raises:
            QueueTooLong: it is.
        """
        for number, most, what in (
            (entries, self.entries, "entries"),
            (rows, self.rows, "rows"),
        ):
            if most is not None and number > most:
                raise QueueTooLong(f"the queue has more than {most:,} {what}")


UNBOUNDED: Final = Bounds()


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
        if found := ends(client, stream):
            _note(queue, found[0])
    return queue


def read(client: redis.Redis, folding: Folding, bounds: Bounds = UNBOUNDED) -> Queue:
    """All entries of all streams, folded to what is wanted.

    Entries that arrive while this reads are left out or in, as they come. Memory grows with the
    wanted cells.

    Raises:
        QueueTooLong, Stopped: as ``bounds`` have it.
        StreamError: Redis did not do its part.
    """
    queue = Queue(_now(client))
    streams = stream_keys(client)
    bounds.check(sum(command(client, "XLEN", stream) for stream in streams))
    entries = rows = 0
    for stream in streams:
        # Up to what is there now: a fast producer would otherwise keep this reading for ever.
        found = ends(client, stream)
        if found is None:
            continue
        for page in pages(client, stream, end=found[1], size=_PAGE):
            if bounds.stop():
                raise Stopped("the queue was not read to its end")
            entries += len(page)
            for delivery in page:
                _note(queue, delivery.stream_id)
                entry = decode(delivery)
                rows += len(entry.rows)
                bounds.check(entries, rows)
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
