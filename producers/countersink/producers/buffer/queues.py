"""Queues before the fold thread: ``CounterLists``, the lists that callers append events to; and
``WaitingMembers``, the sightings whose members cannot be hashed yet because their salts are
unknown, with limits on their number and bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from countersink.runtime.dimensions import RowKey

MAX_COUNTERS: Final = 16_384
"""Maximum of counters that have a list of their own (some 300 bytes each, 800 with dimensions). The
events of further counters share one list, which makes their calls slower."""
MAX_WAITING: Final = 10_000
"""Maximum of members that wait for their salts, in all counters together."""
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Maximum of bytes in the names of the members that wait."""
WAITING_BYTES: Final = 512
"""Bytes of memory that a waiting member takes besides its name, its key included."""

Listed = tuple[str, list[Any], int]
"""(name of a counter, its list, number of events in the list). For the list that counters share the
name is ``""``."""


class CounterLists:
    """A list of events for each counter, to which callers append without a lock. A list is never
    removed or replaced, because callers keep references to it.

    Attributes:
        others: one more list, which all counters share. It takes the events that callers do not
            append to their counter's own list: events with a minute or an amount of their own, for
            example, and those of counters for which :meth:`list_for` returns None.

    Args:
        width: number of items that one event takes in each list: 1 for an increment, 2 for a
            sighting.
    """

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self._by_counter: dict[str, list[Any]] = {}
        self.others: list[Any] = []
        self._all = [("", self.others)]  # all lists; may grow during an iteration
        self._turn = 0  # rotates the lists: at each call of waiting() another list is folded first

    def list_for(self, counter: str) -> list[Any] | None:
        """Return the list of a counter, and make it if it is missing. Return None if it is missing
        and ``MAX_COUNTERS`` counters have a list already.
        """
        events = self._by_counter.get(counter)
        if events is None and len(self._by_counter) < MAX_COUNTERS:
            new: list[Any] = []
            events = self._by_counter.setdefault(counter, new)
            if events is new:  # setdefault is atomic: only one caller's list is used
                self._all.append((counter, new))
        return events

    @property
    def left(self) -> int:
        """Number of events that are not folded yet, in all lists, ``others`` included."""
        return sum([len(events) for _, events in self._all]) // self._width

    def waiting(self) -> list[Listed]:
        """Return (counter, list, number of events) for each list that has events. For ``others``
        the counter is ``""``. The order rotates from call to call: :func:`fold_lists` begins with
        the last list, and no list shall always be the last one to be folded.
        """
        found = [
            (counter, events, len(events) // self._width) for counter, events in self._all if events
        ]
        self._turn = (self._turn + 1) % max(1, len(found))
        return found[self._turn :] + found[: self._turn]


def fold_lists(lists: list[Listed], limit: int, fold: Callable[[str, list[Any], int], int]) -> int:
    """Fold at most ``limit`` events, and return the number of folded events.

    Args:
        lists: the lists, each with the number of its events to fold. The last list is folded first.
            A list that was folded completely, or of which ``fold`` has folded nothing, is removed
            from ``lists``. A list that was folded in part stays, with the number of its
            other events.
        fold: a function that folds events of one list and deletes them from it. It takes the name
            of a counter, its list and the maximum of events to fold, and returns the number of
            folded events.
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
    """The sightings of one counter that wait for salts.

    Attributes:
        oldest: number of the generation in which the oldest of these sightings came, or of an
            earlier generation.
        members: (key, minute, member) of each sighting.
    """

    oldest: int
    members: list[tuple[RowKey, int, bytes]] = field(default_factory=list)


class WaitingMembers:
    """The sightings whose members wait for a salt, for each counter in the order in which they were
    added. The lock of the ``EventBuffer`` guards this object.

    Attributes:
        count: number of waiting members of all counters.
    """

    def __init__(self) -> None:
        self.count = 0
        self._bytes = 0
        self._queues: dict[str, MemberQueue] = {}

    def add(self, counter: str, key: RowKey, minute: int, member: bytes, generation: int) -> None:
        """Add a sighting, even if a limit is exceeded afterwards: calls of :meth:`pop_excess` then
        remove sightings.

        Args:
            generation: number of the generation in which the sighting came, or of an earlier one.
        """
        queue = self._queues.setdefault(counter, MemberQueue(generation))
        queue.members.append((key, minute, member))
        self.count += 1
        self._bytes += len(member)

    def pop_excess(self) -> tuple[str, int, RowKey, int] | None:
        """If a limit is exceeded, remove one sighting and return its (counter, generation, key,
        minute), so that it can be counted without its member. The generation is that of the
        counter's oldest waiting sighting before the removal. Return None if no limit is exceeded.

        The newest sighting of the counter with most waiting members is removed, so that a counter
        without salts does not displace other counters.
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
        """Number of members that can be added until their number reaches the limit; at least 0."""
        return max(0, MAX_WAITING - self.count)

    @property
    def size(self) -> int:
        """Estimated bytes of memory of all members that wait for a salt, with their keys."""
        return self._bytes + self.count * WAITING_BYTES

    @property
    def counters(self) -> list[str]:
        """Names of the counters that have waiting members."""
        return list(self._queues)

    @property
    def oldest(self) -> int | None:
        """The generation in which the oldest waiting sighting came; None where no member waits."""
        return min([queue.oldest for queue in self._queues.values()], default=None)

    def take(self, counter: str) -> MemberQueue:
        """Remove the waiting sightings of a counter and return them.

        Raises:
            KeyError: the counter has no waiting sightings.
        """
        queue = self._queues.pop(counter)
        self.count -= len(queue.members)
        self._bytes -= sum([len(member) for _, _, member in queue.members])
        return queue

    def clear(self) -> None:
        """Remove all waiting sightings."""
        self._queues.clear()
        self.count = self._bytes = 0
