"""Settings of a worker, with their defaults, checks and error messages: the size of batches, the
waits for entries, when entries are claimed and consumers deleted, and the time limit of a stop.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

MAX_BLOCK_MS: Final = 4_000
"""Longest wait of one read, in ms. It is below the socket timeout of 5 s, after which Redis counts
as away.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Settings of one worker process.

    Attributes:
        redis_url: URL of the Redis with the streams; not in ``repr``, because it has the password.
        mysql_url: URL of the database with the tables; not in ``repr``, for the same reason.
        batch_entries: about how many entries one read takes at most from all streams together (from
            each stream if Redis is a cluster). Each stream has an equal share, but at least one
            entry. An entry of our producer has up to 1,000 rows.
        batch_rows: number of rows at which a batch is full, to bound memory. An entry is never
            split, so a batch can have more.
        batch_wait_ms: ms for which a read of empty streams waits, 1 to 4,000. Entries are applied
            as soon as they arrive. A longer wait only means that a stop is noticed later.
        claim_idle_ms: ms for which an entry must be pending with another worker before this worker
            takes it over. Also the age from which on this worker reads an entry that was delivered
            once and is now pending with no worker, so that Redis does not deliver it again. It
            should exceed the time of the slowest batch: to take an entry over too early is
            harmless, but wastes work. Entries of a worker without a heartbeat are taken over after
            about 3 s, whatever this option says.
        claim_every_s: seconds between two searches for the entries that ``claim_idle_ms``
            describes. With ``drain``, a longer time counts as 1 second.
        consumer_idle_ms: ms after which an idle consumer of another worker is deleted from the
            consumer group, if it has no pending entries.
        drain: whether to stop when the streams are empty and nothing is pending with any worker.
        log_format: ``text`` or ``json``; each writes records as lines to stderr.
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
        """Check the ranges of numbers. Raises ValueError."""
        for name in ("batch_entries", "batch_rows", "batch_wait_ms", "claim_idle_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.batch_wait_ms > MAX_BLOCK_MS:
            raise ValueError(f"batch_wait_ms is {self.batch_wait_ms}: the most is {MAX_BLOCK_MS}")
        if self.claim_every_s <= 0 or self.stop_within_s <= 0:
            raise ValueError("claim_every_s and stop_within_s must be above 0")
