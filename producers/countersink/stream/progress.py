"""The progress of the queue: how old its oldest entry is, whether entries were lost, and the
heartbeats of processes.

``first_arrived`` returns when the oldest entry arrived, for ``info``, ``/metrics`` and alarms.
``first_sent`` returns the earliest time at which an entry that is now in the queue was first sent,
for the pruning of guards. A stream is ordered by arrival, and an entry that a spool replays today
may have been sent long ago. So the first entry of a stream need not be the entry that was sent
first: :func:`first_sent` reads all.

An entry may leave its stream without being applied, if Redis loses its data or a person trims the
stream. Producers that wait for entries to be applied notice this by ``Epoch``. Workers notice it by
comparing the results of ``samples`` with the previous ones, which they store in MySQL.

Redis counts the entries that were ever added. The script that acknowledges entries counts them,
too, in a hash beside the stream. Nothing was lost as long as three values stay the same: the
server, the consumer group on the stream, and the number of entries that are neither present nor
acknowledged. The time during which they stay the same is one epoch, so if two epochs are equal,
nothing was lost between them. There is one exception: if the stream now ends before an entry that
was stored in it, that entry may be lost although the epochs are equal; see
:meth:`StreamState.reaches`.

Redis before 7.0 does not count the entries that were added, so a trimmed stream is not noticed
there.

``Heartbeat`` writes figures of a process into a hash in Redis, which expires after ``TTL_S``.
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
from countersink.stream.connection import cluster_of, ends, mapped, script
from countersink.stream.errors import Interrupted, StreamError
from countersink.stream.names import GROUP, applied_key, partitions, stream_key, used_partitions

PAGE: Final = 20
"""Entries that Redis reads in one call: about 2 ms if each has 1,000 rows."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The values of a stream that stay the same while entries leave it only by being acknowledged.

    Attributes:
        server: the replication id of the Redis server, which changes with each restart and
            failover.
        group: a random text, set when the consumer group was made; ``''`` if there is no group, or
            if no text was set for it.
        unaccounted: number of entries that were added and are neither present nor acknowledged; may
            be below 0 after the stream was deleted; always 0 before Redis 7.0.
    """

    server: str
    group: str
    unaccounted: int

    def end(self, now: "Epoch") -> str:
        """Return why this epoch of a stream ended, as a text for a producer's log: Redis was
        restarted or another server took over, the stream or its group was deleted, or entries left
        the stream unacknowledged. ``now`` is the stream's present epoch, which must differ from
        this one.
        """
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
        epoch: the stream's epoch.
        first: the stream id of the first entry, or None if the stream is empty.
        last: the highest stream id that Redis has given to an entry of this stream, even if the
            entry has left the stream; ``0-0`` if there was none.
    """

    epoch: Epoch
    first: str | None
    last: str

    def reaches(self, stream_id: str | None) -> bool:
        """Return whether :attr:`last` is ``stream_id`` or later. ``stream_id`` is the id of the
        last entry that a producer stored in the stream; None, for no entry, gives True.

        False means that the stream ends before that entry, which may therefore be lost, even if
        the epoch is the same. With the same epoch, this happens on a replica that lags behind its
        primary (both have the same replication id), or if an older copy of the stream was restored
        from a backup.
        """
        return stream_id is None or order(stream_id) <= order(self.last)


def stream_state(client: redis.Redis, stream: str, *, make: bool = False) -> StreamState:
    """Return the state of a stream. A missing stream counts as empty, with the last id ``0-0``.

    Args:
        client: a client from :func:`countersink.stream.connection.connect`.
        stream: the stream's key.
        make: whether to create the consumer group, at 0, if it is missing, and also the stream if
            that is missing. A new group begins a new epoch, which shows that entries may have been
            lost (see :class:`Epoch`). Without ``make``, nothing is created.

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
    """The oldest and the newest entry of a stream at one moment. From two samples a worker can see
    that the stream was emptied, trimmed or replaced by an older stream in between.

    Attributes:
        life: the random text that was set when the consumer group was made, as in
            :attr:`Epoch.group`; but it stays when the group or the stream is deleted, until a group
            is made again. ``''`` if Redis has no such text.
        length: number of entries in the stream.
        added: number of entries that were ever added; 0 before Redis 7.0.
        entries: the oldest and the newest entry (or the only one), each as the id that Redis gave
            it (stream id) and its entry id of 32 hex digits. Empty for an empty stream.
        gone: entry ids of those entries of the previous sample that are no longer in the stream,
            because they were applied or lost.
    """

    life: str
    length: int
    added: int
    entries: list[list[str]]
    gone: list[str]


def samples(
    client: redis.Redis, before: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, QueueSample]:
    """Return a sample of each stream, as a dict by the stream's key. The streams are those of the
    partitions to which producers send now, and those in ``before``; without a cluster, also those
    of all partitions that were ever used. On a cluster, streams whose master does not answer, or
    refuses, are left out.

    Args:
        client: a client from :func:`countersink.stream.connection.connect`.
        before: maps the key of each stream, including streams that Redis has lost since, to the
            ``entries`` of its previous sample; empty for the first samples. Of these entries, those
            that have left the stream are in ``gone`` of the new sample.

    Raises:
        StreamError: Redis does not answer, or refuses (on a cluster: no node returns the masters);
            or the number of partitions that Redis holds is invalid.
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
    """Return a stream id as a pair that sorts as Redis sorts ids: Unix ms, sequence number."""
    ms, _, sequence = stream_id.partition("-")
    return int(ms), int(sequence or 0)


def first_sent(
    client: redis.Redis,
    streams: Iterable[str],
    *,
    page: int = PAGE,
    stop: Callable[[], bool] = lambda: False,
) -> int | None:
    """Return the earliest time, in Unix ms, at which an entry that is now in ``streams`` was first
    sent; return None if all are empty. The time of an entry is its field ``at`` or the time in its
    stream id, whichever is earlier. An ``at`` that is missing or malformed is ignored. Pending
    entries are included, because an entry stays in its stream until it is acknowledged.

    Args:
        client: a client from :func:`countersink.stream.connection.connect`.
        streams: the keys of the streams.
        page: number of entries that one call reads.
        stop: returns whether to interrupt the search; called before each page.

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
    """Return the time, in Unix ms, at which the oldest entry in ``streams`` arrived (the time in
    its stream id, by the clock of Redis), or None if all are empty.

    Raises:
        StreamError: Redis does not answer, or refuses.
    """
    found = (ends(client, stream) for stream in streams)
    return min((order(first)[0] for first, _ in filter(None, found)), default=None)


TTL_S: Final = 60
"""Seconds without a renewal after which the hash of a heartbeat expires."""
BEAT_S: Final = 1.0
"""Seconds between two renewals of a hash's expiry."""
TIMEOUT_S: Final = 1.0
"""Socket timeout in seconds of clients for heartbeats, short so that they do not delay other
work.
"""


@dataclass(repr=False, eq=False)
class Heartbeat:
    """Writes a process's figures into a hash in Redis, which expires :data:`TTL_S` seconds later.
    The process calls :meth:`publish` again and again. If Redis does not serve or refuses, no method
    raises an error, and :meth:`publish` waits 15 seconds before it tries the next write.

    Three fields are always written: ``pid``, ``host`` and ``updated`` (Unix ms, by the clock of
    this machine).

    Args:
        client: a client with a timeout of :data:`TIMEOUT_S`.
        key: the key of the hash.
        fields: returns the other fields and their values; None is written as an empty value.
        every_s: minimum of seconds between two writes.
    """

    _client: redis.Redis
    _key: str
    _fields: Callable[[], Mapping[str, str | int | float | None]]
    _every_s: float

    def __post_init__(self) -> None:
        self._fixed: dict[str, str | int] = {"pid": os.getpid(), "host": socket.gethostname()}
        self._next = 0.0

    def publish(self, *, now: bool = False) -> None:
        """Write the hash, if ``every_s`` seconds have passed since the last write (15 seconds since
        a write that failed). With ``now``, write it in any case. Otherwise do nothing.
        """
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
        """Context manager: within its block, a thread renews the expiry of the hash every
        :data:`BEAT_S` seconds. So the hash stays while the process waits for MySQL and does not
        call :meth:`publish`. The thread writes no fields, and does not create a missing hash.
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
        """Delete the hash; called when the process ends. Without Redis, it expires later."""
        with suppress(StreamError), mapped():  # else it expires
            self._client.delete(self._key)


def now_ms() -> int:
    """Return the time in Unix ms by this machine's clock."""
    return time.time_ns() // 1_000_000
