"""What a worker reports: fields of its heartbeat (also ``rate``, which ``info`` shows as
``rows_per_second``), log actions and lines about batches and dead letters, and how often; and the
salts that it publishes in Redis for producers, with their upkeep (``LOOK_EVERY_S``,
``KEEP_EVERY_S``); its look for entries that Redis has lost (``LossWatch``)."""

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
from countersink.counting.apply.control import read_control
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.database.errors import Refused, StoreError
from countersink.database.session import Session
from countersink.database.sessions import KeptSession
from countersink.runtime.log import Log, error_text
from countersink.runtime.members import Salt, encode_salts
from countersink.stream.connection import cluster_of, mapped
from countersink.stream.errors import StreamError, StreamRefused
from countersink.stream.names import (
    master_of,
    salts_key,
    stream_key,
    used_partitions,
    worker_key,
)
from countersink.stream.progress import Heartbeat, now_ms, samples

LOGGER: Final = logging.getLogger("countersink.worker")
PUBLISH_EVERY_S: Final = 1.0
PROGRESS_EVERY_S: Final = 60.0
_RATE_OVER_S: Final = 10.0


@dataclass(slots=True)
class WorkerFigures:
    """What one worker process has done since it started. Counts are totals; times are Unix ms.

    Attributes:
        state: ``starting``, ``idle``, ``applying``, ``waiting`` (a server is away) or ``stopping``.
        slot: leased, or None.
        entries: applied, without repeats.
        duplicates: entries that had been applied before.
        rows: applied; an increment is not a row: producers fold.
        cells: distinct (counter, bucket, key) upserted, summed over batches.
        dead: rows sent to the dead letters.
        too_old: entries sent there, being older than the pruning watermark.
        overflown: new keys of batches beyond their counter's cap.
        lost: entries trimmed from a stream before anyone applied them.
        last_batch: when the last batch was acknowledged.
        last_batch_ms: how long its transaction took, in ms.
        last_error: what was last waited for.
        last_error_at: when that was.
        away: numbers of the partitions of a Redis Cluster that cannot be read now, with commas.
    """

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
        """Note an error that is waited for."""
        self.state, self.last_error, self.last_error_at = "waiting", text, now_ms()

    def cut_off(self, partitions: Mapping[int, str]) -> None:
        """Note which partitions cannot be read now, each with its error."""
        self.away = ",".join(map(str, sorted(partitions)))
        for text in partitions.values():
            self.last_error, self.last_error_at = text, now_ms()


@dataclass(slots=True)
class Vitals:
    """State and times of a worker, written by its thread, read by any.

    Attributes:
        figures: what it has done, and its state.
        moved: when it last took a step, on :func:`time.monotonic`; waiting for a server that is
            away is a step at each try.
        batches: that were acknowledged.
        batch_seconds: from their reading to their acknowledgement, summed up.
    """

    figures: WorkerFigures = field(default_factory=WorkerFigures)
    moved: float = field(default_factory=time.monotonic)
    batches: int = 0
    batch_seconds: float = 0.0
    _begun: float = 0.0

    def step(self) -> None:
        """It moves."""
        self.moved = time.monotonic()

    def reached(self, point: str) -> None:
        """It has come to a point of a batch, see :func:`countersink.worker.loop.run`."""
        now = self.moved = time.monotonic()
        if point == "read":
            self._begun = now
        elif point == "acknowledged":
            self.batches += 1
            self.batch_seconds += now - self._begun


def heartbeat(client: redis.Redis, consumer: str, figures: WorkerFigures) -> Heartbeat:
    """The worker's heartbeat: its :class:`WorkerFigures`, and ``rate``, rows per second over the
    last ten seconds or so.
    """
    samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def rate() -> float:
        clock, rows = time.monotonic(), figures.rows
        while len(samples) > 1 and clock - samples[0][0] > _RATE_OVER_S:
            samples.popleft()
        since, before = samples[0]
        samples.append((clock, rows))
        return round((rows - before) / max(clock - since, PUBLISH_EVERY_S), 1)

    def fields() -> dict[str, str | int | float | None]:
        own = {name: getattr(figures, name) for name in WorkerFigures.__slots__}
        return own | {"rate": rate()}

    return Heartbeat(client, worker_key(consumer), fields, PUBLISH_EVERY_S)


class BatchReport:
    """Adds batches up and logs: at once what was bad, once a minute what was done."""

    def __init__(self, figures: WorkerFigures, log: Log) -> None:
        self._figures = figures
        self._log = log
        self._next = time.monotonic() + PROGRESS_EVERY_S
        self._before = (0, 0)

    def batch(self, applied: Applied, repeats: int, seconds: float) -> None:
        """A batch was applied, in ``seconds``, and acknowledged; ``repeats`` of its deliveries
        brought an id that was in it already.
        """
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
                f"new keys went to {OVERFLOW}, as their counters have their most keys of the"
                " day: see `countersink counter list`",
                keys=figures.overflown,
            )

    def progress(self) -> None:
        """Say what was done since the last time, when a minute is over."""
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
    """Every action a record of the worker's log can carry: what machines may rely on.

    Its fields are figures, names of consumers, streams and entries, and the errors of
    :mod:`countersink.store` and :mod:`countersink.stream`.
    """

    STARTED = "started"
    """The process runs; no server was asked yet."""
    READY = "ready"
    """Both servers answered and a slot is leased: entries are read from now on."""
    WAITING = "waiting"
    """A server is away or refuses; said at once, then every 30 s with how long (``for_s``)."""
    RESUMED = "resumed"
    """It serves again."""
    BATCH = "batch"
    """A batch was applied and acknowledged (level debug)."""
    PROGRESS = "progress"
    """What was done in about the last minute, unless that is nothing."""
    DEAD = "dead"
    """Rows went to the dead letters; of ``not_kept`` there is only the number."""
    OVERFLOW = "overflow"
    """A counter has as many keys of a day as it may have: rows of further ones went to its key
    ``__overflow__``. Said at once, then every minute, with how many since the start.
    """
    SALTS = "salts"
    """Salts of different members cannot be made, read or published, such as for a right that is
    missing. Said once a minute.
    """
    BATCH_FAILED = "batch_failed"
    """An unexpected error: the batch is applied again entry by entry."""
    ENTRY_FAILED = "entry_failed"
    """An entry that keeps failing in a way nobody foresaw went to the dead letters as
    ``internal_error``.
    """
    CLAIMED = "claimed"
    """Entries of a worker that died, or is very slow, were taken over."""
    ORPHANS = "orphans"
    """Old entries that were pending with nobody were found and are applied."""
    LOST = "lost"
    """Entries were trimmed from a stream before they were applied: their counts are gone."""
    LOST_IN_REDIS = "lost_in_redis"
    """Entries that waited in Redis are gone and were never applied: it was emptied or trimmed, or
    is an older copy (``entries``: at least so many; 0: nobody had seen them).
    """
    CONSUMER_REMOVED = "consumer_removed"
    """A consumer that was idle for long, with nothing pending, was forgotten."""
    PARTITIONS = "partitions"
    """The number of streams changed."""
    CHORE_FAILED = "chore_failed"
    """Something besides reading and applying failed; of each chore logged at most once a minute."""
    SLOT = "slot"
    """The slot's lease had run out, and another slot was taken."""
    SCHEMA_TOO_NEW = "schema_too_new"
    """The tables were migrated by a newer version: the process ends with status 1."""
    CRASHED = "crashed"
    """A bug that has nothing to do with a single entry: the process ends with status 1."""
    STOPPING = "stopping"
    """A signal came: the batch is finished."""
    DRAINED = "drained"
    """The streams are empty and nothing is pending."""
    STOPPED = "stopped"
    """The process ends; ``pending`` entries it had read will be redelivered."""
    STOP_FORCED = "stop_forced"
    """The process ends in the middle of a batch, which stays pending and will be redelivered."""
    OTHER = "other"
    """Anything logged by another part."""


KEEP_EVERY_S: Final = 10.0
"""Also for how long members wait at most where Redis was emptied, or on a partition that is new."""
LOOK_EVERY_S: Final = 1.0
"""Between two looks whether a counter was changed, which is a reason not to wait for the time."""

LOSSES_AGAIN_S: Final = 3.0
"""Seconds after which a look for lost entries that failed is tried again."""


@dataclass(repr=False, eq=False)
class _Upkeep:
    """Work of a worker that needs both servers; never raises for a server's sake, which is noticed,
    and said, where batches are read and applied.

    Args:
        connect: makes a session with a short time-out; called again after every error.
        client: of Redis, with a short time-out.
        log: the worker's; told what somebody has to look into, such as a right that is missing.
    """

    _connect: Callable[[], Session]
    _client: redis.Redis
    _log: Log

    def __post_init__(self) -> None:
        self._session = KeptSession(self._connect)
        self._look_at = 0.0

    def _is_due(self) -> bool:
        """Whether the next look is due; then the one after it is put off."""
        clock = time.monotonic()
        if clock < self._look_at:
            return False
        self._look_at = clock + LOOK_EVERY_S
        return True

    def close(self) -> None:
        """Close the session."""
        self._session.close()


class SaltPublisher(_Upkeep):
    """Keeps the salts of all counters."""

    _version = -1
    _keep_at = 0.0
    _published: dict[str, list[Salt]] | None = None
    _gone: Set[bytes] = frozenset()

    def keep(self) -> None:
        """Make and forget salts where that is due; on the loop's thread."""
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
            self._look_at = clock + KEEP_EVERY_S
            self._say("kept", error)

    def publish(self) -> None:
        """Write to Redis what was kept since the last time."""
        published, self._published = self._published, None
        if published is None:
            return
        try:
            self._write(published)
        except StreamError as error:
            self._say("published", error)
            if self._published is None:
                self._published = published

    def _write(self, published: dict[str, list[Salt]]) -> None:
        client = self._client
        fields: dict[Any, Any] = {name.encode(): encode_salts(s) for name, s in published.items()}
        gone: set[bytes] = set()
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
                    # Twice, as another worker may have published what this one has not seen yet.
                    if old := others & self._gone:
                        client.hdel(key, *old)
            except StreamError as error:
                if cluster_of(client) is None:
                    raise
                self._say("published", error)
                away.add(master)  # the others serve; it is asked again at the next time
            else:
                gone |= others
        self._gone = gone

    def _say(self, done: str, error: Exception) -> None:
        """Say what somebody has to look into."""
        if isinstance(error, Refused | StreamRefused):
            text = f"the salts of different members cannot be {done}"
            self._log.seldom(WorkerAction.SALTS, text, error=error_text(error))


class LossWatch(_Upkeep):
    """Looks each second for entries that Redis has lost, and logs them."""

    def look(self) -> None:
        """Look, if that is due."""
        if not self._is_due():
            return
        try:
            losses = queue_losses.watch(self._session(), partial(samples, self._client))
        except (StoreError, StreamError) as error:
            self._session.close()
            self._look_at = time.monotonic() + LOSSES_AGAIN_S
            if isinstance(error, Refused | StreamRefused):
                self._log.seldom(
                    WorkerAction.CHORE_FAILED,
                    "entries that Redis loses would not be noticed; others are applied all the"
                    " same",
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
