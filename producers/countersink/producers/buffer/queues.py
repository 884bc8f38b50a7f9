"""Queues before the fold thread: ``CounterLists``, the lists that callers append to; and
``WaitingMembers``, members whose salts are unknown, with limits on their number and bytes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from countersink.runtime.dimensions import RowKey

MAX_COUNTERS: Final = 16_384
"""Maximum of counters with a list of their own (some 300 bytes each, 800 with dimensions). Events
of further counters share a list, which makes their calls slower.
"""
MAX_WAITING: Final = 10_000
"""Maximum of members that wait for their salts, of all counters."""
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Maximum of their bytes."""
WAITING_BYTES: Final = 512
"""Bytes of memory of each waiting member besides its text; includes the key."""

Listed = tuple[str, list[Any], int]
"""(counter, its list, number of events); the shared list has the counter ``""``."""


class CounterLists:
    """A list of events for each counter, to which callers append without a lock. Lists are never
    removed or replaced.

    Attributes:
        others: the shared list, for events that cannot be in the list of their counter.

    Args:
        width: number of list items of an event.
    """

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self._by_counter: dict[str, list[Any]] = {}
        self.others: list[Any] = []
        self._all = [("", self.others)]  # all lists; may grow during an iteration
        self._turn = 0  # rotates the lists: at each call of waiting() another list is folded first

    def list_for(self, counter: str) -> list[Any] | None:
        """The list of a counter; None: there are too many lists."""
        events = self._by_counter.get(counter)
        if events is None and len(self._by_counter) < MAX_COUNTERS:
            new: list[Any] = []
            events = self._by_counter.setdefault(counter, new)
            if events is new:  # setdefault is atomic: only one caller's list is used
                self._all.append((counter, new))
        return events

    @property
    def left(self) -> int:
        """Number of events that are not folded yet."""
        return sum([len(events) for _, events in self._all]) // self._width

    def waiting(self) -> list[Listed]:
        """The lists with events; at each call another list is last."""
        found = [
            (counter, events, len(events) // self._width) for counter, events in self._all if events
        ]
        self._turn = (self._turn + 1) % max(1, len(found))
        return found[self._turn :] + found[: self._turn]


def fold_lists(lists: list[Listed], limit: int, fold: Callable[[str, list[Any], int], int]) -> int:
    """Fold at most ``limit`` events; returns the number of folded events.

    Args:
        lists: the lists, with the numbers of events to fold; the last list is folded first.
            Completely folded lists are removed.
        fold: called with a counter, its list and the maximum of events to fold; returns the number
            of folded events.
    """
    done = 0
    while lists and done < limit:
        counter, events, count = lists.pop()
        folded = fold(counter, events, min(count, limit - done))
        done += folded
        if 0 < folded < count:
            lists.append((counter, events, count - folded))
    return done


@dataclass(slots=True)
class MemberQueue:
    """Waiting members of one counter: (key, minute, member).

    Attributes:
        oldest: the generation in which the first of them was added.
    """

    oldest: int
    members: list[tuple[RowKey, int, bytes]] = field(default_factory=list)


class WaitingMembers:
    """Members whose salts are unknown, in the order of their arrival. The owner's lock guards it.

    Attributes:
        count: number of waiting members.
    """

    def __init__(self) -> None:
        self.count = 0
        self._bytes = 0
        self._queues: dict[str, MemberQueue] = {}

    def add(self, counter: str, key: RowKey, minute: int, member: bytes, generation: int) -> None:
        """Add a member, even beyond the limits."""
        queue = self._queues.setdefault(counter, MemberQueue(generation))
        queue.members.append((key, minute, member))
        self.count += 1
        self._bytes += len(member)

    def pop_excess(self) -> tuple[str, int, RowKey, int] | None:
        """Remove a member if a limit is exceeded: the newest of the counter with most members, so
        that a counter without salts does not displace others. Returns (counter, generation, key,
        minute).
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
        """Number of members that can be added within the limit."""
        return max(0, MAX_WAITING - self.count)

    @property
    def size(self) -> int:
        """Bytes of memory of all waiting members."""
        return self._bytes + self.count * WAITING_BYTES

    @property
    def counters(self) -> list[str]:
        """Counters with waiting members."""
        return list(self._queues)

    @property
    def oldest(self) -> int | None:
        """The generation in which the first of them was added; None: none wait."""
        return min([queue.oldest for queue in self._queues.values()], default=None)

    def take(self, counter: str) -> MemberQueue:
        """Remove and return a counter's members."""
        queue = self._queues.pop(counter)
        self.count -= len(queue.members)
        self._bytes -= sum([len(member) for _, _, member in queue.members])
        return queue

    def clear(self) -> None:
        """Remove all members."""
        self._queues.clear()
        self.count = self._bytes = 0
