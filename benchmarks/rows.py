"""The rows of the table: their names and order, who takes turns with whom, what is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NAMES: Final = (
    "bare",
    "increment",
    "increment_with_folding",
    "increment_many",
    "end_to_end_zipf",
    "end_to_end_distinct",
    "raw_upserts",
    "peer_update",
    "peer_slotted_upsert",
    "peer_rq",
    "peer_celery_batches",
    "peer_hincrby",
)

GROUPS: Final = (
    ("bare", "increment", "increment_with_folding", "increment_many"),
    ("end_to_end_zipf", "peer_hincrby"),
    ("end_to_end_distinct", "raw_upserts"),
    ("peer_update", "peer_slotted_upsert", "peer_rq", "peer_celery_batches"),
)
"""Rows of a group are measured in turns."""

WHAT: Final = {
    "bare": "with lock: d[key] = d.get(key, 0) + 1",
    "increment": "Producer.increment(), the call alone",
    "increment_with_folding": "the same until all is folded",
    "increment_many": "rows in dicts of 1,000, folded",
    "end_to_end_zipf": "Producer → Redis → worker → database",
    "end_to_end_distinct": "the same, every key distinct",
    "raw_upserts": "bulk upserts of distinct rows, one connection",
    "peer_update": "UPDATE … cnt + 1 per event, 16 connections",
    "peer_slotted_upsert": "slotted upsert per event, 16 connections",
    "peer_rq": "one RQ job per event",
    "peer_celery_batches": "celery-batches, 1,000 or 1 s",
    "peer_hincrby": "HINCRBY pipelined by 500, RENAME and flush",
}
"""One line on each row, for the printed table."""

WORKER_MEGABYTES: Final = "worker_megabytes"
"""The extra field with the worker's largest resident memory, in units of 10⁶ bytes."""
WORKER_MEGABYTES_LIMIT: Final = 150


@dataclass(frozen=True, slots=True)
class Target:
    """A promise about two rows: per_second of ``row`` as compared with that of ``to``.

    Attributes:
        cost: False: ``row`` is to be at least ``bound`` times as fast as ``to``. True: an event of
            ``row`` is to cost at most ``bound`` times what one of ``to`` costs.
    """

    row: str
    to: str
    bound: float
    cost: bool

    def ratio(self, row_per_second: float, to_per_second: float) -> float:
        """The figure that is held against ``bound``."""
        if self.cost:
            return to_per_second / row_per_second
        return row_per_second / to_per_second

    def met(self, ratio: float) -> bool:
        """Whether the promise is kept."""
        return ratio <= self.bound if self.cost else ratio >= self.bound

    def __str__(self) -> str:
        if self.cost:
            return f"≤ {self.bound:g}× the cost of {self.to}"
        return f"≥ {self.bound:g}× {self.to}"


TARGETS: Final = (
    Target("increment", "bare", 1.3, cost=True),
    Target("increment_with_folding", "bare", 1.7, cost=True),
    Target("end_to_end_zipf", "peer_hincrby", 10, cost=False),
    Target("end_to_end_distinct", "raw_upserts", 0.85, cost=False),
)
