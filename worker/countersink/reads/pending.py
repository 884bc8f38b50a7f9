"""What of the queue is not in MySQL yet, decided in the snapshot in which the totals are read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from countersink.reads.queue import Queue
from countersink.reads.wanted import Cell
from countersink.store import guards, strict
from countersink.store.connection import Session
from countersink.store.control import read_control
from countersink.store.policies import Policies

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

    def by_label(self) -> dict[int, int]:
        """The sums by the label of the bucket."""
        return self.sums(lambda cell: cell[1])

    def by_key(self) -> dict[str, int]:
        """The sums by key."""
        return self.sums(lambda cell: cell[2])

    def by_counter(self) -> dict[str, int]:
        """The sums by counter."""
        return self.sums(lambda cell: cell[0])


class PoliciesChanged(Exception):
    """The queue was added up by policies that are not those of the snapshot: do it again."""


def settle(session: Session, queue: Queue, policies: Policies) -> Pending:
    """What of ``queue`` has not been applied in this session's snapshot.

    The queue was read before the snapshot began. An entry that was applied before it has its guard
    in it, and its sums too; one applied later has neither. So each is counted once, wherever the
    workers are. An entry older than the watermark may have lost its guard: the worker will not
    count it, nor is it counted here. Nor are rows of the counters of tracked tables, nor, in strict
    mode, of unknown ones, nor those that are in what their bucket was set to: these the queue was
    read without.

    Args:
        session: in the snapshot.
        queue: what was read.
        policies: by which its rows were put into buckets.

    Raises:
        PoliciesChanged: they are not those of the snapshot.
        StoreError: as any query.
    """
    control = read_control(session, lock="")
    if control.policy_version != policies.version:
        raise PoliciesChanged
    young = {name: entry for name, entry in queue.entries.items() if entry.at >= control.watermark}
    applied = guards.known(session, list(young))
    left = [entry for name, entry in young.items() if name not in applied]
    counters = {counter for entry in left for counter in entry.counters} - policies.tracked
    if control.strict:
        counters = strict.known(session, counters)
    pending = Pending(len(left), counters)
    for entry in left:
        for cell, amount in entry.cells.items():
            if cell[0] in counters:
                pending.cells[cell] = pending.cells.get(cell, 0) + amount
    return pending
