"""A producer's connection to Redis: pauses before it is tried again, when a stream that is too long
holds entries back, log lines about that, and whether stored entries were applied (``Trail``); where
entries go while a master of a cluster does not take them: ``PartitionRoute`` in
``stream/names.py``."""

import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import redis

from countersink.producers.options import Options
from countersink.producers.outbox import Parcel
from countersink.runtime.log import Log
from countersink.runtime.members import Salt
from countersink.runtime.retry import Backoff
from countersink.stream.clock import RedisClock
from countersink.stream.connection import cluster_of, connect, mapped
from countersink.stream.errors import StreamError, StreamMisconfigured, translate
from countersink.stream.names import PartitionRoute, note_use, salts_of, stream_key
from countersink.stream.progress import Epoch, look, order

HELD_BACK_SECONDS: Final = 1.0
_OLDER: Final = (
    "Redis is older than what was stored there: a replica that lags behind, or a copy put back"
)


class RedisLink:
    """One connection, used by one thread; only the attributes and :meth:`abort` are for others.

    Attributes:
        connected: Redis answered the last time.
        held_back: it answered, but its stream is longer than it may get.
        failures: failed attempts so far, to connect or to send.
        last_error: the last failure's text, without passwords.
        trail: told of each entry that this process has stored.
    """

    def __init__(self, url: str, options: Options, clock: RedisClock, log: Log) -> None:
        self.connected = False
        self.held_back = False
        self.failures = 0
        self.last_error: str | None = None
        self.trail = Trail(log)
        self._url = url
        self._socket_timeout = options.socket_timeout
        self._max_length = options.max_stream_length
        self._clock = clock
        self._log = log
        self._client: redis.Redis | None = None
        self._route = PartitionRoute()
        self._backoff = Backoff()
        self._not_before = 0.0
        self._aborted = False

    @property
    def usable(self) -> bool:
        """Whether the last thing known is that entries can be sent."""
        return self.connected and not self.held_back

    def seconds_to_next_try(self) -> float:
        """Seconds until :meth:`ready` will try again."""
        return max(0.0, self._not_before - time.monotonic())

    def try_now(self) -> None:
        """Let the next :meth:`ready` try at once. From any thread."""
        if not self.held_back:
            self._not_before = 0.0

    def ready(self) -> bool:
        """Connect if needed and due; whether entries can be sent now."""
        if time.monotonic() < self._not_before:
            return False
        try:
            client = self._client
            if client is None or not self.connected:
                client = self._connect()
            if self._route.return_home(client):
                self._begin(client)
            if self._clock.stale():
                self._clock.learn(client, self._route.stream)
            if self.held_back:
                self._measure(client)
        except StreamError as error:
            self._fail(error)
        return self.usable

    def send(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Send stamped parcels; those that Redis stored. Never raises for a failure of Redis."""
        client = self._client
        if client is None:
            return []
        try:
            delivery = deliver(client, self._route.partition, parcels)
        except StreamError as error:
            for parcel in parcels:
                parcel.in_doubt = True
            self._fail(error)
            return []
        if delivery.last_id is not None:
            self.trail.stored(self._route.stream, delivery.last_id)
        if delivery.error is not None:
            self._fail(delivery.error)
        else:
            self._judge(delivery.length)
        return delivery.stored

    def salts(self, counters: Sequence[str]) -> dict[str, list[Salt]] | None:
        """The salts of these counters; None: Redis did not tell. What is damaged is as missing."""
        client = self._client
        if client is None:
            return None
        try:
            return salts_of(client, self._route.stream, counters)
        except StreamError as error:
            self._fail(error)
            return None

    def abort(self) -> None:
        """Break the connection, so that a call that hangs in it fails at once. From any thread."""
        self._aborted = True
        client = self._client
        if client is not None:
            client.connection_pool.disconnect()

    def close(self) -> None:
        """Hang up."""
        client, self._client = self._client, None
        self.connected = False
        if client is not None:
            # Nothing is lost with a connection that cannot even be closed.
            with suppress(redis.RedisError, OSError):
                client.close()

    def _connect(self) -> redis.Redis:
        client = self._client if cluster_of(self._client) is not None else None
        if client is None:
            self.close()  # what an attempt that ended in an unexpected exception has left
            client = connect(
                self._url, socket_timeout=self._socket_timeout, client_name="countersink-producer"
            )
            self._client = client  # from here on, abort() can break it off
        self._route.find(client)
        self._begin(client)
        return client

    def _begin(self, client: redis.Redis) -> None:
        """Send to the route's partition from now on."""
        self._clock.learn(client, self._route.stream)
        self.trail.follow(client, self._route.stream)
        if self.failures and not self.connected:
            self._log("connected", "Redis answers again")
        self.connected = True
        self._backoff = Backoff()
        self._measure(client)

    def _measure(self, client: redis.Redis) -> None:
        with mapped():
            self._judge(int(client.xlen(self._route.stream)))

    def _judge(self, length: int) -> None:
        """Hold entries back while the stream is too long."""
        if length > self._max_length:
            self.held_back = True
            self.last_error = (
                f"{self._route.stream} has {length} entries; at most {self._max_length} may wait"
            )
            self._not_before = time.monotonic() + HELD_BACK_SECONDS * random.uniform(0.5, 1.5)
            self._log.seldom("held_back", str(self.last_error))
        else:
            self.held_back = False

    def _fail(self, error: StreamError) -> None:
        self.failures += 1
        self.last_error = str(error)
        client = self._client
        if client is not None and not self._aborted and self._route.leave(client, error) is None:
            # A cluster's client: it knows which masters are there.
            self.connected = self.held_back = False
            self._not_before = 0.0
            self._log.seldom("unavailable", f"{error}; rows go to {self._route.stream} instead")
            return
        self._not_before = time.monotonic() + self._backoff.pause_s()
        if not self._aborted:
            self._log.seldom("unavailable", f"{error}; rows wait in memory")
        self.close()


@dataclass(frozen=True, slots=True)
class SendResult:
    """What Redis replied to a pipeline of entries: how many are stored, length of the stream,
    error.

    Attributes:
        stored: the parcels it acknowledged.
        last_id: the stream id of the last of them, ``None`` if there are none.
        length: entries in the stream afterwards.
        error: why the others, or the question for the length, were refused.
    """

    stored: list[Parcel]
    last_id: str | None
    length: int
    error: StreamError | None


def deliver(client: redis.Redis, partition: int, parcels: Sequence[Parcel]) -> SendResult:
    """XADD every parcel to the partition's stream, and ask for its length, in one pipeline without
    a transaction.

    Raises:
        StreamError: the connection failed, or the partition could not be noted; any of the parcels
            may have arrived, so all are to be sent again as they are.
    """
    stream = stream_key(partition)
    with mapped(), client.pipeline(transaction=False) as pipe:
        # First, so that no entry is stored where nobody looks. Of a cluster nothing needs noting.
        note_use(pipe, partition)
        for parcel in parcels:
            pipe.xadd(stream, parcel.sealed().fields())
        pipe.xlen(stream)
        *replies, length = pipe.execute(raise_on_error=False)
    answers = replies[len(replies) - len(parcels) :]
    for note in replies[: len(replies) - len(parcels)]:
        if isinstance(note, Exception):  # what was stored may lie where nobody looks
            raise translate(note) from note
    stored: list[Parcel] = []
    last_id: str | None = None
    error: StreamError | None = None
    for parcel, answer in zip(parcels, answers, strict=True):
        if isinstance(answer, Exception):
            error = translate(answer)
        else:
            stored.append(parcel)
            last_id = answer.decode() if isinstance(answer, bytes) else str(answer)
    if isinstance(length, Exception) and error is None:
        error = translate(length)  # unknown, which is not 0: nothing says that more may be sent
    return SendResult(stored, last_id, length if isinstance(length, int) else 0, error)


@dataclass(frozen=True, slots=True)
class StoredMark:
    """A point in the streams up to which a process had stored entries.

    Attributes:
        ends: stream → id of the last entry stored there, unless all up to it is known to be
            applied; and the epoch in which the entries up to it were stored, None: not known.
        since: how many breaks of the trail there had been when its waiting began.
    """

    ends: Mapping[str, tuple[str, Epoch | None]]
    since: int


class Trail:
    """Follows what a process stores, from before the first entry until it is applied.

    Workers acknowledge what they have applied, or laid aside. An entry that is gone from its stream
    was acknowledged only if nothing else took entries away: see :mod:`countersink.stream.progress`.
    Where that cannot be known, it is said, once, and what is stored from then on is followed anew.

    The send thread writes, any thread asks; without a lock, since a signal handler may flush:
    each step leaves it such that at worst less is known than could be.

    Attributes:
        told: the :attr:`breaks` that somebody was told of by :meth:`tell`.

    Args:
        log: where it is said that the trail was lost.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ends: dict[str, str] = {}
        self._applied: dict[str, str] = {}
        self._epochs: dict[str, Epoch | None] = {}
        self._breaks: list[str] = []  # appending is one step
        self.told = 0

    @property
    def breaks(self) -> int:
        """How often it could not be known any more what became of entries stored before."""
        return len(self._breaks)

    def tell(self) -> None:
        """Say that what is waited for is not known to be applied; the next one asks for what came
        since.
        """
        told, self.told = self.told, self.breaks
        if self.told > told:
            self._log(
                "not_known",
                f"whether all that was stored is in MySQL is not known: {self._breaks[-1]}",
                level=logging.WARNING,
            )

    def follow(self, client: redis.Redis, stream: str) -> None:
        """Look at ``stream`` before entries are stored there over a new connection.

        Raises:
            StreamUnavailable: Redis did not answer.
        """
        end = self._ends.get(stream)
        before = self._epochs.get(stream)
        epoch: Epoch | None = None
        reached = False
        try:
            now = look(client, stream, make=True)
            epoch, reached = now.epoch, now.reaches(end)
            why = "it was not known at first"
            if before is not None:
                why = _OLDER if epoch == before else before.end(epoch)
        except StreamMisconfigured as error:
            why = f"{error}; the rights that are needed are in ops/redis/users.acl"
        if end is not None and end != self._applied.get(stream):
            if reached and epoch == before:
                return
            self._breaks.append(why)  # before the new epoch can be seen
            self._applied[stream] = end  # or lost: what comes after it is followed
        self._epochs[stream] = epoch

    def stored(self, stream: str, stream_id: str) -> None:
        """An entry was stored."""
        self._ends[stream] = stream_id

    def mark(self, since: int) -> StoredMark:
        """Where what was stored ends now; ``since``: :attr:`breaks` or :attr:`told`, before it was
        stored.
        """
        ends = {
            stream: (end, self._epochs.get(stream))
            for stream, end in self._ends.copy().items()
            if end != self._applied.get(stream)
        }
        return StoredMark(ends, since)

    def applied(self, client: redis.Redis, marks: Sequence[StoredMark]) -> list[bool | None]:
        """For each mark whether all up to it is applied; None: that is not known, and will not be.

        False as long as something is not, and where Redis does not tell.
        """
        latest: dict[str, str] = {}
        for mark in marks:
            for stream, (end, _) in mark.ends.items():
                latest[stream] = max(latest.get(stream, "0-0"), end, key=order)
        # One look at each stream for all marks: the first entry tells.
        found = {stream: self._first(client, stream) for stream in latest}
        return [self._verdict(mark, found) for mark in marks]

    def _first(self, client: redis.Redis, stream: str) -> tuple[Epoch | None, str | None] | None:
        """The epoch and the first entry's id; None: Redis does not tell."""
        end = self._ends.get(stream)
        try:
            try:
                now = look(client, stream)
            except StreamMisconfigured:
                now = None
            if now is None or now.epoch != self._epochs.get(stream) or not now.reaches(end):
                self.follow(client, stream)
        except StreamError:
            return None
        return (None, None) if now is None else (now.epoch, now.first)

    def _verdict(
        self, mark: StoredMark, found: Mapping[str, tuple[Epoch | None, str | None] | None]
    ) -> bool | None:
        verdict: bool | None = True
        for stream, (end, epoch) in mark.ends.items():
            told = found[stream]
            if told is None:
                verdict = False
                continue
            now, first = told
            if epoch is None or now != epoch:
                return None
            if first is not None and order(first) <= order(end):
                verdict = False
        if self.breaks > mark.since:
            return None
        if verdict:
            self._applied |= {stream: end for stream, (end, _) in mark.ends.items()}
        return verdict
