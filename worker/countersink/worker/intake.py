"""Reads entries into batches, claims those of dead workers, forgets idle consumers, finds new
partitions, and tells when the streams are empty (``--drain``): how often each is done; log lines
about it (also of a Redis that was emptied); times after which: ``worker/options.py``.

A bug in decoding must not stop the stream: an entry that cannot be decoded is a dead letter.

Reading the next batch on a second thread while MySQL works on this one was measured: the two then
share Python's lock, and what reading no longer took, applying took more.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import redis

from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.dead import DeadRow
from countersink.runtime.dead_letter import WHOLE_ENTRY, Bad, DeadReason
from countersink.runtime.log import Log, error_text
from countersink.stream.connection import command, mapped
from countersink.stream.decode import Decoded, decode, entry_id_of
from countersink.stream.entry import Delivery
from countersink.stream.errors import StreamError
from countersink.stream.group import LOOK_S, Claimed, Group
from countersink.stream.names import GROUP, stream_keys
from countersink.worker.options import WorkerOptions
from countersink.worker.report import WorkerAction

PARTITIONS_EVERY_S: Final = 5.0
CONSUMERS_EVERY_S: Final = 60.0
RECOVER_COUNT: Final = 50
"""Entries taken over at once from each stream, at most: they come whole, and memory is bounded."""
_DRAIN_CLAIM_EVERY_S: Final = 1.0
INTERNAL_DETAIL = "an unexpected error in countersink; the worker's log has the traceback"

Held = tuple[str, str, str]
"""One delivery: (stream, stream id, entry id of 32 hex digits). What the acknowledgement needs."""


@dataclass(slots=True)
class ReadBatch:
    """Decoded entries, each id once, with every delivery they came by.

    Attributes:
        entries: by entry id (32 hex digits), in the order of arrival.
        deliveries: all deliveries to acknowledge, repeats of an id included.
        rows: rows in the entries, good and bad.
        drained: the streams were empty and nothing was pending when nothing came (looked at only
            when asked to drain).
        silent: no stream could be read: Redis does not serve.
    """

    entries: dict[str, Incoming] = field(default_factory=dict)
    deliveries: list[Held] = field(default_factory=list)
    rows: int = 0
    drained: bool = False
    silent: bool = False

    def add(self, held: Held, entry: Incoming) -> None:
        """Take in one delivery; an id that is there already is only noted for the
        acknowledgement.
        """
        self.deliveries.append(held)
        entry_id = held[2]
        if entry_id not in self.entries:
            self.entries[entry_id] = entry
            self.rows += len(entry.rows) + len(entry.dead)

    def merge(self, other: "ReadBatch") -> None:
        """Take in all of another batch."""
        for held in other.deliveries:
            self.add(held, other.entries[held[2]])


class Intake:
    """Reads, claims, sweeps and decodes. A batch has to be settled before the next one is taken:
    while it is in hand, a look for entries that others left would find it, too.

    Args:
        group: the consumer's own; its streams are kept up to date.
        options: the worker's.
        log: the worker's.
        follow: look for new partitions; else the group's streams stay as they are.

    Attributes:
        lost: entries that were trimmed before anyone applied them, as far as this worker found out.
        away: nothing: one server serves all streams, or none.
    """

    away: Final[Mapping[int, str]] = MappingProxyType({})

    def __init__(
        self, group: Group, options: WorkerOptions, log: Log, *, follow: bool = True
    ) -> None:
        self._group = group
        self._options = options
        self._log = log
        self._follows = follow
        self._raw: deque[Delivery] = deque()
        self._claim_every_s = options.claim_every_s
        if options.drain:
            self._claim_every_s = min(options.claim_every_s, _DRAIN_CLAIM_EVERY_S)
        self._due: dict[str, float] = {}
        self._count = min(RECOVER_COUNT, options.batch_entries)
        self.lost = 0

    @property
    def waiting(self) -> int:
        """Deliveries that were read and are not in a batch yet."""
        return len(self._raw)

    def begin(self) -> int:
        """Find the streams, and return how many there are.

        No group is made here: reading does that where one is missing. A full Redis refuses to make
        groups, be they there or not, and could never be emptied.

        Raises:
            StreamError: Redis did not do its part.
        """
        self._group.streams = stream_keys(self._group.client)
        return len(self._group.streams)

    def next(self, *, fresh: bool = True) -> ReadBatch:
        """The next batch; empty when nothing came within ``batch_wait_ms``.

        Args:
            fresh: read new entries, too; else only what was read before and is not in a batch yet.

        Raises:
            StreamError: Redis did not do its part. Nothing that was read is lost: the next call
            hands it out.
        """
        if fresh and not self._raw:
            self._recover()
            if not self._raw:
                # What is there, up to a batch; this waits only when nothing is.
                count = max(1, self._options.batch_entries // len(self._group.streams))
                self._raw.extend(self._group.read(count, self._options.batch_wait_ms))
        batch = self._decode()
        if fresh and self._options.drain and not batch.deliveries:
            batch.drained = is_empty(self._group)
        return batch

    def acknowledge(self, batch: ReadBatch) -> None:
        """Acknowledge the batch that came last.

        Raises:
            StreamError: Redis did not do its part.
        """
        self._group.acknowledge(batch.deliveries)

    def aside(self, chore: Callable[[], object]) -> None:
        """Do a chore of the loop's: here and now, on the loop's thread."""
        chore()

    def leave(self, hasty: redis.Redis) -> None:
        """Leave the group on every stream where nothing is pending with this consumer.

        Args:
            hasty: the client for it.

        Raises:
            StreamError: Redis did not do its part.
        """
        Group(hasty, stream_keys(hasty), self._group.consumer).delete_consumer()

    def _decode(self) -> ReadBatch:
        batch = ReadBatch()
        while self._raw and batch.rows < self._options.batch_rows:
            delivery = self._raw.popleft()
            entry_id, entry = incoming(delivery, self._log)
            batch.add((delivery.stream, delivery.stream_id, entry_id), entry)
        return batch

    def _recover(self) -> None:
        """Do the chores that are due: keep the list of streams current, and take in entries that
        other workers left behind.

        Raises:
            StreamUnavailable: what was due is done at the next call.
        """
        if self._follows:
            self._do(self._follow_partitions, PARTITIONS_EVERY_S)
        self._do(self._claim, self._claim_every_s)
        self._do(self._claim_gone, LOOK_S)
        self._do(self._sweep, self._claim_every_s)
        self._do(self._forget_consumers, CONSUMERS_EVERY_S)

    def _do(self, chore: Callable[[], bool], every_s: float) -> None:
        """Do a chore if it is due: ``every_s`` after the last time, or at once where it says that
        there may be more to do.
        """
        now = time.monotonic()
        if now < self._due.get(chore.__name__, 0.0):
            return
        more = False
        try:
            more = chore()
        except Exception as error:
            cause, foreseen = error.__cause__, isinstance(error, StreamError)
            # Of a cluster that is down a node says so: that is no refusal.
            down = isinstance(cause, redis.exceptions.ClusterError)
            if foreseen and (down or not isinstance(cause, redis.ResponseError | None)):
                raise
            # Redis answered, and refused just this: a partition count that is no number, or, when
            # it is full, whatever writes. Reading goes on: it is what empties a full Redis.
            self._log.seldom(
                WorkerAction.CHORE_FAILED,
                "a chore failed; entries are read and applied all the same",
                level=logging.ERROR,
                of=chore.__name__,
                bug=None if foreseen else error,
                chore=chore.__name__.strip("_"),
                error=error_text(error) if foreseen else "an unexpected error",
            )
        self._due[chore.__name__] = now if more else now + every_s

    def _follow_partitions(self) -> bool:
        # What was read once is read until this process ends, even if Redis forgot its use.
        known = self._group.streams
        streams = known + [s for s in stream_keys(self._group.client) if s not in known]
        if streams != known:
            before = len(known)
            self._group.streams = streams
            self._log(
                WorkerAction.PARTITIONS,
                "the number of streams changed",
                streams=len(streams),
                before=before,
            )
        return False

    def _claim(self) -> bool:
        claimed = self._group.claim(self._options.claim_idle_ms, self._count)
        return self._take(claimed, "had left untouched")

    def _claim_gone(self) -> bool:
        return self._take(self._group.claim_gone(self._count), "whose process is gone held")

    def _take(self, claimed: Claimed, which: str) -> bool:
        if claimed.lost:
            self.lost += len(claimed.lost)
            self._log(
                WorkerAction.LOST,
                "entries were trimmed before they were applied: their counts are gone",
                level=logging.ERROR,
                entries=len(claimed.lost),
                first=claimed.lost[0],
            )
        if claimed.deliveries:
            self._raw.extend(claimed.deliveries)
            self._log(
                WorkerAction.CLAIMED,
                f"took over entries that another worker {which}",
                entries=len(claimed.deliveries),
            )
        return bool(claimed.lost or claimed.deliveries)

    def _sweep(self) -> bool:
        orphans = self._group.orphans(self._options.claim_idle_ms, self._count)
        if orphans:
            self._raw.extend(orphans)
            self._log(
                WorkerAction.ORPHANS,
                "found old entries that were pending with nobody",
                level=logging.WARNING,
                entries=len(orphans),
            )
        return len(orphans) >= self._count  # these are settled before that look

    def _forget_consumers(self) -> bool:
        for name in self._group.idle_consumers(self._options.consumer_idle_ms):
            # The script looks again at what is pending; a worker that is merely quiet is made anew
            # when it reads.
            if self._group.delete_consumer(name):
                self._log(WorkerAction.CONSUMER_REMOVED, "forgot an idle consumer", removed=name)
        return False


def incoming(delivery: Delivery, log: Log) -> tuple[str, Incoming]:
    """The entry's id (32 hex digits), and the entry for the store.

    Where decoding itself fails, which is a bug, all of it is a dead letter, and the log says so.
    """
    payload = delivery.first(b"rows")
    try:
        entry = decode(delivery)
    except Exception as error:
        log(
            WorkerAction.ENTRY_FAILED,
            "an entry cannot be decoded: it goes to the dead letters",
            level=logging.ERROR,
            bug=error,
            stream=delivery.stream,
            stream_id=delivery.stream_id,
        )
        at = int(delivery.stream_id.partition("-")[0])
        entry = Decoded(entry_id_of(delivery), at, [], [_internal_error(payload)])
    name = bytes.fromhex(entry.id)
    dead = [DeadRow.of(name, delivery.stream, entry.at, bad) for bad in entry.bad]
    return entry.id, Incoming(
        name, entry.at, entry.rows, dead, delivery.stream, payload, entry.seen, checked=True
    )


def buried(entry: Incoming) -> Incoming:
    """``entry`` with nothing to count: as a whole among the dead letters, as ``internal_error``."""
    grave = DeadRow.of(entry.id, entry.stream, entry.at, _internal_error(entry.payload))
    return Incoming(entry.id, entry.at, (), (grave,), entry.stream, entry.payload)


def _internal_error(payload: bytes | None) -> Bad:
    return Bad(WHOLE_ENTRY, DeadReason.INTERNAL_ERROR, INTERNAL_DETAIL, payload or b"")


def is_empty(group: Group) -> bool:
    """Whether every stream is empty and nothing is pending with anybody.

    Raises:
        StreamError: Redis did not do its part.
    """
    with mapped():
        if any(group.client.xlen(stream) for stream in group.streams):
            return False
    return not any(_pending(group, stream) for stream in group.streams)


def _pending(group: Group, stream: str) -> int:
    try:
        return int(command(group.client, "XPENDING", stream, GROUP)[0])
    except StreamError as error:
        if str(error.__cause__).startswith("NOGROUP"):
            return 0  # an empty stream without a group: nothing can be pending
        raise
