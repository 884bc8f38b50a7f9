"""Where ``increment()`` leaves its events, and how they become rows.

The caller's side must cost less than a locked dictionary update. So there is a list of keys per
counter, and a call is one ``list.append``, which is atomic: no lock, no tuple, nothing to collect.
The lists live as long as the intake and are never replaced (a caller that has just fetched
``append`` would leave its event in a list that nobody reads): the folder copies a prefix, deletes
it, and counts it with ``collections.Counter``, whose loop is in C.

``fast`` maps a counter's name to the ``append`` of its list. A name that is not in there goes the
slow way, which checks everything and does what else has to be done, such as starting the threads.
So the fast way needs no test of the producer's state: whenever callers should take the slow way,
``fast`` is emptied.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from threading import Lock
from typing import Final

from countersink.producers.clock import RedisClock
from countersink.producers.rows import RowBuffer
from countersink.stream.limits import MAX_AMOUNT, MIN_AMOUNT

FAST_COUNTERS: Final = 512
"""Counters with a list of their own; the events of further ones share a list, at a higher price per
call.
"""
MAX_RAW: Final = 500_000
"""Events not folded yet above which callers fold a chunk themselves."""
CHUNK: Final = 2_000
"""Events that a caller or a flush folds at a time."""

BATCH: Final = 500
"""Items at most that one batch of ``increment_many`` carries."""


Event = tuple[str, str, int | None, int]
"""(counter, key, minute or None for now, amount)."""
Batch = tuple[str, int | None, Sequence[str], Sequence[int]]
"""(counter, minute or None for now, keys, amounts): an increment for each key."""


class Mode(Enum):
    """What a call that takes the slow way has to do besides leaving its event."""

    IDLE = "start or wake the threads"
    HOT = "nothing: the folder looks every few ms"
    CROWDED = "fold a chunk"
    CLOSED = "refuse"


class Intake:
    """Events on their way into the row buffer, and the count of what was accepted and dropped.

    Attributes:
        fast: counter name → ``append`` for the key of an increment by 1, now.
        lock: guards the row buffer, the figures and the taking of events. Never held during I/O.
        accepted: increments folded into rows; ``dropped``: those that found no room.
    """

    def __init__(self, buffer: RowBuffer, clock: RedisClock, wake: Callable[[], None]) -> None:
        self.fast: dict[str, Callable[[str], None]] = {}
        self.lock = Lock()
        self.buffer = buffer
        self.accepted = 0
        self.dropped = 0
        self.mode = Mode.IDLE
        self._clock = clock
        self._wake = wake
        self._ones: dict[str, list[str]] = {}
        self._lists: list[tuple[str, list[str]]] = []  # the same lists; safe to walk while it grows
        self._mixed: list[Event] = []
        self._batches: list[Batch] = []
        self._late: list[int] = []
        self._named: list[tuple[str, Event]] = []
        self._turn = -1  # whose list was folded last, so that each gets its turn

    # --- the callers' side -------------------------------------------------------------------

    def put(self, counter: str, key: str, minute: int | None, amount: int) -> None:
        """Leave a checked event."""
        if amount == 1 and minute is None:
            events = self._list_of(counter)
            if events is not None:
                events.append(key)
                if self._hot():
                    self.fast[counter] = events.append
                    if not self._hot():  # changed meanwhile, and `fast` perhaps emptied
                        self.fast.clear()
                self._after_put(len(events))
                return
        self._mixed.append((counter, key, minute, amount))
        self._after_put(len(self._mixed))

    def put_many(
        self, counter: str, minute: int | None, keys: Sequence[str], amounts: Sequence[int]
    ) -> None:
        """Leave checked events, all at once."""
        self._batches.extend(
            [
                (counter, minute, keys[at : at + BATCH], amounts[at : at + BATCH])
                for at in range(0, len(keys), BATCH)
            ]
        )
        self._after_put(len(self._batches) * BATCH)

    def put_named(self, id: str, event: Event) -> None:
        """Leave a checked event that has the app's own id."""
        self._named.append((id, event))
        self._after_put(len(self._named))

    def refuse(self, increments: int) -> None:
        """Count increments that came too late as dropped."""
        self._late.append(increments)

    def switch(self, mode: Mode) -> None:
        """Change what callers have to do. ``CLOSED`` is final."""
        if self.mode is not Mode.CLOSED:
            self.mode = mode
        if self.mode is not Mode.HOT:
            self.fast.clear()

    def _hot(self) -> bool:
        return self.mode is Mode.HOT

    def _list_of(self, counter: str) -> list[str] | None:
        events = self._ones.get(counter)
        if events is None and len(self._ones) < FAST_COUNTERS:
            mine: list[str] = []
            events = self._ones.setdefault(counter, mine)
            if events is mine:  # setdefault is atomic: one caller wins
                self._lists.append((counter, mine))
        return events

    def _after_put(self, waiting: int) -> None:
        """Do what the mode asks for; ``waiting``: events in the list that the caller has used."""
        if self.mode is Mode.IDLE:
            self._wake()
        elif (
            waiting > (CHUNK if self.mode is Mode.CROWDED else MAX_RAW)
            # Whoever finds the lock taken goes on: its holder is folding, or will be done in
            # microseconds. Waiting here could also be for ever, in a signal handler that
            # interrupted the holder.
            and self.lock.acquire(blocking=False)
        ):
            try:
                self._fold_chunk(CHUNK)
            finally:
                self.lock.release()

    # --- the folder's side -------------------------------------------------------------------

    def raw(self) -> int:
        """Events that are not folded yet."""
        ones = sum([len(events) for _, events in self._lists])
        many = sum([len(keys) for _, _, keys, _ in self._batches])
        return ones + many + len(self._mixed) + len(self._named)

    def fold(self, limit: int) -> int:
        """Fold at most ``limit`` events of each kind; how many were folded."""
        with self.lock:
            return self._fold_chunk(limit)

    def fold_all(self) -> None:
        """Fold what there is now, in chunks."""
        left = self.raw()
        while left > 0:
            folded = self.fold(CHUNK)
            if not folded:
                return
            left -= folded

    def fold_rest_locked(self) -> None:
        """Fold what there is now in one go; the caller holds the lock."""
        while self._late:
            self.dropped += self._late.pop()
        left = self.raw()
        while left > 0:
            folded = self._fold_chunk(left)
            if not folded:
                return
            left -= folded

    def _fold_chunk(self, limit: int) -> int:
        minute = self._clock.minute()
        done = self._fold_ones(limit, minute)
        # Kinds that come seldom have a limit of their own, or a busy one could keep them waiting.
        if self._mixed:
            done += self._fold_mixed(limit, minute)
        if self._batches:
            done += self._fold_batches(limit, minute)
        if self._named:
            done += self._fold_named(limit, minute)
        return done

    def _fold_ones(self, limit: int, minute: int) -> int:
        lists = self._lists
        done = 0
        for _ in range(len(lists)):
            self._turn = (self._turn + 1) % len(lists)
            counter, events = lists[self._turn]
            if events:
                chunk = events[: limit - done]
                del events[: len(chunk)]
                done += len(chunk)
                dropped = self.buffer.add_ones(counter, minute, chunk)
                self.dropped += dropped
                self.accepted += len(chunk) - dropped
                if done >= limit:
                    break
        return done

    def _fold_mixed(self, limit: int, minute: int) -> int:
        chunk = self._mixed[:limit]
        del self._mixed[: len(chunk)]
        dropped = 0
        add = self.buffer.add
        for (counter, key, at, amount), count in Counter(chunk).items():
            when = minute if at is None else at
            if MIN_AMOUNT <= amount * count <= MAX_AMOUNT:
                dropped += add(counter, key, when, amount * count, count)
            else:
                for _ in range(count):
                    dropped += add(counter, key, when, amount, 1)
        self.dropped += dropped
        self.accepted += len(chunk) - dropped
        return len(chunk)

    def _fold_batches(self, limit: int, minute: int) -> int:
        done = 0
        while self._batches and done < limit:
            counter, at, keys, amounts = self._batches.pop(0)
            dropped = self.buffer.add_batch(counter, minute if at is None else at, keys, amounts)
            self.dropped += dropped
            self.accepted += len(keys) - dropped
            done += len(keys)
        return done

    def _fold_named(self, limit: int, minute: int) -> int:
        chunk = self._named[:limit]
        del self._named[: len(chunk)]
        dropped = 0
        for id, (counter, key, at, amount) in chunk:
            row = (counter, key, minute if at is None else at, amount)
            dropped += self.buffer.add_named(id, row)
        self.dropped += dropped
        self.accepted += len(chunk) - dropped
        return len(chunk)
