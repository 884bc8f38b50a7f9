"""A worker's figures: for ``countersink info`` (a Redis hash that expires), and for the log once a
minute.
"""

import os
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from countersink.stream.connection import mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import worker_key

TTL_S: Final = 60
"""Seconds after which a worker that says nothing is no longer listed."""
PUBLISH_EVERY_S: Final = 1.0
_RATE_OVER_S: Final = 10.0


@dataclass(slots=True)
class Figures:
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
        overflown: rows, of those applied, of new keys beyond their counter's cap.
        lost: entries trimmed from a stream before anyone applied them.
        last_batch: when the last batch was acknowledged.
        last_batch_ms: how long its transaction took, in ms.
        last_error: what was last waited for.
        last_error_at: when that was.
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
    started: int = field(default_factory=lambda: now_ms())

    def failed(self, text: str) -> None:
        """Note an error that is waited for."""
        self.state, self.last_error, self.last_error_at = "waiting", text, now_ms()


def now_ms() -> int:
    """Unix ms on this machine's clock."""
    return time.time_ns() // 1_000_000


class Publisher:
    """Writes the figures to Redis at most once a second; never raises, never repeats.

    Hash fields: those of :class:`Figures` that are not empty, and ``pid``, ``host``, ``rate`` (rows
    per second over about the last ten seconds), ``updated`` (Unix ms).
    """

    def __init__(self, client: redis.Redis, consumer: str, figures: Figures) -> None:
        self._client = client
        self._key = worker_key(consumer)
        self._figures = figures
        self._fixed: dict[str, str | int] = {"pid": os.getpid(), "host": socket.gethostname()}
        self._next = 0.0
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def publish(self, *, now: bool = False) -> None:
        """Write the figures if a second has passed since the last time, or ``now``."""
        clock = time.monotonic()
        if clock < self._next and not now:
            return
        self._next = clock + PUBLISH_EVERY_S
        fields: dict[Any, Any] = dict(self._fixed)
        fields |= {"rate": self._measure(clock), "updated": now_ms()}
        for name in Figures.__slots__:
            value = getattr(self._figures, name)
            fields[name] = "" if value is None else value
        try:
            with mapped():
                pipeline = self._client.pipeline(transaction=False)
                pipeline.hset(self._key, mapping=fields)
                pipeline.expire(self._key, TTL_S)
                pipeline.execute()
        except StreamError:
            # Figures only: whatever ails Redis is noticed, and said, where entries are read.
            self._next = clock + TTL_S / 4

    def withdraw(self) -> None:
        """Remove the hash: the worker has stopped."""
        try:
            with mapped():
                self._client.delete(self._key)
        except StreamError:
            return  # it expires

    def _measure(self, clock: float) -> float:
        samples, rows = self._samples, self._figures.rows
        while len(samples) > 1 and clock - samples[0][0] > _RATE_OVER_S:
            samples.popleft()
        since, before = samples[0]
        samples.append((clock, rows))
        return round((rows - before) / max(clock - since, PUBLISH_EVERY_S), 1)
