"""``EventBuffer``, the list that ``increment()`` appends to, and its folding into rows: chunk
sizes, when callers fold or wait, and the counts of accepted and dropped increments.

The caller's side must cost less than a locked dictionary update. So there is a list of keys per
counter, and a call is one ``list.append``, which is atomic: no lock, no tuple, nothing to collect.
The lists live as long as the buffer and are never replaced (a caller that has just fetched
``append`` would leave its event in a list that nobody reads): the fold thread copies a prefix,
deletes it, and counts it with ``collections.Counter``, whose loop is in C.

``fast`` maps a counter's name to the ``append`` of its list; ``fast_dimensions`` to the same, and
to what finds dimensions that were checked. A name that is not in there goes the slow way, which
checks everything and does what else has to be done, such as starting the threads. So the fast way
needs no test of the producer's state: whenever callers should take the slow way, both are emptied.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Final

from countersink.producers.batch import Event, IncrementBatch
from countersink.producers.buffer.generations import rows_at
from countersink.producers.buffer.queues import CounterLists, Listed, fold_lists
from countersink.producers.buffer.rows import RowBuffer
from countersink.producers.buffer.sightings import Sightings
from countersink.producers.lifecycle import wait_for_end
from countersink.producers.threads import RLock, sleep
from countersink.runtime.dimensions import MAX_DIMENSIONS, Dimensions, KnownDimensions, RowKey
from countersink.stream.clock import RedisClock

MAX_RAW: Final = 500_000
"""Events not folded yet above which callers wait a little."""
PAUSE_SECONDS: Final = 0.0001
"""How long a call lets the fold thread go on while there are too many events."""
CHUNK: Final = 2_000
"""Events that a caller folds at a time."""
ALL_CHUNK: Final = 4_000
"""Events that a flush folds at a time."""
MANY_SECONDS: Final = 5e-6
"""How long a call of ``increment_many`` lets the fold thread or the send thread go on, per key."""
MAX_MANY_SECONDS: Final = 0.25
"""At most."""

Many = tuple[str, int | None, Sequence[RowKey], list[int]]
"""(counter, minute or None for now, keys, amounts): an increment for each key."""

Fast = tuple[Callable[[Mapping[str, str]], Any], dict[Any, Dimensions], Callable[[RowKey], None]]
"""What takes the values out of a mapping, and the dimensions by what it takes, both as in
:data:`~countersink.runtime.dimensions.Known`; and the ``append`` of a counter's list."""
_NONE: Final[Fast] = (len, {}, list[RowKey]().append)


class Mode(Enum):
    """What a call that takes the slow way has to do besides leaving its event."""

    IDLE = "start or wake the threads"
    HOT = "nothing: the fold thread looks every few ms"
    FULL = "wait a little: events come faster than they are folded, or than rows leave memory"
    ALONE = "fold a chunk, and try to start the threads: there are none"
    CLOSED = "refuse"


class EventBuffer:
    """Events on their way into the row buffer, and the count of what was accepted and dropped.

    Attributes:
        fast: counter name → ``append`` for the key of an increment by 1, now.
        fast_dimensions: counter name → by the number of dimensions → :data:`Fast`.
        known_dimensions: those that were checked.
        lock: guards the row buffer, the figures and the taking of events. Never held during I/O,
            nor by a call in the main thread as long as the fold thread answers: a signal handler
            that came in between would wait for the fold thread, and this one for the lock.
        accepted: increments folded into rows; ``dropped``: those that found no room.
        patient: what finds no room is to wait for some.
        refused: the last fold has left something that does so.
        sightings: what :meth:`put_seen` is given, and the salts of their members.
    """

    def __init__(self, buffer: RowBuffer, clock: RedisClock, wake: Callable[[], None]) -> None:
        self.fast: dict[str, Callable[[RowKey], None]] = {}
        self.fast_dimensions: dict[str, list[Fast]] = {}
        self.known_dimensions = KnownDimensions(self.fast_dimensions.clear)
        # Reentrant only for a process without threads, where callers fold: a signal handler that
        # interrupts that finds `_folding` set, and goes without.
        self.lock = RLock()
        self.buffer = buffer
        self.sightings = Sightings(buffer, clock)
        self.accepted = 0
        self.dropped = 0
        self.patient = False
        self.refused = False
        self.mode = Mode.IDLE
        self._closed = False
        self._folding = False
        self._clock = clock
        self._wake = wake
        # Of keys; the others are (event, id or None).
        self._lists = CounterLists()
        self._many: list[Many] = []
        self._batches: list[IncrementBatch] = []
        self._promising = RLock()  # among callers; reentrant for a signal handler
        self._late: list[int] = []

    # --- the callers' side -------------------------------------------------------------------

    def put(
        self, counter: str, key: RowKey, minute: int | None, amount: int, id: str | None = None
    ) -> None:
        """Leave a checked event; ``id``: the app's own name of it."""
        if not isinstance(key, str):
            self.buffer.large_rows = True
        if amount == 1 and minute is None and id is None:
            events = self._lists.of(counter)
            if events is not None:
                events.append(key)
                if self._hot():
                    self._open_fast(counter, key, events)
                    if not self._hot():  # changed meanwhile, and `fast` perhaps emptied
                        self._close_fast()
                self._after_put(len(events))
                return
        self._lists.others.append(((counter, key, minute, amount), id))
        self._after_put(len(self._lists.others))

    def put_many(
        self, counter: str, minute: int | None, keys: Sequence[RowKey], amounts: list[int]
    ) -> None:
        """Leave checked events, for all of which there will be room or for none."""
        self._many.append((counter, minute, keys, amounts))
        self._after_put(len(self._many) * len(keys))  # about: adding them up would take long
        if self.mode is Mode.FULL:
            pauses = int(min(len(keys) * MANY_SECONDS, MAX_MANY_SECONDS) / PAUSE_SECONDS)
            while pauses > 0 and self.mode is Mode.FULL:
                sleep(PAUSE_SECONDS)
                pauses -= 1

    def put_batch(self, batch: IncrementBatch) -> bool:
        """Leave checked events for which there is room, which is theirs from now on; else False."""
        buffer = self.buffer
        buffer.large_rows = buffer.large_rows or batch.dimensions or bool(batch.members)
        with self._promising:
            if batch.room > buffer.certain:
                return False
            room = batch.room
            buffer.promised += room
            try:
                self._batches.append(batch)
                if buffer.closed:  # by a signal handler
                    with suppress(ValueError):  # the fold thread has it
                        self._batches.remove(batch)
                        return False
                room = 0
            finally:
                # An exception of a signal handler leaves no room promised for ever; in the worst
                # case, right after the append, there is that much more than there should be.
                buffer.promised -= room
        if self.mode is not Mode.HOT:
            self._wake()
            if self.mode is Mode.ALONE:
                self._fold_if_free()
            elif self.mode is Mode.CLOSED:
                wait_for_end()
        return True

    def put_seen(self, counter: str, key: RowKey, minute: int | None, member: bytes) -> None:
        """Leave a checked sighting."""
        sightings = self.sightings
        sightings.put(counter, key, minute, member)
        if self._hot():
            sightings.open_fast(counter)
            if not self._hot():  # changed meanwhile, and `fast` perhaps emptied
                sightings.fast.clear()
        self._after_put(len(sightings.lists.others))

    def refuse(self, increments: int) -> None:
        """Count increments that came too late as dropped."""
        self._late.append(increments)

    def switch(self, mode: Mode) -> None:
        """Change what callers have to do. ``CLOSED`` is final."""
        if mode is Mode.CLOSED:
            self._closed = True
        self.mode = mode
        if self._closed:  # looked at last, so that no switch that was under way undoes a close
            self.mode = Mode.CLOSED
        if self.mode is not Mode.HOT:
            self._close_fast()
            self.sightings.fast.clear()

    def _open_fast(self, counter: str, key: RowKey, events: list[RowKey]) -> None:
        append = self.fast.get(counter)
        if append is None:
            append = self.fast[counter] = events.append
        known = None if isinstance(key, str) else self.known_dimensions.of.get(counter)
        if known is None:
            return
        fast = self.fast_dimensions.get(counter)
        if fast is None:
            fast = self.fast_dimensions.setdefault(counter, [_NONE] * (MAX_DIMENSIONS + 1))
        take, dimensions, _ = known[len(key)]
        if fast[len(key)][1] is not dimensions:
            fast[len(key)] = take, dimensions, append

    def _close_fast(self) -> None:
        self.fast.clear()
        self.fast_dimensions.clear()

    def _hot(self) -> bool:
        return self.mode is Mode.HOT

    def _after_put(self, waiting: int) -> None:
        """Do what the mode asks for; ``waiting``: events in the list that the caller has used."""
        mode = self.mode
        if mode is Mode.IDLE or mode is Mode.ALONE:
            self._wake()
        if mode is Mode.ALONE:
            if waiting > CHUNK:
                self._fold_if_free()
        elif mode is Mode.CLOSED:
            wait_for_end()  # it may have been left after the last fold
        elif mode is Mode.FULL or waiting > MAX_RAW:
            sleep(PAUSE_SECONDS)

    def _fold_if_free(self) -> None:
        # Whoever finds the lock taken goes on: its holder is folding, or will be done in
        # microseconds.
        if self.lock.acquire(blocking=False):
            try:
                self._fold_chunk(CHUNK)
            finally:
                self.lock.release()

    # --- the fold thread's side -------------------------------------------------------------------

    def raw(self) -> int:
        """Events that are not folded yet."""
        lists = self._lists.left + self.sightings.lists.left
        return lists + self._many_raw() + self._batched()

    def _many_raw(self) -> int:
        return sum([len(keys) for _, _, keys, _ in self._many])

    def _batched(self) -> int:
        return sum([batch.rows for batch in self._batches])

    def fold(self, limit: int) -> int:
        """Fold at most ``limit`` events of each kind; how many were folded."""
        with self.lock:
            return self._fold_chunk(limit)

    def fold_all(self, allowed: Callable[[], int] = lambda: ALL_CHUNK) -> None:
        """Fold all that was there when this began, whatever is added meanwhile.

        Args:
            allowed: asked how many events may be folded now, and then again; may wait.
        """
        room = 0
        for fold, there in self._kinds():
            # Each kind by as many as there were, wherever other callers have added to the rest.
            left = there
            while left > 0:
                room = room if room > 0 else allowed()
                with self.lock:
                    self.refused = False
                    folded = self._guarded(fold, min(left, room))
                if not folded and not self.refused:
                    break  # others have folded the rest
                left -= folded
                room = room - folded if folded else 0
        with self.lock:
            while self._late:
                self.dropped += self._late.pop()

    def _fold_chunk(self, limit: int) -> int:
        self.refused = False
        # Kinds that come seldom have a limit of their own, or a busy one could keep them waiting.
        return sum(self._guarded(fold, min(limit, there)) for fold, there in self._kinds() if there)

    def _kinds(self) -> list[tuple[Callable[[int], int], int]]:
        """For each kind of events, what folds those that are there now, and how many they are."""
        lists, seen = self._lists.waiting(), self.sightings.lists.waiting()
        return [
            (partial(self._fold_events, lists), sum([there for _, _, there in lists])),
            (self._fold_many, self._many_raw()),
            (self._fold_batches, self._batched()),
            (partial(self._fold_seen, seen), sum([there for _, _, there in seen])),
        ]

    def _guarded(self, fold: Callable[[int], int], limit: int) -> int:
        """Fold, unless this is a signal handler or a finalizer in the midst of that."""
        if self._folding:
            return 0
        self._folding = True
        try:
            return fold(limit)
        finally:
            self._folding = False

    def _with_room(self, limit: int) -> int:
        """How many events may be folded: the others wait for room, or find none."""
        if not self.patient:
            return limit
        certain = self.buffer.certain
        self.refused = self.refused or not certain
        return min(limit, certain)

    def _fold_events(self, of: list[Listed], limit: int) -> int:
        minute = self._clock.minute()
        limit = self._with_room(limit)
        bounded = limit > self.buffer.certain  # once for all lists: there may be one for each event

        def fold(counter: str, events: list[Any], most: int) -> int:
            chunk = events[:most]
            count = len(chunk)
            del events[:count]
            if counter:
                dropped = self.buffer.add_ones(counter, minute, chunk, bounded=bounded)
            else:
                dropped = self._add_others(chunk, minute)
            self.dropped += dropped
            self.accepted += count - dropped
            return count

        return fold_lists(of, limit, fold)

    def _add_others(self, chunk: list[tuple[Event, str | None]], minute: int) -> int:
        dropped = self.buffer.add_events([event for event, id in chunk if id is None], minute)
        for event, id in chunk:
            if id is not None:
                dropped += self.buffer.add_named((event[0], id), rows_at([event], minute))
        return dropped

    def _fold_many(self, limit: int) -> int:
        minute = self._clock.minute()
        done = 0
        while self._many and done < limit:
            counter, at, keys, amounts = self._many.pop(0)
            dropped = self.buffer.add_many(counter, minute if at is None else at, keys, amounts)
            if dropped and self.patient and self.buffer.fits(keys):
                self.refused = True
                self._many.insert(0, (counter, at, keys, amounts))
                break  # there will be room soon
            self.dropped += dropped
            self.accepted += len(keys) - dropped
            done += len(keys)
        return done

    def _fold_batches(self, limit: int) -> int:
        minute = self._clock.minute()
        chunk, done = 0, 0
        for batch in self._batches:
            if done >= limit:
                break
            chunk, done = chunk + 1, done + batch.rows
        batches = self._batches[:chunk]
        del self._batches[:chunk]
        try:
            if self.buffer.closed:  # given up meanwhile
                self.dropped += done
                return done
            self.buffer.add_batches(batches, minute)
            self.accepted += done
            return done
        finally:
            self.buffer.redeemed += sum(batch.room for batch in batches)

    def _fold_seen(self, of: list[Listed], limit: int) -> int:
        folded, dropped = self.sightings.fold(self._with_room(limit), of, patient=self.patient)
        self.refused = self.refused or bool(of and not folded)
        self.dropped += dropped
        self.accepted += folded - dropped
        return folded

    def fold_waiting(self, *, end: bool = False) -> None:
        """Hash the members whose salts have become known; at the ``end``, count the others without
        their members.
        """

        def fold(_: int) -> int:
            dropped = self.sightings.fold_waiting(end=end)
            self.dropped += dropped
            self.accepted -= dropped
            return 0

        with self.lock:
            self._guarded(fold, 0)
