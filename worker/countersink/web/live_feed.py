"""Live numbers: one look a second at MySQL for everybody who listens."""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from fnmatch import translate
from functools import partial
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
MAX_PER_KEY: Final = 25
"""Listeners with one key, be it by logins: others find room beside it."""
MAX_PER_ADDRESS: Final = 50
"""Listeners at one address, whatever keys they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look saw.

    Attributes:
        number: of the look, from 1; 0 before the first.
        names: all counters, in order.
        visible: how many of them whoever is bound to some patterns may name; by the patterns of all
            who listened when the look began.
        today: by counter its day, in its own time zone, and the total of it; of those wanted.
        complete_up_to: see :class:`countersink.reads.Read`.
        trouble: a server did not answer: nothing else of it is new.
    """

    number: int = 0
    names: tuple[str, ...] = ()
    visible: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    today: Mapping[str, tuple[date, int]] = field(default_factory=dict)
    complete_up_to: datetime | None = None
    trouble: bool = False


@dataclass(eq=False, slots=True)
class Listener:
    """Somebody who wants to know.

    Attributes:
        counters: whose totals of today are wanted.
        patterns: shell patterns of the counters that may be told of; empty: all.
        key: the id of their key; empty where none is needed.
        address: theirs.
        wake: set whenever there was another look.
    """

    counters: frozenset[str]
    patterns: tuple[str, ...] = ()
    key: str = ""
    address: str = ""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _sent: dict[str, tuple[date, int]] = field(default_factory=dict)
    _last: int = 0

    def news(self, seen: Seen) -> dict[str, Any] | None:
        """What has changed since it was asked last, as a document; None where there was no look, or
        one that had begun before this one came."""
        if seen.number == self._last or not (seen.trouble or self.patterns in seen.visible):
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
            "counters": seen.visible[self.patterns],
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

    def has_room(self, listener: Listener) -> bool:
        """Whether the listener's key, and their address, have not got all they may have."""
        of_key = sum(each.key == listener.key for each in self.listeners)
        of_address = sum(each.address == listener.address for each in self.listeners)
        return (not listener.key or of_key < MAX_PER_KEY) and of_address < MAX_PER_ADDRESS

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
        before = self.seen
        while self.listeners:
            began = time.monotonic()
            wanted = frozenset[str]().union(*(one.counters for one in self.listeners))
            patterns = frozenset(one.patterns for one in self.listeners)
            number = self.seen.number + 1
            work = partial(look, self._services.reads, wanted, patterns, number, before)
            try:
                self.seen = before = await self._services.run(work)
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


def look(
    reads: Reads,
    wanted: frozenset[str],
    patterns: frozenset[tuple[str, ...]],
    number: int,
    before: Seen,
) -> Seen:
    """Ask MySQL and Redis once. Blocks.

    Args:
        reads: whom to ask.
        wanted: whose totals of today are wanted.
        patterns: by which counters are told of, of everybody who listens.
        number: of this look.
        before: an earlier look.

    Raises:
        StoreError: MySQL did not do its part.
    """
    found = reads.names()
    names = tuple(found.value)
    known = wanted.intersection(names)
    today: dict[str, tuple[date, int]] = {}
    complete = found.complete_up_to
    if known:
        glance = Glance(limit=len(known), days=1, totals=False, visible=known.__contains__)
        overview = reads.overview(glance)
        today = {line.counter: line.days[-1] for line in overview.value.lines if line.days}
        complete = overview.complete_up_to
    counted = before.visible if before.names == names else {}
    return Seen(
        number=number,
        names=names,
        visible={
            each: counted[each] if each in counted else _visible(names, each) for each in patterns
        },
        today=today,
        complete_up_to=complete,
    )


def _visible(names: tuple[str, ...], patterns: tuple[str, ...]) -> int:
    """How many names fit one of the patterns; all, where there are none."""
    if not patterns:
        return len(names)
    fits = re.compile("|".join(map(translate, patterns))).match
    return sum(1 for name in names if fits(name))
