"""Queues in front of the fold thread: ``CounterLists``, the lists that callers append to;
``WaitingMembers``, members whose salts are not known yet, and how many wait at most."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from countersink.runtime.dimensions import RowKey

MAX_COUNTERS: Final = 16_384
"""Counters with a list of their own, some 300 bytes each, 800 with dimensions; the events of
further ones share a list, at a higher price per call.
"""
MAX_WAITING: Final = 10_000
"""Members that wait for their salts at most, of all counters;"""
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""and their bytes."""
WAITING_BYTES: Final = 512
"""Bytes that each member takes besides itself, its key included."""

Listed = tuple[str, list[Any], int]
"""(counter or ``""``, its list or the one of all others, how many events are in it)."""


class CounterLists:
    """A list of events for each counter, to which callers add without a lock. They live as long as
    this, and are never replaced.

    Attributes:
        others: the list of what cannot be in a counter's own.

    Args:
        width: how many items an event is.
    """

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self._of: dict[str, list[Any]] = {}
        self.others: list[Any] = []
        self._all = [("", self.others)]  # all lists, safe to walk while there come more
        self._turn = 0  # whose list is folded first, so that each gets its turn

    def of(self, counter: str) -> list[Any] | None:
        """The list of a counter; None: there are too many."""
        events = self._of.get(counter)
        if events is None and len(self._of) < MAX_COUNTERS:
            mine: list[Any] = []
            events = self._of.setdefault(counter, mine)
            if events is mine:  # setdefault is atomic: one caller wins
                self._all.append((counter, mine))
        return events

    @property
    def left(self) -> int:
        """Events that are not folded yet."""
        return sum([len(events) for _, events in self._all]) // self._width

    def waiting(self) -> list[Listed]:
        """The lists that have events now; at each call another one is last."""
        found = [
            (counter, events, len(events) // self._width) for counter, events in self._all if events
        ]
        self._turn = (self._turn + 1) % max(1, len(found))
        return found[self._turn :] + found[: self._turn]


def fold_lists(of: list[Listed], limit: int, fold: Callable[[str, list[Any], int], int]) -> int:
    """Fold at most ``limit`` events; how many were folded.

    Args:
        of: from these lists, from the last one on, each by as many as it says, which are taken off.
        fold: folds at most as many of a list as it is told, and returns how many.
    """
    done = 0
    while of and done < limit:
        counter, events, there = of.pop()
        folded = fold(counter, events, min(there, limit - done))
        done += folded
        if 0 < folded < there:
            of.append((counter, events, there - folded))
    return done


@dataclass(slots=True)
class MemberQueue:
    """Members of one counter: key, minute and member of each.

    Attributes:
        oldest: the generation in which the first of them came.
    """

    oldest: int
    members: list[tuple[RowKey, int, bytes]] = field(default_factory=list)


class WaitingMembers:
    """Members whose salts are not known, in the order in which they came. Its owner holds a lock.

    Attributes:
        count: how many there are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._bytes = 0
        self._queues: dict[str, MemberQueue] = {}

    def add(self, counter: str, key: RowKey, minute: int, member: bytes, generation: int) -> None:
        """Let one wait, though there may be no room."""
        queue = self._queues.setdefault(counter, MemberQueue(generation))
        queue.members.append((key, minute, member))
        self.count += 1
        self._bytes += len(member)

    def pop_excess(self) -> tuple[str, int, RowKey, int] | None:
        """Take out the newest member of the counter with most, if there are too many: counter,
        generation, key, minute. So a counter that never gets salts takes the room of no other.
        """
        if self.count <= MAX_WAITING and self._bytes <= MAX_WAITING_BYTES:
            return None
        counter = max(self._queues, key=lambda name: len(self._queues[name].members))
        queue = self._queues[counter]
        key, minute, member = queue.members.pop()
        if not queue.members:
            del self._queues[counter]
        self.count -= 1
        self._bytes -= len(member)
        return counter, queue.oldest, key, minute

    @property
    def room(self) -> int:
        """How many more may wait."""
        return max(0, MAX_WAITING - self.count)

    @property
    def size(self) -> int:
        """Bytes of memory that they take."""
        return self._bytes + self.count * WAITING_BYTES

    @property
    def counters(self) -> list[str]:
        """Whose members wait."""
        return list(self._queues)

    @property
    def oldest(self) -> int | None:
        """The generation in which the first of them came; None: there are none."""
        return min([queue.oldest for queue in self._queues.values()], default=None)

    def take(self, counter: str) -> MemberQueue:
        """Take out those of a counter."""
        queue = self._queues.pop(counter)
        self.count -= len(queue.members)
        self._bytes -= sum([len(member) for _, _, member in queue.members])
        return queue

    def clear(self) -> None:
        """Forget all."""
        self._queues.clear()
        self.count = self._bytes = 0
