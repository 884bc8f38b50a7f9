"""Live numbers: one look a second at MySQL for everybody who listens."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final

from countersink.reads import Reads
from countersink.reads.overview import Glance
from countersink.store.errors import StoreError
from countersink.stream.errors import StreamError
from countersink.web.memory import OnePer
from countersink.web.services import Services

EVERY_S: Final = 1.0
"""Seconds between two looks, at least."""
REST: Final = 4.0
"""Where a look takes long, the pause after it is so many times as long."""
MAX_LISTENERS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look saw.

    Attributes:
        number: of the look, from 1; 0 before the first.
        names: all counters, in order.
        today: by counter its day, in its own time zone, and the total of it; of those wanted.
        complete_up_to: see :class:`countersink.reads.Read`.
        trouble: a server did not answer: nothing else of it is new.
    """

    number: int = 0
    names: tuple[str, ...] = ()
    today: Mapping[str, tuple[date, int]] = field(default_factory=dict)
    complete_up_to: datetime | None = None
    trouble: bool = False


@dataclass(eq=False, slots=True)
class Listener:
    """Somebody who wants to know.

    Attributes:
        counters: whose totals of today are wanted.
        may_name: which counters may be told of.
        wake: set whenever there was another look.
    """

    counters: frozenset[str]
    may_name: Callable[[str], bool]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _sent: dict[str, tuple[date, int]] = field(default_factory=dict)
    _last: int = 0

    def news(self, seen: Seen) -> dict[str, Any] | None:
        """What has changed since it was asked last, as a document; None where there was no look."""
        if seen.number == self._last:
            return None
        self._last = seen.number
        if seen.trouble:
            return {"trouble": True}
        changed = {
            name: seen.today[name]
            for name in sorted(self.counters & seen.today.keys())
            if seen.today[name] != self._sent.get(name)
        }
        self._sent |= changed
        complete = seen.complete_up_to
        return {
            "counters": sum(map(self.may_name, seen.names)),
            "complete_up_to": None
            if complete is None
            else complete.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "today": {
                name: {"day": day.isoformat(), "total": total}
                for name, (day, total) in changed.items()
            },
        }


class Feed:
    """Looks as long as anybody listens. For the event loop's thread.

    Args:
        services: what to look with.

    Attributes:
        seen: the last look.
        listeners: who listens.
    """

    def __init__(self, services: Services) -> None:
        self.seen = Seen()
        self._services = services
        self.listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether nobody more may listen."""
        return len(self.listeners) >= MAX_LISTENERS

    @property
    def looking(self) -> bool:
        """Whether another look will come."""
        return self._task is not None and not self._task.done()

    @contextmanager
    def joined(self, listener: Listener) -> Iterator[None]:
        """Let somebody listen until the end of the block."""
        self.listeners.add(listener)
        if not self.looking:
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self.listeners.discard(listener)

    async def _look(self) -> None:
        while self.listeners:
            began = time.monotonic()
            wanted = frozenset[str]().union(*(one.counters for one in self.listeners))
            number = self.seen.number + 1
            try:
                self.seen = await self._services.run(look, self._services.reads, wanted, number)
            except (StoreError, StreamError):
                self.seen = Seen(number=number, trouble=True)
            for listener in self.listeners:
                listener.wake.set()
            if await self._paused(max(EVERY_S, REST * (time.monotonic() - began))):
                break

    async def _paused(self, seconds: float) -> bool:
        """Wait; whether the process is to end, which all who listen are woken for."""
        try:
            async with asyncio.timeout(seconds):
                await self._services.stopping.wait()
        except TimeoutError:
            return False
        for listener in self.listeners:
            listener.wake.set()
        return True


FEEDS: Final = OnePer(Feed)


def look(reads: Reads, wanted: frozenset[str], number: int) -> Seen:
    """Ask MySQL and Redis once.

    Raises:
        StoreError: MySQL did not do its part.
    """
    names = reads.names()
    known = wanted.intersection(names.value)
    today: dict[str, tuple[date, int]] = {}
    complete = names.complete_up_to
    if known:
        glance = Glance(limit=len(known), days=1, totals=False, visible=known.__contains__)
        found = reads.overview(glance)
        today = {line.counter: line.days[-1] for line in found.value.lines if line.days}
        complete = found.complete_up_to
    return Seen(number=number, names=tuple(names.value), today=today, complete_up_to=complete)
