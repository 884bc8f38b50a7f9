"""The worker's commands to the consumer group: it reads new entries (``READ_BYTES`` at a time),
makes missing groups, takes over pending entries of dead consumers, finds orphans, acknowledges
entries, and deletes consumers. See ``worker/intake.py`` for how often each is called, and for the
log.

A consumer group can have these faults, each with its remedy:

* The group or the stream is missing, because it was deleted or Redis restarted empty. The group is
  made again at 0, so that no entry is skipped.
* A consumer died with entries pending. :meth:`Group.claim_dead` takes over the entries of a process
  without a heartbeat, :meth:`Group.claim` all entries that are pending for long.
* An entry is an orphan: it is at or before the group's position, so that it is not delivered again,
  and it is pending with no consumer. Either its consumer was deleted, or Redis lost the list of
  pending entries and kept the group's position. :meth:`Group.orphans` finds it.
* A stream id belongs to another entry than the one that was read, because Redis lost that one and
  gave the id again. :meth:`Group.acknowledge` compares the entry ids, and skips the other entry.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

import redis

from countersink.stream.connection import cluster_of, command, mapped, script
from countersink.stream.entry import PAGE_BYTES, Delivery, deliveries, pages, size_of
from countersink.stream.errors import StreamError
from countersink.stream.names import GROUP, applied_key, worker_key
from countersink.stream.progress import order, stream_state

READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes after which a read, a claim or a search for orphans ends. Its last entry may go beyond
this, by up to as many bytes again.
"""
CLAIM_DEAD_EVERY_S: Final = 1.0
"""Seconds between two calls of :meth:`Group.claim_dead`."""
DEAD_S: Final = 3.0
"""Seconds without a renewal of its heartbeat after which a consumer's process counts as dead."""
_PENDING_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Claimed:
    """The entries that :meth:`Group.claim` or :meth:`Group.claim_dead` took over.

    Attributes:
        deliveries: the entries, which are now pending with this consumer.
        lost: stream ids that were pending although their entries had left the stream (XTRIM, XDEL).
            Unless applied before, their counts are lost; the ids are not pending any more.
    """

    deliveries: list[Delivery]
    lost: list[str]


class Group:
    """One consumer in the consumer group, on a set of streams. Not thread-safe.

    Every method but :meth:`claim_dead` raises :class:`~countersink.stream.errors.StreamError` if
    Redis does not answer, or refuses. But a method that has some entries or names already when a
    stream fails returns these instead. Entries that came while :meth:`read` waited are not returned
    after an error; they stay pending until :meth:`claim` returns them.

    Args:
        client: a client from :func:`countersink.stream.connection.connect`.
        streams: the keys of the streams to read; the attribute may be replaced between calls.
        consumer: the name of this consumer, unique for each process.

    Attributes:
        max_bytes: bytes after which a read, a claim or a search for orphans ends.
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
        self._checked = 0.0
        self._turn = 0

    def ensure(self) -> None:
        """Create the streams and the consumer groups that are missing. A new group begins at id 0,
        so that it delivers every entry in its stream. All streams are tried before an error is
        raised.
        """
        failed: StreamError | None = None
        for stream in self.streams:
            try:
                stream_state(self.client, stream, make=True)
            except StreamError as error:
                failed = error
        if failed is not None:
            raise failed

    def read(self, count: int, block_ms: int) -> list[Delivery]:
        """Return up to ``count`` new entries of each stream (one more after a wait), and about
        ``max_bytes`` in all. Wait up to ``block_ms`` for the first entry; 0 means not to wait.

        If a group is missing, make it, and return an empty list. If it cannot be made, read its
        stream from the beginning without a group, and return these entries with those of the other
        streams; if there are none, raise the error. In this case ``max_bytes`` limits each stream.
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
            # A full Redis makes no group, and a key of another type can have none. The other
            # streams must still be read: their entries fill Redis.
            found = [d for stream in self.streams for d in self._read_one(stream, count)]
            if not found:
                raise
            return found
        return []

    def _read(self, streams: Sequence[str], count: int, max_bytes: int) -> list[Delivery]:
        """Return new entries without waiting: up to ``count`` of each stream, about ``max_bytes``
        in all. Each call begins with another stream, so that all get their turn.
        """
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
                    break  # these are pending with us; the next call meets the error
                raise
        return found

    def _page(self, stream: str, count: int, max_bytes: int) -> list[Delivery]:
        arguments: list[str | int] = [GROUP, self.consumer, count, max_bytes]
        with mapped():
            return list(deliveries(stream, self._scripts["read"](keys=[stream], args=arguments)))

    def _wait(self, block_ms: int) -> list[Delivery]:
        """Wait up to ``block_ms`` for a new entry and return it. If several streams have new
        entries then, return one of each. Return an empty list if none came.

        A script cannot block, so XREADGROUP waits for the entry, and returns it in full. It is then
        read again by a script, which cuts a large entry.
        """
        arguments: list[str | int] = ["XREADGROUP", "GROUP", GROUP, self.consumer, "COUNT", 1]
        arguments += ["BLOCK", block_ms, "STREAMS", *self.streams, *([">"] * len(self.streams))]
        found: list[Delivery] = []
        for stream, entries in command(self.client, *arguments) or ():
            for stream_id, _ in entries:
                at = stream_id.decode()
                found += next(pages(self.client, stream.decode(), start=at, end=at), [])
        return found

    def _read_one(self, stream: str, count: int) -> list[Delivery]:
        """Return new entries of one stream, its first entries if it has no group, none if its key
        is no stream. Without a group several workers may read an entry; guards let one count it.
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
        """Take over up to ``count`` entries of each stream, about ``max_bytes`` in all, that are
        pending with any consumer and idle for ``min_idle_ms``. A claim sets an entry's idle time to
        0, so that the next call finds other entries.
        """
        idle = "IDLE", min_idle_ms, "-", "+", count
        return self._take_over(lambda stream: self._pending(stream, *idle))

    def claim_dead(self, count: int) -> Claimed:
        """Take over entries that are pending with consumers whose processes are dead: up to
        ``count`` of each stream and consumer, about ``max_bytes`` in all. If Redis does not answer,
        or refuses, return the entries taken over before, if any. Must be called every
        :data:`CLAIM_DEAD_EVERY_S`, because only several calls show whether a process is dead.

        A live process renews the expiry of its hash ``countersink:worker:CONSUMER`` each second,
        also while it waits for MySQL (:class:`~countersink.stream.progress.Heartbeat`). If it is
        taken for dead all the same, both apply its entries, and guards let only one of them count.
        """

        def of_dead(stream: str) -> dict[bytes, bytes]:
            found = dict[bytes, bytes]()
            for name in dead & pending[stream]:
                found |= self._pending(stream, "-", "+", count, name)
            return found

        with suppress(StreamError):  # on a cluster, the hashes' master may be away
            pending = {stream: self._pending_with(stream) for stream in self.streams}
            dead = self._dead({name for names in pending.values() for name in names})
            if dead:
                return self._take_over(of_dead)
        return Claimed([], [])

    def _pending_with(self, stream: str) -> set[bytes]:
        """Return the names of the other consumers that have pending entries in ``stream``."""
        try:
            _, _, _, consumers = command(self.client, "XPENDING", stream, GROUP)
        except StreamError as error:
            if _caused_by(error, "NOGROUP", "WRONGTYPE"):
                return set()
            raise
        return {name for name, _ in consumers or ()} - {self.consumer.encode()}

    def _pending(self, stream: str, *which: str | bytes | int) -> dict[bytes, bytes]:
        """Return a map from stream id to consumer; ``which``: further arguments of XPENDING."""
        return {row[0]: row[1] for row in command(self.client, "XPENDING", stream, GROUP, *which)}

    def _dead(self, names: Iterable[bytes]) -> set[bytes]:
        """Return the consumers among ``names`` that count as dead: for :data:`DEAD_S` no call of
        this method has seen them renew the expiry of their hash (see :meth:`claim_dead`). The first
        call returns none; so does a call more than two seconds after the last one: it starts anew.
        """
        now = time.monotonic()
        if now - self._checked > 2 * CLAIM_DEAD_EVERY_S:
            self._ends.clear()  # Redis may have been frozen, so that no consumer could renew
        self._checked = now
        before, self._ends = self._ends, {}
        cluster = cluster_of(self.client)
        client = cluster.with_short_timeout if cluster else self.client
        for name in names:
            key = worker_key(name.decode("utf-8", "surrogateescape"))
            left = int(command(client, "PTTL", key))
            ends = now + left / 1000 if left >= 0 else 0.0
            since, known = before.get(name, (now, ends))
            if ends > known + CLAIM_DEAD_EVERY_S / 2:
                since, known = now, ends
            self._ends[name] = since, known
        return {name for name, (since, _) in self._ends.items() if now - since >= DEAD_S}

    def _take_over(self, pending: Callable[[str], dict[bytes, bytes]]) -> Claimed:
        """Take over entries, about ``max_bytes`` in all, and return them. For each stream, the
        function ``pending`` is called with the stream's key. It returns the entries to take, as a
        dict from stream id to consumer; entries that another consumer has by now are skipped.
        """
        claimed = Claimed([], [])

        def take(stream: str) -> bool:
            max_bytes = self.max_bytes - size_of(claimed.deliveries)
            if max_bytes > 0 and (idle := pending(stream)):
                arguments: list[str | bytes | int] = [GROUP, self.consumer, max_bytes]
                arguments += chain.from_iterable(idle.items())
                with mapped():
                    found, lost = self._scripts["claim"](keys=[stream], args=arguments)
                claimed.deliveries.extend(deliveries(stream, found))
                claimed.lost.extend(stream_id.decode() for stream_id in lost)
            return bool(claimed.deliveries or claimed.lost)

        self._for_each_stream(take)
        return claimed

    def _for_each_stream(self, work: Callable[[str], bool]) -> None:
        """Call ``work`` with each stream, also after a key that is no stream. ``work`` returns
        whether it has found anything so far; then no error is raised: the next call meets it. A
        stream without the group is left out: reading makes the group.
        """
        failed, found = list[StreamError](), False
        for stream in self.streams:
            try:
                found = work(stream)
            except StreamError as error:
                if not _caused_by(error, "NOGROUP", "no such key"):
                    failed.append(error)
                    if not _caused_by(error, "WRONGTYPE"):
                        break
        if failed and not found:
            raise failed[-1]

    def orphans(self, min_age_ms: int, count: int) -> list[Delivery]:
        """Return up to ``count`` orphans of each stream, about ``max_bytes`` in all: entries at or
        before the group's position that are pending with no consumer. Only entries older than
        ``min_age_ms`` are returned. If the group's position is ahead of Redis's clock, because the
        clock was set back, their age is unknown, and all are returned.

        They cannot be claimed, because XCLAIM needs a pending entry. The caller applies and
        acknowledges them as any others. If two workers find the same entry, its guard lets only one
        of them count it.
        """
        found = list[Delivery]()

        def find(stream: str) -> bool:
            if size_of(found) < self.max_bytes:
                found.extend(self._orphans_of(stream, min_age_ms, count))
            return bool(found)

        self._for_each_stream(find)
        return found

    def _orphans_of(self, stream: str, min_age_ms: int, count: int) -> list[Delivery]:
        with mapped():
            seconds, microseconds = map(int, self._scripts["clock"](keys=[stream]))
            groups = self.client.xinfo_groups(stream) if self.client.exists(stream) else []
        now = seconds * 1000 + microseconds // 1000
        old = f"{max(0, now - min_age_ms)}-0"
        ours = (g["last-delivered-id"].decode() for g in groups if g["name"] == GROUP.encode())
        last = next(ours, "0-0")
        # Ids ahead of the clock: the clock was set back, so their age is unknown.
        end = last if order(last)[0] > now else min(last, old, key=order)
        if end == "0-0":
            return []
        orphans: list[Delivery] = []
        start = "-"
        while len(orphans) < count:
            # First the pending entries, then the present ones: an acknowledgement removes from both
            # at once, so an entry that is present and was not pending is pending with no consumer.
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
        """Acknowledge applied entries and remove them from their streams. Return how many were
        removed. If a stream id belongs to an entry with another entry id by now, skip it. If the
        entry is gone from the stream, acknowledge its stream id, but do not count it as removed.

        Args:
            applied: for each entry its stream, its stream id, and its entry id of 32 hex digits.
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
        """Return the names of other consumers that, on at least one of the streams, have no pending
        entries and have not read or claimed for ``idle_ms``. They may have pending entries on
        another stream.
        """
        idle = set[str]()

        def find(stream: str) -> bool:
            with mapped():
                consumers = self.client.xinfo_consumers(stream, GROUP)
            still = [c["name"] for c in consumers if c["pending"] == 0 and c["idle"] >= idle_ms]
            idle.update(name.decode("utf-8", "surrogateescape") for name in still)
            idle.discard(self.consumer)
            return bool(idle)

        self._for_each_stream(find)
        return sorted(idle)

    def delete_consumer(self, consumer: str | None = None) -> bool:
        """Delete a consumer, by default this one, from the group of every stream where it has no
        pending entries. Return True if no stream's group has it now, also if none ever had.
        """
        deleted = True
        for stream in self.streams:
            with mapped():
                reply = self._scripts["delete_consumer"](
                    keys=[stream], args=[GROUP, consumer or self.consumer]
                )
            deleted = deleted and bool(reply)
        return deleted


def _caused_by(error: Exception, *codes: str) -> bool:
    return str(error.__cause__).startswith(codes)
