"""``WaitingMembers``, members whose salts are not known yet: how many wait at most, and which leave
when there are more."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from countersink.runtime.dimensions import RowKey

MAX_WAITING: Final = 10_000
"""Members that wait for their salts at most, of all counters;"""
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""and their bytes."""
WAITING_BYTES: Final = 512
"""Bytes that each member takes besides itself, its key included."""


@dataclass(slots=True)
class _Queue:
    oldest: int  # the generation in which the first of them came
    waiting: deque[tuple[RowKey, int, bytes]] = field(default_factory=deque)


class WaitingMembers:
    """Members whose salts are not known, in the order in which they came. Its owner holds a lock.

    Attributes:
        count: how many there are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._bytes = 0
        self._queues: dict[str, _Queue] = {}

    def add(
        self, counter: str, key: RowKey, minute: int, member: bytes, generation: int
    ) -> list[tuple[str, int, RowKey, int]]:
        """Let one wait; those that had to leave for it, of the counter with most of them, which may
        be this one: counter, generation, key, minute.
        """
        queue = self._queues.get(counter)
        if queue is None:
            queue = self._queues[counter] = _Queue(generation)
        queue.waiting.append((key, minute, member))
        self.count += 1
        self._bytes += len(member)
        left = []
        while self.count > MAX_WAITING or self._bytes > MAX_WAITING_BYTES:
            largest = max(self._queues, key=lambda name: len(self._queues[name].waiting))
            oldest = self.oldest_of(largest)
            own_key, own_minute, _ = self._pop(largest, last=largest == counter)
            left.append((largest, oldest, own_key, own_minute))
        return left

    def _pop(self, counter: str, *, last: bool = False) -> tuple[RowKey, int, bytes]:
        waiting = self._queues[counter].waiting
        found = waiting.pop() if last else waiting.popleft()
        self.count -= 1
        self._bytes -= len(found[2])
        if not waiting:
            del self._queues[counter]
        return found

    @property
    def room(self) -> int:
        """How many more may wait."""
        return max(0, MAX_WAITING - self.count)

    @property
    def size(self) -> int:
        """What they take in memory."""
        return self._bytes + self.count * WAITING_BYTES

    @property
    def counters(self) -> list[str]:
        """Whose members wait."""
        return list(self._queues)

    @property
    def oldest(self) -> int | None:
        """The generation in which the first of them came; None: there are none."""
        return min([queue.oldest for queue in self._queues.values()], default=None)

    def take(self, counter: str) -> Iterator[tuple[RowKey, int, bytes]]:
        """Take out those of a counter that wait now."""
        for _ in range(len(self._queues[counter].waiting)):
            yield self._pop(counter)

    def oldest_of(self, counter: str) -> int:
        """The generation in which the first one of a counter came."""
        return self._queues[counter].oldest

    def clear(self) -> None:
        """Forget all."""
        self._queues.clear()
        self.count = self._bytes = 0

    def __repr__(self) -> str:
        return f"<WaitingMembers {self.count}>"
