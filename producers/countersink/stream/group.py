"""The worker's side of the queue: reading, claiming, sweeping up and acknowledging.

What can go wrong with consumer groups, and what this module does about it:

* the group or the stream is gone (deleted, or Redis restarted empty): made again at 0, so that
  nothing is skipped;
* a consumer died with entries pending: :meth:`Group.claim`;
* an entry lies at or below the group's position and is pending with nobody (its consumer was
  deleted, or the group's position outlived its pending list): :meth:`Group.orphans`;
* a stream id that now belongs to another event: :meth:`Group.acknowledge` compares entry ids.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import redis

from countersink.stream.connection import command, mapped
from countersink.stream.epoch import look, order
from countersink.stream.errors import StreamError
from countersink.stream.names import GROUP, applied_key

_PAGE: Final = 100
"""Entries read at once: of some 300 KB each at the most, if they are ours."""
_PENDING_PAGE: Final = 1_000
_SCRIPTS = files("countersink.stream") / "scripts"
_ACKNOWLEDGE = (_SCRIPTS / "acknowledge.lua").read_text("utf-8")
_DELETE_CONSUMER = (_SCRIPTS / "delete_consumer.lua").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry as it lies in a stream: field bytes in their order, repeated ones included."""

    stream: str
    stream_id: str
    fields: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Claimed:
    """What :meth:`Group.claim` took over.

    Attributes:
        deliveries: entries that are now pending with us.
        lost: stream ids that were pending but had been trimmed from the stream: their counts are
            gone.
    """

    deliveries: list[Delivery]
    lost: list[str]


class Group:
    """The consumer group on a set of streams, seen as one consumer. Not thread-safe.

    Every method raises :class:`~countersink.stream.errors.StreamError` when Redis does not do its
    part.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        streams: the keys of the streams to read; may be replaced between calls.
        consumer: this consumer's name, unique per process.
    """

    def __init__(self, client: redis.Redis, streams: Sequence[str], consumer: str) -> None:
        self.client = client
        self.streams = list(streams)
        self.consumer = consumer
        self._acknowledge = client.register_script(_ACKNOWLEDGE)
        self._delete_consumer = client.register_script(_DELETE_CONSUMER)
        self._cursors: dict[str, str] = {}

    def ensure(self) -> None:
        """Make the group, and the stream, wherever one is missing; at 0, so that nothing already
        there is skipped.
        """
        failed: StreamError | None = None
        for stream in self.streams:
            try:
                look(self.client, stream, make=True)
            except StreamError as error:
                failed = error
        if failed is not None:
            raise failed

    def read(self, count: int, block_ms: int) -> list[Delivery]:
        """Up to ``count`` new entries of each stream, waiting up to ``block_ms`` for the first (0:
        not at all).

        An empty list also when the group had to be made again.
        """
        try:
            return self._read(self.streams, count, block_ms)
        except StreamError as error:
            if not _caused_by(error, "NOGROUP", "UNBLOCKED", "WRONGTYPE"):
                raise
        try:
            self.ensure()
        except StreamError:
            # A full Redis makes no group, and a key of another type can have none. One such stream
            # must not keep the others from being read: what lies there is what fills Redis.
            found = [d for stream in self.streams for d in self._read_alone(stream, count)]
            if not found:
                raise
            return found
        return []

    def _read(self, streams: Sequence[str], count: int, block_ms: int) -> list[Delivery]:
        arguments: list[str | int] = ["XREADGROUP", "GROUP", GROUP, self.consumer, "COUNT", count]
        if block_ms > 0:
            arguments += ["BLOCK", block_ms]
        arguments += ["STREAMS", *streams, *([">"] * len(streams))]
        reply = command(self.client, *arguments)
        return [
            delivery
            for stream, entries in reply or ()
            for delivery in _deliveries(stream.decode(), entries)
        ]

    def _read_alone(self, stream: str, count: int) -> list[Delivery]:
        """New entries of one stream; its first ones if it has no group: guard rows keep apart
        several workers that read them.
        """
        try:
            return self._read([stream], count, 0)
        except StreamError as error:
            if _caused_by(error, "NOGROUP"):
                return next(pages(self.client, stream, size=count), [])
            if _caused_by(error, "WRONGTYPE"):
                return []
            raise

    def claim(self, min_idle_ms: int, count: int) -> Claimed:
        """Take over up to ``count`` entries of each stream that were pending, untouched, for
        ``min_idle_ms``.

        Goes on where the last call stopped, and begins anew at the end of the pending list.
        """
        claimed = Claimed([], [])
        for stream in self.streams:
            cursor = self._cursors.get(stream, "0-0")
            try:
                reply = command(
                    self.client,
                    "XAUTOCLAIM",
                    stream,
                    GROUP,
                    self.consumer,
                    min_idle_ms,
                    cursor,
                    "COUNT",
                    count,
                )
            except StreamError as error:
                if _caused_by(error, "NOGROUP"):
                    continue  # nothing is pending there; reading makes the group
                if claimed.deliveries or claimed.lost:
                    return claimed  # what is ours now is not forgotten; the next call meets it
                raise
            self._cursors[stream] = reply[0].decode()
            claimed.deliveries.extend(_deliveries(stream, reply[1]))
            if len(reply) > 2:
                claimed.lost.extend(stream_id.decode() for stream_id in reply[2])
            elif None in reply[1]:
                claimed.lost.extend(self._give_up_trimmed(stream))
        return claimed

    def _give_up_trimmed(self, stream: str) -> list[str]:
        """Acknowledge what is pending with us and no longer there; the stream ids.

        Redis 7 does so by itself in XAUTOCLAIM; 6.2 hands out nil and leaves it pending for ever.
        """
        rows = command(
            self.client, "XPENDING", stream, GROUP, "-", "+", _PENDING_PAGE, self.consumer
        )
        pending = [row[0].decode() for row in rows]
        gone = [i for i in pending if not command(self.client, "XRANGE", stream, i, i)]
        if gone:
            command(self.client, "XACK", stream, GROUP, *gone)
        return gone

    def orphans(self, min_age_ms: int, count: int) -> list[Delivery]:
        """Up to ``count`` entries of each stream that the group has passed, older than
        ``min_age_ms``, pending with nobody.

        They are not claimed (nothing would record it): apply and acknowledge them like any other.
        Two workers that find the same one are kept apart by its guard row.
        """
        found: list[Delivery] = []
        for stream in self.streams:
            found.extend(self._orphans_of(stream, min_age_ms, count))
        return found

    def _orphans_of(self, stream: str, min_age_ms: int, count: int) -> list[Delivery]:
        with mapped():
            seconds, microseconds = self.client.time()
            groups = self.client.xinfo_groups(stream) if self.client.exists(stream) else []
        now = seconds * 1000 + microseconds // 1000
        old = f"{max(0, now - min_age_ms)}-0"
        last = next(
            (_text(g["last-delivered-id"]) for g in groups if _text(g["name"]) == GROUP), "0-0"
        )
        # Ids ahead of the clock: it was set back, and says nothing about their age.
        end = last if order(last)[0] > now else min(last, old, key=order)
        if end == "0-0":
            return []
        orphans: list[Delivery] = []
        start = "-"
        while len(orphans) < count:
            # First what is pending, then what is there: an acknowledgement removes from both at
            # once, so whatever is there and was not pending before is pending with nobody.
            rows = command(self.client, "XPENDING", stream, GROUP, start, end, _PENDING_PAGE)
            pending = {row[0].decode() for row in rows}
            upto = rows[-1][0].decode() if len(rows) == _PENDING_PAGE else end
            for page in pages(self.client, stream, start=start, end=upto):
                orphans.extend(d for d in page if d.stream_id not in pending)
                if len(orphans) >= count:
                    break
            if upto == end:
                break
            start = f"({upto}"
        return orphans[:count]

    def acknowledge(self, applied: Iterable[tuple[str, str, str]]) -> int:
        """Acknowledge and remove applied entries: (stream, stream id, entry id of 32 hex digits).

        An entry is left alone where its stream id now holds another entry id. Returns how many were
        removed.
        """
        removed = 0
        for stream, entries in groupby(sorted(applied, key=itemgetter(0)), key=itemgetter(0)):
            arguments: list[str] = [GROUP]
            for _, stream_id, entry_id in entries:
                arguments += stream_id, entry_id
            with mapped():
                keys = [stream, applied_key(stream)]
                removed += int(self._acknowledge(keys=keys, args=arguments))
        return removed

    def idle_consumers(self, idle_ms: int) -> list[str]:
        """The other consumers with nothing pending that have not shown up for ``idle_ms``."""
        idle: set[str] = set()
        for stream in self.streams:
            try:
                with mapped():
                    consumers = self.client.xinfo_consumers(stream, GROUP)
            except StreamError as error:
                if _caused_by(error, "NOGROUP", "no such key"):
                    continue
                raise
            for consumer in consumers:
                if consumer["pending"] == 0 and consumer["idle"] >= idle_ms:
                    idle.add(consumer["name"].decode("utf-8", "surrogateescape"))
        return sorted(idle - {self.consumer})

    def delete_consumer(self, consumer: str | None = None) -> bool:
        """Delete a consumer (default: ourselves) from every stream where it has nothing pending.

        Returns whether it is gone from all of them.
        """
        gone = True
        for stream in self.streams:
            with mapped():
                reply = self._delete_consumer(
                    keys=[stream], args=[GROUP, consumer or self.consumer]
                )
            gone = gone and bool(reply)
        return gone


def pages(
    client: redis.Redis, stream: str, *, start: str = "-", end: str = "+", size: int = _PAGE
) -> Iterator[list[Delivery]]:
    """The entries of ``stream`` from the stream id ``start`` to ``end``, in pages of at most
    ``size``.

    Raises:
        StreamError: Redis did not answer.
    """
    while True:
        reply = command(client, "XRANGE", stream, start, end, "COUNT", size)
        page = list(_deliveries(stream, reply))
        if page:
            yield page
        if len(page) < size:
            return
        start = f"({page[-1].stream_id}"


def _deliveries(stream: str, entries: Iterable[Any]) -> Iterator[Delivery]:
    for entry in entries:
        if entry is None or entry[1] is None:
            continue
        stream_id, flat = entry
        yield Delivery(stream, stream_id.decode(), tuple(zip(flat[::2], flat[1::2], strict=True)))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _caused_by(error: Exception, *codes: str) -> bool:
    return str(error.__cause__).startswith(codes)
