"""Reports of a worker: its heartbeat (``rate`` is the column ``rows_per_second`` of ``info``), its
log actions, and log lines about batches (``BatchReport``). Also two regular tasks:
``SaltPublisher`` writes the salts that producers need to Redis, ``LossWatch`` checks for entries
that Redis has lost."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

import redis

from countersink.counting import visitors
from countersink.counting.apply import queue_losses
from countersink.counting.apply.applier import Applied
from countersink.counting.apply.guards import read_control
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.database.errors import Refused, StoreError
from countersink.database.session import Session
from countersink.database.sessions import KeptSession
from countersink.runtime.log import Log, error_text
from countersink.runtime.members import Salt, encode_salts
from countersink.stream.connection import cluster_of, mapped
from countersink.stream.errors import StreamError, StreamRefused
from countersink.stream.names import master_of, salts_key, stream_key, used_partitions, worker_key
from countersink.stream.progress import Heartbeat, now_ms, samples

LOGGER: Final = logging.getLogger("countersink.worker")
PUBLISH_EVERY_S: Final = 1.0
PROGRESS_EVERY_S: Final = 60.0
_RATE_OVER_S: Final = 10.0


@dataclass(slots=True)
class WorkerFigures:
    """The figures of one worker process since its start. Counts are totals; times are Unix ms or 0.

    Attributes:
        state: ``starting``, ``idle``, ``applying``, ``waiting`` (a server is away) or ``stopping``.
        slot: the leased slot, or None before the lease.
        entries: applied entries; each is counted once.
        duplicates: deliveries of entries that were applied before, or are in the same batch again.
        rows: applied rows; producers fold many increments into a row.
        cells: written cells. A cell counts once for each batch that writes it.
        dead: dead letters, of rows or of whole entries.
        too_old: entries that became dead letters because they are older than the pruning watermark.
        overflown: new keys counted as ``__overflow__`` by a cap, summed over batches and buckets.
        lost: pending entries found trimmed from their stream; those not applied before are lost.
        last_batch: time of the latest acknowledgement.
        last_batch_ms: ms that it took to apply that batch, with waits and repeated attempts.
        last_error: the latest error of a server that was away; ``last_error_at`` is its time.
        started: time at which this process began.
        away: comma-separated numbers of a Redis Cluster's partitions that cannot be read now."""

    state: str = "starting"
    slot: int | None = None
    entries: int = 0
    duplicates: int = 0
    rows: int = 0
    cells: int = 0
    dead: int = 0
    too_old: int = 0
    overflown: int = 0
    lost: int = 0
    last_batch: int = 0
    last_batch_ms: int = 0
    last_error: str = ""
    last_error_at: int = 0
    away: str = ""
    started: int = field(default_factory=now_ms)

    def failed(self, text: str) -> None:
        """Record the state ``waiting``, and ``text``, the error of a server that is away."""
        self.state, self.last_error, self.last_error_at = "waiting", text, now_ms()

    def note_away(self, partitions: Mapping[int, str]) -> None:
        """Record which partitions cannot be read now, and their last error. ``partitions``: the
        errors, by number; empty if all can be read."""
        self.away = ",".join(map(str, sorted(partitions)))
        for text in partitions.values():
            self.last_error, self.last_error_at = text, now_ms()


@dataclass(slots=True)
class Vitals:
    """State and times of a worker. The worker's thread writes them, and any thread may read them.

    Attributes:
        figures: the worker's figures.
        moved: time of the latest step, by :func:`time.monotonic`; a failed use of a server is one.
        batches: number of acknowledged batches.
        batch_seconds: seconds from the read to the acknowledgement, summed over the batches."""

    figures: WorkerFigures = field(default_factory=WorkerFigures)
    moved: float = field(default_factory=time.monotonic)
    batches: int = 0
    batch_seconds: float = 0.0
    _begun: float = 0.0

    def step(self) -> None:
        """Record that the worker made a step, so that health checks do not take it for stuck."""
        self.moved = time.monotonic()

    def note_point(self, point: str) -> None:
        """Record as a step that a batch reached a point: ``read``, a point of the applier, or
        ``acknowledged``. At ``acknowledged``, count the batch, and add its seconds."""
        now = self.moved = time.monotonic()
        if point == "read":
            self._begun = now
        elif point == "acknowledged":
            self.batches += 1
            self.batch_seconds += now - self._begun


def heartbeat(client: redis.Redis, consumer: str, figures: WorkerFigures) -> Heartbeat:
    """Return a heartbeat. It writes ``figures`` and ``rate`` (rows applied per second in the last
    10 s) to the Redis hash of the worker ``consumer``."""
    samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def rate() -> float:
        clock, rows = time.monotonic(), figures.rows
        while len(samples) > 1 and clock - samples[0][0] > _RATE_OVER_S:
            samples.popleft()
        since, before = samples[0]
        samples.append((clock, rows))
        return round((rows - before) / max(clock - since, PUBLISH_EVERY_S), 1)

    def fields() -> dict[str, str | int | float | None]:
        values = {name: getattr(figures, name) for name in WorkerFigures.__slots__}
        return values | {"rate": rate()}

    return Heartbeat(client, worker_key(consumer), fields, PUBLISH_EVERY_S)


class BatchReport:
    """Adds batches to ``figures``. Logs dead letters at once, overflows and progress at most once a
    minute."""

    def __init__(self, figures: WorkerFigures, log: Log) -> None:
        self._figures = figures
        self._log = log
        self._next = time.monotonic() + PROGRESS_EVERY_S
        self._before = (0, 0)

    def batch(self, applied: Applied, repeats: int, seconds: float) -> None:
        """Count and log a batch that was applied in ``seconds`` and acknowledged. ``repeats``: how
        many deliveries had an entry that another delivery had already brought into the batch."""
        figures = self._figures
        figures.entries += applied.applied
        figures.duplicates += applied.duplicates + repeats
        figures.rows += applied.rows
        figures.cells += applied.cells
        figures.dead += applied.dead
        figures.too_old += applied.too_old
        figures.overflown += applied.overflown
        figures.last_batch, figures.last_batch_ms = now_ms(), round(seconds * 1000)
        self._log(
            WorkerAction.BATCH,
            "applied",
            level=logging.DEBUG,
            entries=applied.applied,
            duplicates=applied.duplicates,
            rows=applied.rows,
            cells=applied.cells,
            ms=round(seconds * 1000, 1),
        )
        if applied.dead:
            self._log(
                WorkerAction.DEAD,
                "rows went to the dead letters: see `countersink dead list`",
                level=logging.WARNING,
                rows=applied.dead,
                not_kept=applied.not_kept,
            )
        if applied.overflown:
            self._log.seldom(
                WorkerAction.OVERFLOW,
                f"new keys went to {OVERFLOW}, as their counters have reached their most keys of"
                " the day: see `countersink counter list`",
                keys=figures.overflown,
            )

    def progress(self) -> None:
        """Once a minute, log how many entries and rows were applied since the last log, if any."""
        clock = time.monotonic()
        if clock < self._next:
            return
        self._next = clock + PROGRESS_EVERY_S
        entries, rows = self._before
        if self._figures.entries != entries or self._figures.rows != rows:
            self._before = (self._figures.entries, self._figures.rows)
            self._log(
                WorkerAction.PROGRESS,
                "applied",
                entries=self._figures.entries - entries,
                rows=self._figures.rows - rows,
            )


class WorkerAction(StrEnum):
    """The actions of all log records of the worker; programs may rely on them."""

    STARTED = "started"
    """The process starts; it has not connected to a server yet."""
    READY = "ready"
    """Both servers answered, and a slot is leased: the worker begins to read entries."""
    WAITING = "waiting"
    """A server is away or refuses, for ``for_s`` seconds; logged at once, then every 30 s."""
    RESUMED = "resumed"
    """The server serves again."""
    BATCH = "batch"
    """A batch was applied and acknowledged; logged at level debug."""
    PROGRESS = "progress"
    """Numbers of entries and rows applied in about a minute; not logged if there were none."""
    DEAD = "dead"
    """Rows became dead letters; ``not_kept`` of them were counted as such but not stored."""
    OVERFLOW = "overflow"
    """New keys beyond key caps were counted in ``__overflow__``; at most once a minute."""
    SALTS = "salts"
    """A server refuses to make or to store salts; at most once a minute."""
    BATCH_FAILED = "batch_failed"
    """A batch had an unexpected error: its entries are now applied one by one."""
    ENTRY_FAILED = "entry_failed"
    """An entry became a dead letter (``internal_error``): decoding it, or each try, failed."""
    CLAIMED = "claimed"
    """The worker took over entries of a worker that died or is very slow."""
    ORPHANS = "orphans"
    """Old entries that were pending with no worker were found, and are applied now."""
    LOST = "lost"
    """Entries were trimmed from a stream before they were applied: their counts are lost."""
    LOST_IN_REDIS = "lost_in_redis"
    """Entries that waited in Redis are gone and were never applied: Redis was emptied, trimmed, or
    replaced by an older copy (``entries``: at least this many, or 0 if unknown)."""
    CONSUMER_REMOVED = "consumer_removed"
    """A consumer without pending entries, which had been idle for long, was deleted."""
    PARTITIONS = "partitions"
    """The number of streams that this worker reads has changed."""
    CHORE_FAILED = "chore_failed"
    """A task other than reading and applying failed; at most once a minute for each task."""
    SLOT = "slot"
    """The slot's lease had expired, and another slot was leased."""
    SCHEMA_TOO_NEW = "schema_too_new"
    """A newer version has migrated the tables: the process ends with status 1."""
    CRASHED = "crashed"
    """An unexpected error that no single entry causes: the process ends with status 1."""
    STOPPING = "stopping"
    """A signal came: the worker finishes its batch."""
    DRAINED = "drained"
    """The streams are empty and nothing is pending."""
    STOPPED = "stopped"
    """The process ends; the entries that are ``pending`` with it will be redelivered."""
    STOP_FORCED = "stop_forced"
    """The process ends before its batch is applied; the batch will be redelivered."""
    OTHER = "other"
    """A record by another part of countersink."""


KEEP_EVERY_S: Final = 10.0
"""Seconds between two updates of salts. Redis lacks them at most this long after it was emptied."""
CHECK_EVERY_S: Final = 1.0
"""Seconds between two checks for lost entries, and for a change of the catalog."""
RETRY_LOSSES_S: Final = 3.0
"""Seconds after which a failed check for lost entries is tried again."""


@dataclass(repr=False, eq=False)
class _Upkeep:
    """A regular task of a worker that needs Redis and MySQL. It ignores a server that is away: the
    code that reads and applies batches notices and logs that.

    Args:
        connect: makes a session with a short timeout; called again after every error.
        client: a client of Redis with a short timeout.
        log: the worker's log, for errors that a person must correct, such as a missing right."""

    _connect: Callable[[], Session]
    _client: redis.Redis
    _log: Log

    def __post_init__(self) -> None:
        self._session = KeptSession(self._connect)
        self._due_at = 0.0

    def _is_due(self) -> bool:
        """Return whether the task is due. If so, let it be due next in a second."""
        clock = time.monotonic()
        if clock < self._due_at:
            return False
        self._due_at = clock + CHECK_EVERY_S
        return True

    def close(self) -> None:
        """Close the session with MySQL."""
        self._session.close()


class SaltPublisher(_Upkeep):
    """Makes and deletes the salts of all counters in MySQL, and publishes them in Redis."""

    _version = -1
    _keep_at = 0.0
    _published: dict[str, list[Salt]] | None = None
    _absent: Set[bytes] = frozenset()

    def keep(self) -> None:
        """Every 10 s, or when the catalog has changed: make new salts, delete old ones, read all
        for :meth:`publish`. Do nothing otherwise. Only for the loop's thread."""
        if not self._is_due():
            return
        clock = time.monotonic()
        try:
            version = read_control(self._session(), lock="").catalog_version
            if version == self._version and clock < self._keep_at:
                return
            self._published = visitors.keep(self._session())
            self._version, self._keep_at = version, clock + KEEP_EVERY_S
        except StoreError as error:
            self._session.close()
            self._due_at = clock + KEEP_EVERY_S
            self._log_refusal("made", error)

    def publish(self) -> None:
        """Write the salts to Redis, if :meth:`keep` has read them since they were written last."""
        published, self._published = self._published, None
        if published is None:
            return
        try:
            self._write(published)
        except StreamError as error:
            self._log_refusal("published", error)
            if self._published is None:
                self._published = published

    def _write(self, published: dict[str, list[Salt]]) -> None:
        client = self._client
        fields: dict[Any, Any] = {name.encode(): encode_salts(s) for name, s in published.items()}
        absent: set[bytes] = set()
        away: set[str | None] = set()
        for partition in used_partitions(client, on_silence=lambda *_: None):
            if (master := master_of(client, partition)) in away:
                continue
            key = salts_key(stream_key(partition))
            try:
                with mapped():
                    others: set[Any] = set(client.hkeys(key)) - fields.keys()
                    if fields:
                        client.hset(key, mapping=fields)
                    # Only if absent twice: another worker may have published newer salts.
                    if old := others & self._absent:
                        client.hdel(key, *old)
            except StreamError as error:
                if cluster_of(client) is None:
                    raise
                self._log_refusal("published", error)
                away.add(master)  # other masters may serve; the next call tries this one again
            else:
                absent |= others
        self._absent = absent

    def _log_refusal(self, task: str, error: Exception) -> None:
        """Log ``error`` if it is a refusal by a server. ``task``: ``made`` or ``published``."""
        if isinstance(error, Refused | StreamRefused):
            text = f"the salts of different members cannot be {task}"
            self._log.seldom(WorkerAction.SALTS, text, error=error_text(error))


class LossWatch(_Upkeep):
    """Checks each second for entries that Redis has lost, and logs them."""

    def watch(self) -> None:
        """Check for lost entries and log them, at most once a second (3 s after a failure)."""
        if not self._is_due():
            return
        try:
            losses = queue_losses.watch(self._session(), partial(samples, self._client))
        except (StoreError, StreamError) as error:
            self._session.close()
            self._due_at = time.monotonic() + RETRY_LOSSES_S
            if isinstance(error, Refused | StreamRefused):
                self._log.seldom(
                    WorkerAction.CHORE_FAILED,
                    "losses of entries in Redis cannot be detected; entries are still applied",
                    level=logging.ERROR,
                    chore="watch_losses",
                    error=error_text(error),
                )
            return
        for loss in losses:
            self._log(
                WorkerAction.LOST_IN_REDIS,
                f"Redis has lost {loss}: see `countersink doctor`",
                level=logging.ERROR if loss.entries else logging.WARNING,
                stream=loss.stream,
                entries=loss.entries,
                waited=loss.waited,
            )
