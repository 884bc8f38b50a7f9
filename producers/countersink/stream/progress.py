"""When the oldest entry of the queue has arrived (``first_arrived``, for ``info``, ``/metrics`` and
alarms) or was first sent (for pruning), and whether entries that left a stream were applied or
lost, with the sentences that say how (``samples``, which workers keep in MySQL, for losses that
nobody waits for); and heartbeats of processes: when they expire (``TTL_S``).

A stream is ordered by arrival. What a spool replays arrives today and was first sent long ago, so
the first entry need not be the one that was sent first: :func:`first_sent` looks at all of them.

That an entry is no longer in its stream does not say that a worker has applied it: Redis may have
come back empty, or somebody trimmed the stream. So the acknowledging script counts, in a hash
beside the stream, and Redis counts what was ever added. As long as the same server holds the same
group on the stream, and what was added is what is there and what was acknowledged, nothing got
lost: that is one epoch, and two of them are equal or something happened in between. A server that
is older than an entry says nothing of it: see :meth:`Look.reaches`.

Redis before 7.0 does not count what was added: there a trimmed stream goes unnoticed.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import redis

from countersink.stream.connection import cluster_of, mapped
from countersink.stream.entry import ends, script
from countersink.stream.errors import Interrupted, StreamError
from countersink.stream.names import (
    GROUP,
    applied_key,
    partitions,
    stream_key,
    used_partitions,
)

PAGE: Final = 20
"""Entries that Redis looks at per call, which keeps it for about 2 ms if they are full flushes."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What stays the same for as long as entries leave a stream by acknowledgement alone.

    Attributes:
        server: the replication id of the Redis server: another one after each restart and failover.
        group: random, given to the consumer group when it was made; empty if there is none.
        unaccounted: entries that were added, and are neither there nor acknowledged; less than 0
            where the stream was deleted.
    """

    server: str
    group: str
    unaccounted: int

    def end(self, now: "Epoch") -> str:
        """What ended this epoch, the one at the moment being ``now``: a clause for people."""
        if now.server != self.server:
            return "Redis was started anew, or another server took over"
        if now.group != self.group:
            return "the stream or its consumer group was deleted"
        return (
            f"{abs(now.unaccounted - self.unaccounted)} entries left the stream without the mark of"
            " having been applied: by XTRIM or XDEL, or by a worker of an older version"
        )


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a stream.

    Attributes:
        epoch: at that moment.
        first: the stream id of the first entry; None if it is empty.
        last: the last stream id that was given there.
    """

    epoch: Epoch
    first: str | None
    last: str

    def reaches(self, stream_id: str | None) -> bool:
        """Whether the stream has ever got as far as ``stream_id``. A replica that lags behind, of
        the same replication id as its primary, has not, nor has an older stream put back.
        """
        return stream_id is None or order(stream_id) <= order(self.last)


def look(client: redis.Redis, stream: str, *, make: bool = False) -> Look:
    """Look at ``stream``.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        stream: its key.
        make: make the stream and its consumer group, at 0, where they are missing: an epoch begins
            with them.

    Raises:
        StreamError: Redis did not do its part.
    """
    look_there = client.register_script(script("epoch"))
    arguments = [GROUP, os.urandom(8).hex() if make else ""]
    with mapped():
        reply = look_there(keys=[stream, applied_key(stream)], args=arguments)
    server, group, unaccounted, first, last = reply
    epoch = Epoch(server.decode(), group.decode(), int(unaccounted))
    return Look(epoch, None if first is None else first.decode(), last.decode())


@dataclass(slots=True)
class QueueSample:
    """The oldest and the newest entry that wait in a stream, by which a later look finds out that
    the stream was emptied, trimmed or replaced by an older one.

    Attributes:
        life: what the consumer group was named when it was made; empty if there is none.
        length: entries that wait.
        added: entries that were ever added; 0 before Redis 7.0.
        entries: the oldest and the newest, or the only one: stream id, and entry id of 32 hex
            digits.
        gone: entry ids, of the sample before, that are not in the stream any more: they were
            applied, or got lost.
    """

    life: str
    length: int
    added: int
    entries: list[list[str]]
    gone: list[str]


def samples(
    client: redis.Redis, before: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, QueueSample]:
    """A sample of each stream; of a cluster, of those whose masters answer.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        before: the entries of the samples before, by stream: Redis may have forgotten a stream.

    Raises:
        StreamError: Redis did not do its part; of a cluster, no node tells where streams lie.
    """
    cluster = cluster_of(client)
    used = used_partitions(client) if cluster is None else range(partitions(client))
    found: dict[str, QueueSample] = {}
    away: set[object] = set()
    for stream in sorted({stream_key(number) for number in used} | before.keys()):
        with mapped():
            master = None if cluster is None else cluster.master_of(stream)
        if master in away:
            continue
        try:
            found[stream] = _sample(client, stream, before.get(stream, ()))
        except StreamError:
            if cluster is None:
                raise
            away.add(master)
    return found


def _sample(client: redis.Redis, stream: str, before: Sequence[Sequence[str]]) -> QueueSample:
    arguments = list(chain.from_iterable(before))
    with mapped():
        reply = client.register_script(script("sample"))(keys=[stream], args=arguments)
        life: Any = client.hget(applied_key(stream), "group")
    length, added, flat, gone = reply
    ids = [each.decode() for each in flat]
    entries = [list(pair) for pair in zip(ids[::2], ids[1::2], strict=True)]
    named = "" if life is None else life.decode()
    return QueueSample(named, length, added, entries, [each.decode() for each in gone])


def order(stream_id: str) -> tuple[int, int]:
    """A key by which stream ids sort as Redis sorts them."""
    ms, _, sequence = stream_id.partition("-")
    return int(ms), int(sequence or 0)


def first_sent(
    client: redis.Redis,
    streams: Iterable[str],
    *,
    page: int = PAGE,
    stop: Callable[[], bool] = lambda: False,
) -> int | None:
    """Unix ms of the earliest first attempt to send of any entry in ``streams``; None if all are
    empty.

    An entry that is pending with a consumer, dead or alive, is still in its stream until it is
    acknowledged.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        streams: their keys.
        page: entries per call.
        stop: asked between two calls.

    Raises:
        Interrupted: ``stop`` said so.
        StreamError: Redis did not do its part.
    """
    look = client.register_script(script("oldest"))
    oldest: int | None = None
    for stream in streams:
        start = "-"
        found = page
        while found == page:
            if stop():
                raise Interrupted("stopped while looking for the oldest entry")
            with mapped():
                reply = look(keys=[stream], args=[start, page])
            found = int(reply[0])
            if found:
                sent = int(reply[1])
                oldest = sent if oldest is None else min(oldest, sent)
                start = f"({reply[2].decode()}"
    return oldest


def first_arrived(client: redis.Redis, streams: Iterable[str]) -> int | None:
    """Unix ms at which the entry that has waited longest in ``streams`` arrived; None if all are
    empty.

    Raises:
        StreamError: Redis did not do its part.
    """
    found = (ends(client, stream) for stream in streams)
    return min((order(first)[0] for first, _ in filter(None, found)), default=None)


TTL_S: Final = 60
"""Seconds after which a process that says nothing counts as gone."""
BEAT_S: Final = 1.0
"""Seconds between two signs of life."""
TIMEOUT_S: Final = 1.0
"""Seconds that Redis has for it: it is not worth waiting for."""


@dataclass(repr=False, eq=False)
class Heartbeat:
    """Writes the hash at most every ``every_s`` seconds; never raises, never repeats.

    Fields besides those given: ``pid``, ``host``, ``updated`` (Unix ms).

    Args:
        client: with a short time-out, see :data:`TIMEOUT_S`.
        key: of the hash.
        fields: what else it says; of None the hash has an empty value.
        every_s: seconds between two.
    """

    _client: redis.Redis
    _key: str
    _fields: Callable[[], Mapping[str, str | int | float | None]]
    _every_s: float

    def __post_init__(self) -> None:
        self._fixed: dict[str, str | int] = {"pid": os.getpid(), "host": socket.gethostname()}
        self._next = 0.0

    def publish(self, *, now: bool = False) -> None:
        """Write the hash if it is due, or ``now``."""
        clock = time.monotonic()
        if clock < self._next and not now:
            return
        self._next = clock + self._every_s
        fields: dict[Any, Any] = self._fixed | {"updated": now_ms()}
        fields |= {n: "" if value is None else value for n, value in self._fields().items()}
        try:
            with mapped():
                pipeline = self._client.pipeline(transaction=False)
                pipeline.hset(self._key, mapping=fields)
                pipeline.expire(self._key, TTL_S)
                pipeline.execute()
        except StreamError:
            # Figures only: whatever ails Redis is noticed, and said, where it is needed.
            self._next = clock + TTL_S / 4

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put off the end of the hash each :data:`BEAT_S`, from a thread of its own: a process
        lives also while it waits for MySQL.
        """
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_S):
                with suppress(StreamError), mapped():
                    self._client.expire(self._key, TTL_S)

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def withdraw(self) -> None:
        """Remove the hash: the process ends."""
        with suppress(StreamError), mapped():  # it expires
            self._client.delete(self._key)


def now_ms() -> int:
    """Unix ms on this machine's clock."""
    return time.time_ns() // 1_000_000
