"""How many reads may be under way at once: in all, and of one key or address."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

import anyio

from countersink.web.problem import Problem

MAX_READS: Final = 32
"""Reads of one holder, of one kind, that are under way or wait for their turn."""
MAX_PENDING_READS: Final = 8
"""The same of those that read the queue, of which one is under way at a time."""

Kind = Literal["one", "all", "pending"]
"""Reads of single counters or pages of them, of all counters, and with what is in the queue."""


@dataclass(slots=True)
class _Holder:
    """A key, or an address without one, with reads of one kind.

    Attributes:
        running: bounds those of them that run.
        number: how many there are, with those that wait.
    """

    running: anyio.CapacityLimiter
    number: int = 0


@dataclass(eq=False, slots=True)
class ReadPlaces:
    """Places for reads. For the event loop's thread.

    Reads of all counters, and those of one holder, have a part of the threads: whatever these do,
    others have a thread to read in.

    Args:
        threads: that read at once.

    Attributes:
        one, all, pending: bound those of each kind that run at once.
    """

    threads: int
    one: anyio.CapacityLimiter = field(init=False)
    all: anyio.CapacityLimiter = field(init=False)
    pending: anyio.CapacityLimiter = field(init=False)
    _holders: dict[tuple[str, Kind], _Holder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the limiters."""
        self.one = anyio.CapacityLimiter(self.threads)
        self.all = anyio.CapacityLimiter(max(1, self.threads // 4))
        self.pending = anyio.CapacityLimiter(1)

    @property
    def taken(self) -> int:
        """Reads that are under way or wait."""
        return sum(holder.number for holder in self._holders.values())

    def limiter(self, kind: Kind) -> anyio.CapacityLimiter:
        """What bounds all reads of a kind."""
        return {"one": self.one, "all": self.all, "pending": self.pending}[kind]

    @contextmanager
    def held(self, name: str, kind: Kind) -> Iterator[anyio.CapacityLimiter]:
        """A holder's place until the end of the block; what bounds those of them that run.

        Raises:
            Problem: 429, the holder has too many.
        """
        most = MAX_PENDING_READS if kind == "pending" else MAX_READS
        holder = self._holders.get((name, kind))
        if holder is None:
            # Of those that read the queue one runs anyway: all of them wait for that in one line.
            half = most if kind == "pending" else max(1, self.limiter(kind).total_tokens // 2)
            holder = self._holders[name, kind] = _Holder(anyio.CapacityLimiter(half))
        if holder.number >= most:
            raise Problem(
                429,
                f"{most} reads with this key, or from this address, are under way already: wait"
                " for their answers",
                headers={"Retry-After": "2"},
            )
        holder.number += 1
        try:
            yield holder.running
        finally:
            holder.number -= 1
            if not holder.number:
                del self._holders[name, kind]
