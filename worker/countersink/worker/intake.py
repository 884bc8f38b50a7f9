"""The intake of a worker (``Intake``): it reads entries into batches, takes over entries of dead or
slow workers, deletes idle consumers, finds new partitions, and for ``--drain`` checks whether the
streams are empty. The constants say how often each is done; see ``options.py`` for idle times.

A bug in decoding must not stop the worker: an entry that cannot be decoded becomes a dead letter.

One thread reads and applies in turn. A second thread that reads the next batch while MySQL applies
this one was measured, and was not faster: both threads need Python's interpreter lock, so applying
became slower by as much time as reading saved.
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
from countersink.stream.group import CLAIM_DEAD_EVERY_S, Claimed, Group
from countersink.stream.names import GROUP, stream_keys
from countersink.worker.options import WorkerOptions
from countersink.worker.report import WorkerAction

PARTITIONS_EVERY_S: Final = 5.0
CONSUMERS_EVERY_S: Final = 60.0
RECOVER_COUNT: Final = 50
"""Most entries that are taken over at once from each stream, to bound memory; of dead workers, from
each stream for each worker."""
_DRAIN_CLAIM_EVERY_S: Final = 1.0
INTERNAL_DETAIL = "an unexpected error in countersink; the worker's log has the traceback"

Held = tuple[str, str, str]
"""A delivery to acknowledge: its stream, its stream id, its entry id of 32 hex digits."""


@dataclass(slots=True)
class ReadBatch:
    """The decoded entries of some deliveries. An entry that was delivered twice is included once.

    Attributes:
        entries: the entries by entry id (32 hex digits), in the order of arrival.
        deliveries: all deliveries to acknowledge. An entry that was delivered twice has two.
        rows: number of rows in the entries, good and bad.
        drained: True if the batch and all streams are empty, and nothing is pending. Always False
            without the option ``drain``.
        silent: True if no partition of a Redis Cluster could be read, because no node is available;
            the worker's state is then ``waiting``, not ``idle``. Always False for a single Redis,
            where :meth:`Intake.next` raises instead.
    """

    entries: dict[str, Incoming] = field(default_factory=dict)
    deliveries: list[Held] = field(default_factory=list)
    rows: int = 0
    drained: bool = False
    silent: bool = False

    def add(self, held: Held, entry: Incoming) -> None:
        """Add a delivery to acknowledge, and its entry if the batch lacks an entry with this id."""
        self.deliveries.append(held)
        entry_id = held[2]
        if entry_id not in self.entries:
            self.entries[entry_id] = entry
            self.rows += len(entry.rows) + len(entry.dead)

    def merge(self, other: "ReadBatch") -> None:
        """Add all deliveries of another batch, and those of its entries that this one lacks."""
        for held in other.deliveries:
            self.add(held, other.entries[held[2]])


class Intake:
    """Reads, claims and decodes entries. Each batch must be acknowledged before :meth:`next` is
    called again. Otherwise that call may return entries of the batch once more.

    Args:
        group: this worker's consumer; the intake keeps ``group.streams`` up to date.
        options: the worker's options.
        log: the worker's log.
        follow: whether to look for new partitions; False for an intake of
            :class:`~countersink.worker.readers.Readers`, which reads one partition.

    Attributes:
        lost: number of entries that this worker found pending, but trimmed from their streams.
            Unless they were applied before, their counts are lost.
        away: always empty. It exists because :class:`~countersink.worker.readers.Readers` has it,
            for partitions that cannot be read now; this class reads a single server.
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
        """The number of deliveries that were read and are not in a batch yet."""
        return len(self._raw)

    def begin(self) -> int:
        """Find the streams; return how many there are.

        This creates no consumer groups; reading creates missing ones. A full Redis refuses to
        create a group, even if the group exists. So a worker that began by creating groups could
        never empty a full Redis.

        Raises:
            StreamError: Redis does not answer, or refuses.
        """
        self._group.streams = stream_keys(self._group.client)
        return len(self._group.streams)

    def next(self, *, fresh: bool = True) -> ReadBatch:
        """Return the next batch. It has entries of the last read, if some are left. Otherwise do
        the chores that are due; the batch has the entries that they took over from other workers or
        found pending with no worker, or else new ones. It is empty if no new entry came within
        ``batch_wait_ms``.

        Args:
            fresh: False after a request to stop. Then Redis is not asked, no chore is done, and
                only entries that were read before are returned.

        Raises:
            StreamError: Redis does not answer, or refuses. Entries that were read before the error
                are returned by the next call.
        """
        if fresh and not self._raw:
            self._recover()
            if not self._raw:
                # Waits only if the streams have no new entries.
                count = max(1, self._options.batch_entries // len(self._group.streams))
                self._raw.extend(self._group.read(count, self._options.batch_wait_ms))
        batch = self._decode()
        if fresh and self._options.drain and not batch.deliveries:
            batch.drained = is_empty(self._group)
        return batch

    def acknowledge(self, batch: ReadBatch) -> None:
        """Acknowledge ``batch``, which was applied: its entries are removed from their streams.

        Raises:
            StreamError: Redis does not answer, or refuses.
        """
        self._group.acknowledge(batch.deliveries)

    def run_chore(self, chore: Callable[[], object]) -> None:
        """Call ``chore`` now, on this thread, which is that of the worker's loop."""
        chore()

    def leave(self, brief_client: redis.Redis) -> None:
        """Delete this consumer, at the end of the worker, from the group of every stream where it
        has no pending entries.

        Args:
            brief_client: a client with a short timeout.

        Raises:
            StreamError: Redis does not answer, or refuses.
        """
        Group(brief_client, stream_keys(brief_client), self._group.consumer).delete_consumer()

    def _decode(self) -> ReadBatch:
        batch = ReadBatch()
        while self._raw and batch.rows < self._options.batch_rows:
            delivery = self._raw.popleft()
            entry_id, entry = incoming(delivery, self._log)
            batch.add((delivery.stream, delivery.stream_id, entry_id), entry)
        return batch

    def _recover(self) -> None:
        """Do the chores that are due: find new streams, take over entries of other workers, find
        entries that are pending with no worker, delete idle consumers.

        Raises:
            StreamError: Redis is unavailable. The next call does the failed chore and those after
                it.
        """
        if self._follows:
            self._do(self._follow_partitions, PARTITIONS_EVERY_S)
        self._do(self._claim, self._claim_every_s)
        self._do(self._claim_dead, CLAIM_DEAD_EVERY_S)
        self._do(self._sweep, self._claim_every_s)
        self._do(self._forget_consumers, CONSUMERS_EVERY_S)

    def _do(self, chore: Callable[[], bool], every_s: float) -> None:
        """Do a chore if it is due. It is due at first, and ``every_s`` seconds after its last call.
        It is due immediately if its last call returned True, which means that there is more to do.

        If Redis refuses a command, or after a bug, the error is logged, and nothing is raised.

        Raises:
            StreamError: Redis is unavailable. The chore stays due.
        """
        now = time.monotonic()
        if now < self._due.get(chore.__name__, 0.0):
            return
        more = False
        try:
            more = chore()
        except Exception as error:
            cause, foreseen = error.__cause__, isinstance(error, StreamError)
            # A node's answer that the cluster is down is no refusal.
            down = isinstance(cause, redis.exceptions.ClusterError)
            if foreseen and (down or not isinstance(cause, redis.ResponseError | None)):
                raise
            # Redis refused only this command: the partition count is no number, or Redis is full
            # and refuses writes. Reading continues, as it is what empties a full Redis.
            self._log.seldom(
                WorkerAction.CHORE_FAILED,
                "a chore failed; entries are still read and applied",
                level=logging.ERROR,
                item=chore.__name__,
                bug=None if foreseen else error,
                chore=chore.__name__.strip("_"),
                error=error_text(error) if foreseen else "an unexpected error",
            )
        self._due[chore.__name__] = now if more else now + every_s

    def _follow_partitions(self) -> bool:
        # A stream stays in the list until this process ends, even if Redis lost its note.
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
        return self._take(claimed, "an idle worker")

    def _claim_dead(self) -> bool:
        return self._take(self._group.claim_dead(self._count), "a dead worker")

    def _take(self, claimed: Claimed, worker: str) -> bool:
        if claimed.lost:
            self.lost += len(claimed.lost)
            self._log(
                WorkerAction.LOST,
                "entries were trimmed before they were applied: their counts are lost",
                level=logging.ERROR,
                entries=len(claimed.lost),
                first=claimed.lost[0],
            )
        if claimed.deliveries:
            self._raw.extend(claimed.deliveries)
            self._log(
                WorkerAction.CLAIMED,
                f"took over entries of {worker}",
                entries=len(claimed.deliveries),
            )
        return bool(claimed.lost or claimed.deliveries)

    def _sweep(self) -> bool:
        orphans = self._group.orphans(self._options.claim_idle_ms, self._count)
        if orphans:
            self._raw.extend(orphans)
            self._log(
                WorkerAction.ORPHANS,
                "found old entries that were pending with no worker",
                level=logging.WARNING,
                entries=len(orphans),
            )
        return len(orphans) >= self._count  # the next search follows their acknowledgement

    def _forget_consumers(self) -> bool:
        for name in self._group.idle_consumers(self._options.consumer_idle_ms):
            # The script checks again that nothing is pending; Redis makes the consumer of a live
            # worker again when it reads.
            if self._group.delete_consumer(name):
                self._log(WorkerAction.CONSUMER_REMOVED, "deleted an idle consumer", removed=name)
        return False


def incoming(delivery: Delivery, log: Log) -> tuple[str, Incoming]:
    """Return a delivery's entry id (32 hex digits), and its entry for the applier.

    If decoding raises, which is a bug, the whole entry becomes a dead letter, and the error is
    logged.
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
    dead = [DeadRow.from_bad(name, delivery.stream, entry.at, bad) for bad in entry.bad]
    return entry.id, Incoming(
        name, entry.at, entry.rows, dead, delivery.stream, payload, entry.seen, checked=True
    )


def as_dead_letter(entry: Incoming) -> Incoming:
    """Return a copy of ``entry`` to apply in its place, after it failed repeatedly. The copy has no
    rows, and a dead letter for the whole entry (``internal_error``).
    """
    dead = DeadRow.from_bad(entry.id, entry.stream, entry.at, _internal_error(entry.payload))
    return Incoming(entry.id, entry.at, (), (dead,), entry.stream, entry.payload)


def _internal_error(payload: bytes | None) -> Bad:
    return Bad(WHOLE_ENTRY, DeadReason.INTERNAL_ERROR, INTERNAL_DETAIL, payload or b"")


def is_empty(group: Group) -> bool:
    """Return whether every stream of ``group`` is empty, and nothing is pending there with any
    consumer.

    Raises:
        StreamError: Redis does not answer, or refuses.
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
            return 0  # an empty stream without a group has nothing pending
        raise
