"""What of the queue is not in MySQL yet, decided in the snapshot in which the totals are read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import TypeVar

from countersink.reads.queue import Cell, Queue
from countersink.store import guards
from countersink.store.connection import Session

Group = TypeVar("Group")


@dataclass(slots=True)
class Pending:
    """What the workers have still to count.

    Attributes:
        entries: how many stream entries.
        counters: the counters they have rows of.
        cells: the wanted sums.
    """

    entries: int = 0
    counters: set[str] = field(default_factory=set)
    cells: dict[Cell, int] = field(default_factory=dict)

    def sums(self, group: Callable[[Cell], Group]) -> dict[Group, int]:
        """The sums by whatever ``group`` makes of a cell."""
        sums: dict[Group, int] = {}
        for cell, amount in self.cells.items():
            name = group(cell)
            sums[name] = sums.get(name, 0) + amount
        return sums

    def total(self) -> int:
        """The sum over all cells."""
        return sum(self.cells.values())

    def by_day(self) -> dict[date, int]:
        """The sums by day."""
        return self.sums(lambda cell: cell[1])

    def by_key(self) -> dict[str, int]:
        """The sums by key."""
        return self.sums(lambda cell: cell[2])

    def by_counter(self) -> dict[str, int]:
        """The sums by counter."""
        return self.sums(lambda cell: cell[0])


def settle(session: Session, queue: Queue) -> Pending:
    """What of ``queue`` has not been applied in this session's snapshot.

    The queue was read before the snapshot began. An entry that was applied before it has its guard
    in it, and its sums too; one applied later has neither. So each is counted once, wherever the
    workers are. An entry older than the watermark may have lost its guard: the worker will not
    count it, nor is it counted here.

    Raises:
        StoreError: as any query.
    """
    watermark = guards.watermark(session)
    young = {name: entry for name, entry in queue.entries.items() if entry.at >= watermark}
    applied = guards.known(session, list(young))
    pending = Pending()
    for name, entry in young.items():
        if name in applied:
            continue
        pending.entries += 1
        pending.counters |= entry.counters
        for cell, amount in entry.cells.items():
            pending.cells[cell] = pending.cells.get(cell, 0) + amount
    return pending
