"""The progress of the queue: the time at which its oldest entry arrived (``first_arrived``, for
``info``, ``/metrics`` and alarms) or was first sent (``first_sent``, for pruning); whether entries
that left a stream were applied or lost (``Epoch`` for waiting producers, ``samples`` for workers,
which keep them in MySQL); heartbeats of processes (``Heartbeat``) and their expiry (``TTL_S``).

A stream is ordered by arrival. An entry that a spool replays arrives today and was first sent long
ago, so the first entry need not be the one that was sent first: :func:`first_sent` reads all.

An entry may leave its stream without being applied: Redis came back empty, or a person trimmed the
stream. So the acknowledging script counts entries, in a hash beside the stream, and Redis counts
added entries. Nothing was lost as long as the same server has the same group on the stream, and the
number of entries that are neither present nor acknowledged stays the same. That is one epoch: if
two epochs are equal, nothing was lost between them. A server whose stream ends before an entry says
nothing about it: see :meth:`StreamState.reaches`.

Redis before 7.0 does not count added entries: there a trimmed stream is not noticed.
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

from countersink.runtime.texts import plural
from countersink.stream.connection import cluster_of, mapped
from countersink.stream.entry import ends, script
from countersink.stream.errors import Interrupted, StreamError
from countersink.stream.names import GROUP, applied_key, partitions, stream_key, used_partitions

PAGE: Final = 20
"""Entries that Redis reads per call: about 2 ms if they have 1,000 rows each."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The figures of a stream that stay the same while entries leave it only by acknowledgement.

    Attributes:
        server: the replication id of the Redis server; changes with each restart and failover.
        group: random text, set when the consumer group was made; empty: there is no group.
        unaccounted: entries that were added, and are neither present nor acknowledged; below 0 if
            the stream was deleted.
    """

    server: str
    group: str
    unaccounted: int

    def end(self, now: "Epoch") -> str:
        """The reason why this epoch ended and ``now`` began: a clause for people."""
        if now.server != self.server:
            return "Redis was restarted, or another server took over"
        if now.group != self.group:
            return "the stream or its consumer group was deleted"
        return (
            f"{plural(abs(now.unaccounted - self.unaccounted), 'entry', 'entries')} left the stream"
            " unacknowledged: by XTRIM or XDEL, or by a worker of an older version"
        )


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a stream at one moment.

    Attributes:
        epoch: its epoch.
        first: the stream id of the first entry; None: the stream is empty.
        last: the last stream id that Redis gave in this stream.
    """

    epoch: Epoch
    first: str | None
    last: str

    def reaches(self, stream_id: str | None) -> bool:
        """Whether the stream's last id is ``stream_id`` or later; True for None. False on a replica
        that lags behind (it has its primary's replication id), and for a restored older stream.
        """
        return stream_id is None or order(stream_id) <= order(self.last)


def stream_state(client: redis.Redis, stream: str, *, make: bool = False) -> StreamState:
    """The state of a stream.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        stream: the stream's key.
        make: make a missing stream and consumer group, at 0; an epoch begins with the group.

    Raises:
        StreamError: Redis does not answer, or refuses.
    """
    epoch_script = client.register_script(script("epoch"))
    arguments = [GROUP, os.urandom(8).hex() if make else ""]
    with mapped():
        reply = epoch_script(keys=[stream, applied_key(stream)], args=arguments)
    server, group, unaccounted, first, last = reply
    epoch = Epoch(server.decode(), group.decode(), int(unaccounted))
    return StreamState(epoch, None if first is None else first.decode(), last.decode())


@dataclass(slots=True)
class QueueSample:
    """The oldest and the newest entry of a stream, by which a later sample shows that the stream
    was emptied, trimmed or replaced by an older one.

    Attributes:
        life: the random text set when the consumer group was made; empty: there is no group.
        length: entries in the stream.
        added: entries that were ever added; 0 before Redis 7.0.
        entries: the oldest and the newest, or the only one: stream id, and entry id of 32 hex
            digits.
        gone: entry ids of the previous sample that are no longer in the stream: they were applied,
            or lost.
    """

    life: str
    length: int
    added: int
    entries: list[list[str]]
    gone: list[str]


def samples(
    client: redis.Redis, before: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, QueueSample]:
    """The samples of all streams, by stream; on a cluster, of those whose masters answer.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        before: the entries of the previous samples, by stream; includes streams that Redis lost.

    Raises:
        StreamError: Redis does not answer, or refuses; on a cluster: no node returns its masters.
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
    """The sort key of a stream id, for the order of Redis: Unix ms and sequence number."""
    ms, _, sequence = stream_id.partition("-")
    return int(ms), int(sequence or 0)


def first_sent(
    client: redis.Redis,
    streams: Iterable[str],
    *,
    page: int = PAGE,
    stop: Callable[[], bool] = lambda: False,
) -> int | None:
    """Unix ms of the earliest first attempt to send of any entry in ``streams``; None: all are
    empty. Includes pending entries, which stay in their stream until they are acknowledged.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        streams: the streams' keys.
        page: entries per call.
        stop: returns true to interrupt; called between two pages.

    Raises:
        Interrupted: ``stop`` returned true.
        StreamError: Redis does not answer, or refuses.
    """
    oldest_script = client.register_script(script("oldest"))
    oldest: int | None = None
    for stream in streams:
        start = "-"
        found = page
        while found == page:
            if stop():
                raise Interrupted("stopped before the oldest entry was found")
            with mapped():
                reply = oldest_script(keys=[stream], args=[start, page])
            found = int(reply[0])
            if found:
                sent = int(reply[1])
                oldest = sent if oldest is None else min(oldest, sent)
                start = f"({reply[2].decode()}"
    return oldest


def first_arrived(client: redis.Redis, streams: Iterable[str]) -> int | None:
    """Unix ms at which the oldest entry in ``streams`` arrived; None: all are empty.

    Raises:
        StreamError: Redis does not answer, or refuses.
    """
    found = (ends(client, stream) for stream in streams)
    return min((order(first)[0] for first, _ in filter(None, found)), default=None)


TTL_S: Final = 60
"""Seconds until the hash of a heartbeat expires."""
BEAT_S: Final = 1.0
"""Seconds between two renewals of the expiry."""
TIMEOUT_S: Final = 1.0
"""Socket timeout for heartbeats, in seconds: they must not delay other work."""


@dataclass(repr=False, eq=False)
class Heartbeat:
    """The hash of a process in Redis, written at most every ``every_s`` seconds; never raises for
    Redis, never tries again.

    Fields besides the given ones: ``pid``, ``host``, ``updated`` (Unix ms).

    Args:
        client: a client with a short timeout, see :data:`TIMEOUT_S`.
        key: the hash's key.
        fields: returns the other fields; None becomes an empty value.
        every_s: seconds between two writes.
    """

    _client: redis.Redis
    _key: str
    _fields: Callable[[], Mapping[str, str | int | float | None]]
    _every_s: float

    def __post_init__(self) -> None:
        self._fixed: dict[str, str | int] = {"pid": os.getpid(), "host": socket.gethostname()}
        self._next = 0.0

    def publish(self, *, now: bool = False) -> None:
        """Write the hash if it is due; ``now``: in any case."""
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
            # Only figures: the code that needs Redis notices and logs its errors.
            self._next = clock + TTL_S / 4

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the hash's expiry each :data:`BEAT_S` inside the block, on a thread of its own:
        also while the process waits for MySQL.
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
        """Remove the hash, at the end of the process."""
        with suppress(StreamError), mapped():  # else it expires
            self._client.delete(self._key)


def now_ms() -> int:
    """Unix ms on this machine's clock."""
    return time.time_ns() // 1_000_000
