"""Class ``RedisLink``, a producer's connection to Redis: pauses between attempts, the limit on the
stream's length, log lines about both; and ``Trail``, which finds out whether stored entries were
applied.

``PartitionRoute`` in ``stream/names.py`` chooses another partition while a master is away.
"""

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
from countersink.stream.connection import cluster_of, connect, mapped
from countersink.stream.entry import RedisClock
from countersink.stream.errors import StreamError, StreamMisconfigured, translate
from countersink.stream.names import PartitionRoute, note_use, salts_of, stream_key
from countersink.stream.progress import Epoch, order, stream_state

HELD_BACK_SECONDS: Final = 1.0
"""Mean of seconds between checks of the length of a stream that is too long."""
_OLDER: Final = "Redis lacks stored entries: it is a replica that lags behind, or a restored copy"


class RedisLink:
    """A producer's connection to Redis. One thread at a time uses it; other threads may only read
    the attributes and call the methods marked "From any thread".

    Attributes:
        connected: whether Redis accepted the last command.
        held_back: whether nothing is sent because the stream is longer than ``max_stream_length``.
        failures: number of failed attempts to connect, to send or to read.
        last_error: message of the last failure or too long stream, without passwords, or None.
        trail: finds out when the entries that this process has stored are applied."""

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
        self._backoff: Backoff | None = None  # None where Redis took the last entries
        self._not_before = 0.0
        self._aborted = False

    @property
    def usable(self) -> bool:
        """Whether Redis accepted the last command and the stream is within its limit."""
        return self.connected and not self.held_back

    def seconds_to_next_try(self) -> float:
        """Return the seconds left of the pause in which :meth:`ready` does not contact Redis, after
        a failure or while the stream is too long; 0.0 outside a pause. From any thread."""
        return max(0.0, self._not_before - time.monotonic())

    def try_now(self) -> None:
        """End the pause after a failure, unless the stream is too long. From any thread."""
        if not self.held_back:
            self._not_before = 0.0

    def ready(self) -> bool:
        """Connect if necessary. Return whether entries can be sent; False during a pause, if Redis
        fails (no error is raised), or if the stream is too long."""
        if time.monotonic() < self._not_before:
            return False
        try:
            client = self._client
            if client is None or not self.connected:
                client = self._connect()
            if self._route.return_home(client):
                self._use_route(client)
            if self._clock.stale():
                self._clock.learn(client, self._route.stream)
            if self.held_back:
                self._measure(client)
        except StreamError as error:
            self._fail(error)
        return self.usable

    def send(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Send parcels, whose ``at`` (time of the first attempt) is set. Return those that Redis
        has stored. If :func:`deliver` raises, all become ``in_doubt``, and the result is []."""
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
            if self._backoff is not None:
                self._log("connected", "Redis accepts entries again")
            self._backoff = None
            self._check_length(delivery.length)
        return delivery.stored

    def salts(self, counters: Sequence[str]) -> dict[str, list[Salt]] | None:
        """Return the salts of each counter (an empty list if there are none, or if they are
        damaged); or None without a connection, or if Redis did not answer or refused."""
        client = self._client
        if client is None:
            return None
        try:
            return salts_of(client, self._route.stream, counters)
        except StreamError as error:
            self._fail(error)
            return None

    def abort(self) -> None:
        """Break the connection, so that a call that waits for Redis fails. From any thread."""
        self._aborted = True
        client = self._client
        if client is not None:
            client.connection_pool.disconnect()

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        self.connected = False
        if client is not None:
            # An error of closing loses nothing.
            with suppress(redis.RedisError, OSError):
                client.close()

    def _connect(self) -> redis.Redis:
        client = self._client if cluster_of(self._client) is not None else None
        if client is None:
            self.close()  # left open by an attempt that raised an unexpected exception
            client = connect(
                self._url, socket_timeout=self._socket_timeout, client_name="countersink-producer"
            )
            self._client = client  # from here on, abort() can break the connection
        self._route.find(client)
        self._use_route(client)
        return client

    def _use_route(self, client: redis.Redis) -> None:
        """Prepare sending to the partition of ``_route``: read its server's clock, and its stream's
        epoch and length. Raise StreamError if that fails."""
        self._clock.learn(client, self._route.stream)
        self.trail.follow(client, self._route.stream)
        self.connected = True
        self._measure(client)

    def _measure(self, client: redis.Redis) -> None:
        with mapped():
            self._check_length(int(client.xlen(self._route.stream)))

    def _check_length(self, length: int) -> None:
        """Stop sending, with a pause of about 1 s until :meth:`ready` reads the length again, if
        the stream's ``length`` is above the limit; otherwise allow sending."""
        if length > self._max_length:
            self.held_back = True
            self.last_error = (
                f"{self._route.stream} has {length} entries; the limit is {self._max_length}"
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
            # The client of a cluster is kept: it knows the masters.
            self.connected = self.held_back = False
            self._not_before = 0.0
            self._log.seldom("unavailable", f"{error}; rows go to {self._route.stream} instead")
            return
        self._backoff = self._backoff or Backoff()
        self._not_before = time.monotonic() + self._backoff.pause_s()
        if not self._aborted:
            self._log.seldom("unavailable", f"{error}; rows wait in memory")
        self.close()


@dataclass(frozen=True, slots=True)
class SendResult:
    """Redis's answer to entries that were sent in one pipeline.

    Attributes:
        stored: the parcels that Redis has stored.
        last_id: the stream id of the last stored parcel; ``None`` where no parcel was stored.
        length: number of entries in the stream afterwards; 0 where it is unknown.
        error: the error of the last parcel that was not stored, or else of the command for the
            length; ``None`` where there was no error."""

    stored: list[Parcel]
    last_id: str | None
    length: int
    error: StreamError | None


def deliver(client: redis.Redis, partition: int, parcels: Sequence[Parcel]) -> SendResult:
    """Send parcels by XADD to the partition's stream, then XLEN, in one pipeline without MULTI.
    Return Redis's answers. If Redis refuses some parcels, the last error is in the result, not
    raised.

    Raises:
        StreamError: the connection failed, or the partition could not be added to the list of used
            partitions, which workers read. Some parcels may be stored, so all must be sent again
            unchanged."""
    stream = stream_key(partition)
    with mapped(), client.pipeline(transaction=False) as pipe:
        # First: workers read noted partitions only. Partitions of a cluster need no note.
        note_use(pipe, partition)
        for parcel in parcels:
            pipe.xadd(stream, parcel.sealed().fields())
        pipe.xlen(stream)
        *replies, length = pipe.execute(raise_on_error=False)
    answers = replies[len(replies) - len(parcels) :]
    for note in replies[: len(replies) - len(parcels)]:
        if isinstance(note, Exception):  # the entries may be in a stream that no worker reads
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
        error = translate(length)  # an unknown length must not pass for 0
    return SendResult(stored, last_id, length if isinstance(length, int) else 0, error)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: the last entry that a process had stored in each stream, at one time.

    Attributes:
        ends: maps a stream to the id of the last entry stored there, and to the epoch of the stream
            at that time (None if unknown). While the epoch stays the same, entries have left the
            stream only by being acknowledged: see :mod:`countersink.stream.progress`. A stream is
            left out if its entries are known to be applied, or if a break made this unknown.
        since: the number of :attr:`Trail.breaks` above which :meth:`Trail.applied` returns None."""

    ends: Mapping[str, tuple[str, Epoch | None]]
    since: int


class Trail:
    """Finds out whether the entries that a process has stored in Redis are applied.

    Workers acknowledge entries that are applied or dead letters, and thereby delete them. So an
    entry that has left its stream was acknowledged, unless something else has deleted it: see
    :mod:`countersink.stream.progress`. If that may have happened, the trail breaks: it can never be
    known whether this stream's earlier entries were applied. Later entries are not affected.

    The send thread calls :meth:`stored`; any thread may call :meth:`applied`. There is no lock, so
    that a signal handler may flush. If the handler interrupts a call, an answer can become unknown
    (None), but never wrong.

    Attributes:
        reported_breaks: the number of :attr:`breaks` at the last :meth:`report_break`.

    Args:
        log: where breaks are reported."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ends: dict[str, str] = {}
        self._applied: dict[str, str] = {}
        self._epochs: dict[str, Epoch | None] = {}
        self._breaks: list[str] = []  # causes; append is atomic
        self.reported_breaks = 0

    @property
    def breaks(self) -> int:
        """Number of breaks so far: how often it has become unknown whether entries were applied."""
        return len(self._breaks)

    def report_break(self) -> None:
        """Log the cause of the last break, unless it was logged. A new checkpoint with the new
        :attr:`reported_breaks` as ``since`` tells nothing about entries that the break concerns."""
        before, self.reported_breaks = self.reported_breaks, self.breaks
        if self.reported_breaks > before:
            self._log(
                "not_known",
                f"unknown whether all stored entries are in MySQL: {self._breaks[-1]}",
                level=logging.WARNING,
            )

    def follow(self, client: redis.Redis, stream: str) -> None:
        """Read and keep the epoch of ``stream`` (see :mod:`countersink.stream.progress`): called
        before entries are stored over a new connection, and after a change of the epoch. Make the
        consumer group if it is missing. If entries stored earlier may be lost, the trail breaks. If
        Redis refuses, the epoch is unknown.

        Raises:
            StreamUnavailable: Redis did not answer."""
        end = self._ends.get(stream)
        before = self._epochs.get(stream)
        epoch: Epoch | None = None
        complete = False
        try:
            now = stream_state(client, stream, make=True)
            epoch, complete = now.epoch, now.reaches(end)
            why = "it was unknown at the first connection"
            if before is not None:
                why = _OLDER if epoch == before else before.end(epoch)
        except StreamMisconfigured as error:
            why = f"{error}; `countersink ops` writes redis/users.acl with the necessary rights"
        if end is not None and end != self._applied.get(stream):
            if complete and epoch == before:
                return
            self._breaks.append(why)  # before other threads can read the new epoch
            self._applied[stream] = end  # applied or lost: later entries are followed
        self._epochs[stream] = epoch

    def stored(self, stream: str, stream_id: str) -> None:
        """Note that an entry was stored in ``stream`` under the id ``stream_id``."""
        self._ends[stream] = stream_id

    def checkpoint(self, since: int) -> Checkpoint:
        """Return a checkpoint of the last entry that this process has stored in each stream.

        Args:
            since: the value of :attr:`breaks` or :attr:`reported_breaks` before the entries were
                stored. Once :attr:`breaks` is higher, :meth:`applied` returns None for it."""
        ends = {
            stream: (end, self._epochs.get(stream))
            for stream, end in self._ends.copy().items()
            if end != self._applied.get(stream)
        }
        return Checkpoint(ends, since)

    def applied(self, client: redis.Redis, checkpoints: Sequence[Checkpoint]) -> list[bool | None]:
        """Return an item for each checkpoint: True if all entries up to it are applied; False if
        some are not yet, or if Redis does not answer; None if it can never be known."""
        latest: dict[str, str] = {}
        for checkpoint in checkpoints:
            for stream, (end, _) in checkpoint.ends.items():
                latest[stream] = max(latest.get(stream, "0-0"), end, key=order)
        # Each stream is read once for all checkpoints: its first entry decides.
        found = {stream: self._first(client, stream) for stream in latest}
        return [self._verdict(checkpoint, found) for checkpoint in checkpoints]

    def _first(self, client: redis.Redis, stream: str) -> tuple[Epoch | None, str | None] | None:
        """Return the stream's epoch (None if it is unknown) and the id of its first entry (None if
        the stream is empty or the epoch unknown). Return None instead of both if Redis does not
        answer. If the epoch is unknown or changed, or entries may be lost, call :meth:`follow`."""
        end = self._ends.get(stream)
        try:
            try:
                now = stream_state(client, stream)
            except StreamMisconfigured:
                now = None
            if now is None or now.epoch != self._epochs.get(stream) or not now.reaches(end):
                self.follow(client, stream)
        except StreamError:
            return None
        return (None, None) if now is None else (now.epoch, now.first)

    def _verdict(
        self, checkpoint: Checkpoint, found: Mapping[str, tuple[Epoch | None, str | None] | None]
    ) -> bool | None:
        verdict: bool | None = True
        for stream, (end, epoch) in checkpoint.ends.items():
            state = found[stream]
            if state is None:
                verdict = False
                continue
            now, first = state
            if epoch is None or now != epoch:
                return None
            if first is not None and order(first) <= order(end):
                verdict = False
        if self.breaks > checkpoint.since:
            return None
        if verdict:
            self._applied |= {stream: end for stream, (end, _) in checkpoint.ends.items()}
        return verdict
