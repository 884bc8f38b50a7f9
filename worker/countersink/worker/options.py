"""Settings of a worker: size of batches and wait for entries, times after which entries are claimed
and consumers deleted, time limit of a stop; defaults, checks, error messages."""

from dataclasses import dataclass, field
from typing import Final, Literal

MAX_BLOCK_MS: Final = 4_000
"""Longest wait of one read, in ms: below the socket timeout of 5 s, after which Redis counts as
away.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Settings of one worker process.

    Attributes:
        redis_url: URL of the Redis with the streams; not in ``repr``, as it has the password.
        mysql_url: URL of the database with the tables; not in ``repr`` either.
        batch_entries: entries read at once, from each stream; an entry has up to 1,000 rows.
        batch_rows: rows after which a batch ends; bounds memory. An entry is never split.
        batch_wait_ms: ms for which a read of empty streams waits, 1 to 4,000. Entries are applied
            as they arrive: this adds no latency, but delays the notice of a stop.
        claim_idle_ms: ms after which entries that another worker holds idle are taken over. Should
            exceed the slowest batch: claiming too early is harmless, but wastes work.
        claim_every_s: seconds between two searches for such entries.
        consumer_idle_ms: ms after which idle consumers without pending entries are deleted.
        drain: stop when the streams are empty and nothing is pending.
        log_format: ``text`` or ``json``; either writes one line per record to stderr.
        stop_within_s: seconds after a signal at which the process ends in any case.

    Raises:
        ValueError: a number is out of range.
    """

    redis_url: str = field(repr=False)
    mysql_url: str = field(repr=False)
    batch_entries: int = 200
    batch_rows: int = 40_000
    batch_wait_ms: int = 100
    claim_idle_ms: int = 60_000
    claim_every_s: float = 10.0
    consumer_idle_ms: int = 600_000
    drain: bool = False
    log_format: Literal["text", "json"] = "text"
    stop_within_s: float = 8.0

    def __post_init__(self) -> None:
        """Check the ranges of numbers."""
        for name in ("batch_entries", "batch_rows", "batch_wait_ms", "claim_idle_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.batch_wait_ms > MAX_BLOCK_MS:
            raise ValueError(f"batch_wait_ms is {self.batch_wait_ms}: the most is {MAX_BLOCK_MS}")
        if self.claim_every_s <= 0 or self.stop_within_s <= 0:
            raise ValueError("claim_every_s and stop_within_s must be above 0")
