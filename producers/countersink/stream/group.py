"""The worker's commands to the consumer group: read (``READ_BYTES`` at a time), make it again where
Redis was emptied, claim from dead consumers, find orphans, acknowledge, delete consumers; how often
each is done, and what is logged of it, is in ``worker/intake.py``.

What can go wrong with consumer groups, and what this module does about it:

* the group or the stream is gone (deleted, or Redis restarted empty): made again at 0, so that
  nothing is skipped;
* a consumer died with entries pending: :meth:`Group.claim_gone`, and :meth:`Group.claim` whatever
  has become of it;
* an entry lies at or below the group's position and is pending with nobody (its consumer was
  deleted, or the group's position outlived its pending list): :meth:`Group.orphans`;
* a stream id that now belongs to another event: :meth:`Group.acknowledge` compares entry ids.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

import redis

from countersink.stream.connection import cluster_of, command, mapped
from countersink.stream.entry import (
    PAGE_BYTES,
    Delivery,
    deliveries,
    pages,
    script,
    size_of,
)
from countersink.stream.errors import StreamError
from countersink.stream.names import GROUP, applied_key, worker_key
from countersink.stream.progress import look, order

READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes after which no more is read, claimed or swept up at once; the last entry may go beyond, by
as much again.
"""
LOOK_S: Final = 1.0
"""Seconds between two looks for consumers whose processes are gone."""
GONE_S: Final = 3.0
"""Seconds without a sign of life after which one counts as gone."""
_PENDING_PAGE: Final = 1_000


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

    Attributes:
        max_bytes: after which no more is read, claimed or swept up at once.
    """

    max_bytes: int = READ_BYTES

    def __init__(self, client: redis.Redis, streams: Sequence[str], consumer: str) -> None:
        self.client = client
        self.streams = list(streams)
        self.consumer = consumer
        self._scripts = {
            name: client.register_script(script(name))
            for name in ("acknowledge", "claim", "clock", "delete_consumer", "read")
        }
        self._ends: dict[bytes, tuple[float, float]] = {}
        self._looked = 0.0
        self._turn = 0

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
        """Up to ``count`` new entries of each stream, and ``max_bytes`` of all, waiting up to
        ``block_ms`` for the first (0: not at all).

        An empty list also when the group had to be made again.
        """
        try:
            found = self._read(self.streams, count, self.max_bytes)
            if not found and block_ms > 0:
                found = self._wait(block_ms)
                if found:
                    found += self._read(self.streams, count, self.max_bytes - size_of(found))
            return found
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

    def _read(self, streams: Sequence[str], count: int, max_bytes: int) -> list[Delivery]:
        """What is there; another stream comes first each time."""
        self._turn += 1
        turn = self._turn % len(streams)
        found: list[Delivery] = []
        for stream in (*streams[turn:], *streams[:turn]):
            left = count
            try:
                while left > 0 and max_bytes > 0:
                    page = self._page(stream, left, min(PAGE_BYTES, max_bytes))
                    size = size_of(page)
                    found += page
                    left -= len(page)
                    max_bytes -= size
                    if size < PAGE_BYTES:
                        break
            except StreamError:
                if found:
                    break  # these are ours now; the next call meets the error
                raise
        return found

    def _page(self, stream: str, count: int, max_bytes: int) -> list[Delivery]:
        arguments: list[str | int] = [GROUP, self.consumer, count, max_bytes]
        with mapped():
            return list(deliveries(stream, self._scripts["read"](keys=[stream], args=arguments)))

    def _wait(self, block_ms: int) -> list[Delivery]:
        """The next entry of any stream, or nothing after ``block_ms``.

        Of what is waited for a script cannot be in front, so this one comes whole, which is
        bearable, and is asked for once more, to be cut like any other.
        """
        arguments: list[str | int] = ["XREADGROUP", "GROUP", GROUP, self.consumer, "COUNT", 1]
        arguments += ["BLOCK", block_ms, "STREAMS", *self.streams, *([">"] * len(self.streams))]
        found: list[Delivery] = []
        for stream, entries in command(self.client, *arguments) or ():
            for stream_id, _ in entries:
                at = stream_id.decode()
                found += next(pages(self.client, stream.decode(), start=at, end=at), [])
        return found

    def _read_alone(self, stream: str, count: int) -> list[Delivery]:
        """New entries of one stream; its first ones if it has no group: guard rows keep apart
        several workers that read them.
        """
        try:
            return self._read([stream], count, self.max_bytes)
        except StreamError as error:
            if _caused_by(error, "NOGROUP"):
                return next(pages(self.client, stream, size=count), [])
            if _caused_by(error, "WRONGTYPE"):
                return []
            raise

    def claim(self, min_idle_ms: int, count: int) -> Claimed:
        """Take over up to ``count`` entries of each stream that were pending, untouched, for
        ``min_idle_ms``. What is taken over is idle no more: the next call finds what is left.
        """
        return self._take_over(lambda stream: self._idle(stream, min_idle_ms, count))

    def claim_gone(self, count: int) -> Claimed:
        """Take over up to ``count`` entries of each stream, and from each consumer, that are
        pending with consumers whose processes are gone. To be called each :data:`LOOK_S`.

        A process that lives puts off the end of its hash each second, whatever it waits for
        (:class:`~countersink.stream.progress.Heartbeat`); one that is taken for gone wrongly
        applies what it holds in vain, as guards keep the two apart.
        """
        with suppress(StreamError):  # of a cluster, the hashes may lie where nobody serves
            pending = {stream: self._pending_with(stream) for stream in self.streams}
            gone = self._gone({name for names in pending.values() for name in names})
            if gone:
                return self._take_over(
                    lambda stream: self._pending_of(stream, gone & pending[stream], count)
                )
        return Claimed([], [])

    def _pending_with(self, stream: str) -> set[bytes]:
        """The other consumers with which entries are pending."""
        try:
            _, _, _, consumers = command(self.client, "XPENDING", stream, GROUP)
        except StreamError as error:
            if _caused_by(error, "NOGROUP"):
                return set()
            raise
        return {name for name, _ in consumers or ()} - {self.consumer.encode()}

    def _pending_of(self, stream: str, names: Iterable[bytes], count: int) -> dict[bytes, bytes]:
        """Stream id → consumer."""
        found: dict[bytes, bytes] = {}
        for name in names:
            rows = command(self.client, "XPENDING", stream, GROUP, "-", "+", count, name)
            found |= {row[0]: row[1] for row in rows}
        return found

    def _gone(self, names: Iterable[bytes]) -> set[bytes]:
        """The consumers that have not put off the end of their hashes for :data:`GONE_S`."""
        now = time.monotonic()
        if now - self._looked > 2 * LOOK_S:
            self._ends.clear()  # Redis may have been frozen meanwhile, and all of them waited
        self._looked = now
        before, self._ends = self._ends, {}
        cluster = cluster_of(self.client)
        client = cluster.hasty if cluster else self.client
        for name in names:
            key = worker_key(name.decode("utf-8", "surrogateescape"))
            left = int(command(client, "PTTL", key))
            ends = now + left / 1000 if left >= 0 else 0.0
            since, known = before.get(name, (now, ends))
            if ends > known + LOOK_S / 2:
                since, known = now, ends
            self._ends[name] = since, known
        return {name for name, (since, _) in self._ends.items() if now - since >= GONE_S}

    def _take_over(self, pending: Callable[[str], dict[bytes, bytes]]) -> Claimed:
        """Take over entries of each stream: stream id → consumer with which it is pending."""
        claimed = Claimed([], [])
        max_bytes = self.max_bytes
        for stream in self.streams:
            try:
                idle = pending(stream)
                if not idle:
                    continue
                arguments: list[str | bytes | int] = [GROUP, self.consumer, max_bytes]
                arguments += chain.from_iterable(idle.items())
                with mapped():
                    found, lost = self._scripts["claim"](keys=[stream], args=arguments)
            except StreamError as error:
                if _caused_by(error, "NOGROUP"):
                    continue  # nothing is pending there; reading makes the group
                if claimed.deliveries or claimed.lost:
                    return claimed  # what is ours now is not forgotten; the next call meets it
                raise
            page = list(deliveries(stream, found))
            claimed.deliveries.extend(page)
            claimed.lost.extend(stream_id.decode() for stream_id in lost)
            max_bytes -= size_of(page)
            if max_bytes <= 0:
                break
        return claimed

    def _idle(self, stream: str, min_idle_ms: int, count: int) -> dict[bytes, bytes]:
        """Stream id → consumer of entries that were pending for ``min_idle_ms``."""
        rows = command(self.client, "XPENDING", stream, GROUP, "IDLE", min_idle_ms, "-", "+", count)
        return {row[0]: row[1] for row in rows}

    def orphans(self, min_age_ms: int, count: int) -> list[Delivery]:
        """Up to ``count`` entries of each stream that the group has passed, older than
        ``min_age_ms``, pending with nobody.

        They are not claimed (nothing would record it): apply and acknowledge them like any other.
        Two workers that find the same one are kept apart by its guard row.
        """
        found: list[Delivery] = []
        for stream in self.streams:
            if size_of(found) < self.max_bytes:
                found.extend(self._orphans_of(stream, min_age_ms, count))
        return found

    def _orphans_of(self, stream: str, min_age_ms: int, count: int) -> list[Delivery]:
        with mapped():
            seconds, microseconds = map(int, self._scripts["clock"](keys=[stream]))
            groups = self.client.xinfo_groups(stream) if self.client.exists(stream) else []
        now = seconds * 1000 + microseconds // 1000
        old = f"{max(0, now - min_age_ms)}-0"
        own = (g["last-delivered-id"].decode() for g in groups if g["name"] == GROUP.encode())
        last = next(own, "0-0")
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
                if len(orphans) >= count or size_of(orphans) >= self.max_bytes:
                    return orphans[:count]
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
                removed += int(self._scripts["acknowledge"](keys=keys, args=arguments))
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
                reply = self._scripts["delete_consumer"](
                    keys=[stream], args=[GROUP, consumer or self.consumer]
                )
            gone = gone and bool(reply)
        return gone


def _caused_by(error: Exception, *codes: str) -> bool:
    return str(error.__cause__).startswith(codes)
