"""Settings of a worker: size and wait of batches, times after which entries are claimed and
consumers forgotten, time for the stop; defaults, checks, error messages."""

from dataclasses import dataclass, field
from typing import Final, Literal

MAX_BLOCK_MS: Final = 4_000
"""Longest wait of one read, in ms: below the socket time-out of 5 s, after which Redis would count
as gone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Settings of one worker process.

    Attributes:
        redis_url: where the streams are; holds the password, so it is not in ``repr``.
        mysql_url: where the tables are, database included; not in ``repr`` either.
        batch_entries: entries read at once, from each stream; an entry holds up to 1,000 rows.
        batch_rows: rows after which a transaction is big enough; bounds memory. One entry is never
            split.
        batch_wait_ms: how long one read waits when the streams are empty, 1 to 4,000 ms. What
            arrives is applied at once: this adds no latency, but a stop goes unnoticed so long.
        claim_idle_ms: entries that another worker holds, untouched, for this long are taken over,
            in ms. Well above the slowest batch: earlier is harmless but wastes work.
        claim_every_s: seconds between two looks for such entries.
        consumer_idle_ms: consumers without pending entries are forgotten after this long, in ms.
        drain: stop when the streams are empty and nothing is pending.
        log_format: ``text`` or ``json``, one line per record on stderr either way.
        stop_within_s: seconds after a signal at which the process ends, come what may.

    Raises:
        ValueError: a number is out of range; the message says what is allowed.
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
        """Refuse what no worker could run with."""
        for name in ("batch_entries", "batch_rows", "batch_wait_ms", "claim_idle_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if self.batch_wait_ms > MAX_BLOCK_MS:
            raise ValueError(f"batch_wait_ms is {self.batch_wait_ms}: at most {MAX_BLOCK_MS} ms")
        if self.claim_every_s <= 0 or self.stop_within_s <= 0:
            raise ValueError("claim_every_s and stop_within_s are seconds above 0")
