"""Class ``EventBuffer``, the lists that ``increment()`` appends to, and their folding into rows
(adding up equal events): how many events are folded at a time, when callers fold or wait, numbers
of accepted and dropped increments.

A call must take less time than an update of a dictionary with a lock. So each counter has a list of
keys, and a call is one ``list.append``, which is atomic: no lock, no tuple, no garbage. A list is
never replaced, because a caller may have fetched its ``append`` already, and the event would be
lost. The fold thread copies the beginning of a list, deletes it from the list, and counts the copy
with ``collections.Counter``, whose loop is in C.

``fast`` maps the name of a counter to the ``append`` of its list. ``fast_dimensions`` maps it to
``append`` and to the dimensions that earlier calls have checked. If a name is in neither, the call
takes the slow way: it checks all arguments and does other work, such as starting the threads. The
fast way does not check the producer's state. Instead both mappings are emptied whenever callers
have to take the slow way.
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
from countersink.stream.entry import RedisClock

MAX_UNFOLDED: Final = 500_000
"""Number of unfolded events above which a call that counts waits for a moment."""
PAUSE_SECONDS: Final = 0.0001
"""Seconds for which a call waits while there are too many events, so that the fold thread runs."""
CHUNK: Final = 2_000
"""Number of events that a caller folds at a time."""
ALL_CHUNK: Final = 4_000
"""Number of events that a flush folds at a time."""
MANY_SECONDS: Final = 5e-6
"""Seconds per key for which ``increment_many`` waits in ``Mode.FULL``, so that the threads run."""
MAX_MANY_SECONDS: Final = 0.25
"""Maximum of seconds for which one call of ``increment_many`` waits."""

Many = tuple[str, int | None, Sequence[RowKey], list[int]]
"""(counter, minute, keys, amounts) of one ``increment_many``; the minute is None for now."""

Fast = tuple[Callable[[Mapping[str, str]], Any], dict[Any, Dimensions], Callable[[RowKey], None]]
"""A function that returns a mapping's values; the checked dimensions of each such result (both as
in :data:`~countersink.runtime.dimensions.Known`); and the ``append`` of the counter's list."""
_NONE: Final[Fast] = (len, {}, list[RowKey]().append)


class Mode(Enum):
    """The mode of an event buffer: what a call such as ``increment()`` does besides adding its
    event when it takes the slow way (see ``events.py``). Calls can take the fast way only in the
    mode ``HOT``."""

    IDLE = "start or wake the threads"
    HOT = "nothing: the fold thread folds every 50 ms"
    FULL = "wait a moment: events come faster than they are folded, or than rows leave memory"
    NO_THREADS = "fold a chunk, and try to start the threads, which do not run"
    CLOSED = "refuse"


class EventBuffer:
    """Events that are not folded into the row buffer yet, and the numbers of accepted and dropped
    increments.

    Attributes:
        fast: maps the name of a counter to the ``append`` of its list, which takes the key of an
            increment by 1 that happens now.
        fast_dimensions: maps the name of a counter to a list of :data:`Fast`, whose index is the
            number of dimensions.
        known_dimensions: the dimensions that earlier calls have checked.
        lock: guards the row buffer, the numbers and the removal of events. Never held during I/O.
            The main thread must not hold it when a signal handler may call ``FoldThread.ask``: the
            handler would wait for the fold thread, and the fold thread for the lock.
        accepted: number of increments folded into rows, or waiting for salts; without dropped ones.
        dropped: number of increments that came after the close, had no room or were not stored.
        mode: what a call does in addition when it takes the slow way (see :class:`Mode`).
        waits_for_room: whether events for which memory has no room wait instead of being dropped.
        blocked: whether the last fold left events unfolded for lack of room.
        sightings: the sightings (calls of ``seen()``) that are not folded yet, and the salts of
            their members.
    """

    def __init__(self, buffer: RowBuffer, clock: RedisClock, wake: Callable[[], None]) -> None:
        self.fast: dict[str, Callable[[RowKey], None]] = {}
        self.fast_dimensions: dict[str, list[Fast]] = {}
        self.known_dimensions = KnownDimensions(self.fast_dimensions.clear)
        # Reentrant for processes without threads, where callers fold: a signal handler that
        # interrupts a fold finds `_folding` set, and does not fold.
        self.lock = RLock()
        self.buffer = buffer
        self.sightings = Sightings(buffer, clock)
        self.accepted = 0
        self.dropped = 0
        self.waits_for_room = False
        self.blocked = False
        self.mode = Mode.IDLE
        self._closed = False
        self._folding = False
        self._clock = clock
        self._wake = wake
        self._lists = CounterLists()  # of keys; the shared list has (event, id or None)
        self._many: list[Many] = []
        self._batches: list[IncrementBatch] = []
        self._promising = RLock()  # between callers; reentrant for a signal handler
        self._late: list[int] = []  # numbers of increments that came after the close

    # --- the callers' side -------------------------------------------------------------------

    def put(
        self, counter: str, key: RowKey, minute: int | None, amount: int, id: str | None = None
    ) -> None:
        """Add a checked event. ``minute`` is None for now, ``id`` the application's id or None."""
        if not isinstance(key, str):
            self.buffer.large_rows = True
        if amount == 1 and minute is None and id is None:
            events = self._lists.list_for(counter)
            if events is not None:
                events.append(key)
                if self._hot():
                    self._open_fast(counter, key, events)
                    if not self._hot():  # changed meanwhile; `fast` may have been emptied before
                        self._close_fast()
                self._after_put(len(events))
                return
        self._lists.others.append(((counter, key, minute, amount), id))
        self._after_put(len(self._lists.others))

    def put_many(
        self, counter: str, minute: int | None, keys: Sequence[RowKey], amounts: list[int]
    ) -> None:
        """Add checked events, ``amounts[i]`` to ``keys[i]``: all are accepted, or all dropped."""
        self._many.append((counter, minute, keys, amounts))
        self._after_put(len(self._many) * len(keys))  # an estimate: a sum would take long
        if self.mode is Mode.FULL:
            pauses = int(min(len(keys) * MANY_SECONDS, MAX_MANY_SECONDS) / PAUSE_SECONDS)
            while pauses > 0 and self.mode is Mode.FULL:
                sleep(PAUSE_SECONDS)
                pauses -= 1

    def put_batch(self, batch: IncrementBatch) -> bool:
        """Add a checked batch and reserve room. Return False without room, and after close."""
        buffer = self.buffer
        buffer.large_rows = buffer.large_rows or batch.dimensions or bool(batch.members)
        with self._promising:
            if batch.room > buffer.free_rows:
                return False
            room = batch.room
            buffer.promised += room
            try:
                self._batches.append(batch)
                if buffer.closed:  # by a signal handler
                    with suppress(ValueError):  # the fold thread has taken the batch
                        self._batches.remove(batch)
                        return False
                room = 0
            finally:
                # An exception of a signal handler must not leave room reserved for ever. Right
                # after the append it releases the room of a batch that needs it.
                buffer.promised -= room
        if self.mode is not Mode.HOT:
            self._wake()
            if self.mode is Mode.NO_THREADS:
                self._fold_if_free()
            elif self.mode is Mode.CLOSED:
                wait_for_end()
        return True

    def put_seen(self, counter: str, key: RowKey, minute: int | None, member: bytes) -> None:
        """Add a checked sighting of ``member``; ``minute`` is None for now."""
        sightings = self.sightings
        sightings.put(counter, key, minute, member)
        if self._hot():
            sightings.open_fast(counter)
            if not self._hot():  # changed meanwhile; `fast` may have been emptied before
                sightings.fast.clear()
        self._after_put(len(sightings.lists.others))

    def refuse(self, increments: int) -> None:
        """Note how many ``increments`` came after the end. ``fold_all`` counts them as dropped."""
        self._late.append(increments)

    def switch(self, mode: Mode) -> None:
        """Change the mode. After ``CLOSED`` it does not change any more."""
        if mode is Mode.CLOSED:
            self._closed = True
        self.mode = mode
        if self._closed:  # checked last, so that a concurrent switch does not undo a close
            self.mode = Mode.CLOSED
        if self.mode is not Mode.HOT:
            self._close_fast()
            self.sightings.fast.clear()

    def _open_fast(self, counter: str, key: RowKey, events: list[RowKey]) -> None:
        append = self.fast.get(counter)
        if append is None:
            append = self.fast[counter] = events.append
        known = None if isinstance(key, str) else self.known_dimensions.by_counter.get(counter)
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
        """Do what the mode requires after an event was added: wake the threads, fold events, or
        wait. ``waiting`` is the number of events in the list to which it was added."""
        mode = self.mode
        if mode is Mode.IDLE or mode is Mode.NO_THREADS:
            self._wake()
        if mode is Mode.NO_THREADS:
            if waiting > CHUNK:
                self._fold_if_free()
        elif mode is Mode.CLOSED:
            wait_for_end()  # the event may have come after the last fold
        elif mode is Mode.FULL or waiting > MAX_UNFOLDED:
            sleep(PAUSE_SECONDS)

    def _fold_if_free(self) -> None:
        # Nothing to do if the lock is held: its holder folds, or releases it within microseconds.
        if self.lock.acquire(blocking=False):
            try:
                self._fold_chunk(CHUNK)
            finally:
                self.lock.release()

    # --- the fold thread's side -------------------------------------------------------------------

    def unfolded(self) -> int:
        """Return the number of events of all kinds that are still in the lists, not folded."""
        lists = self._lists.left + self.sightings.lists.left
        return lists + self._unfolded_many() + self._unfolded_batches()

    def _unfolded_many(self) -> int:
        return sum([len(keys) for _, _, keys, _ in self._many])

    def _unfolded_batches(self) -> int:
        return sum([batch.rows for batch in self._batches])

    def fold(self, limit: int) -> int:
        """Fold at most ``limit`` events of each kind (increments, ``increment_many``, batches,
        sightings); return how many left the lists, with those dropped for lack of room. One batch,
        or one ``increment_many``, may exceed the limit, because it is folded as a whole."""
        with self.lock:
            return self._fold_chunk(limit)

    def fold_all(self, allowed: Callable[[], int] = lambda: ALL_CHUNK) -> None:
        """Fold all events that are present when the call begins. Then add the number of increments
        that were passed to :meth:`refuse` to :attr:`dropped`.

        Args:
            allowed: a function that returns how many events may be folded now; called repeatedly.
                It may wait until memory has room for more rows."""
        room = 0
        for fold, present in self._kinds():
            # Counted at the beginning: callers may add events faster than they are folded.
            left = present
            while left > 0:
                room = room if room > 0 else allowed()
                with self.lock:
                    self.blocked = False
                    folded = self._guarded(fold, min(left, room))
                if not folded and not self.blocked:
                    break  # others have folded the rest
                left -= folded
                room = room - folded if folded else 0
        with self.lock:
            while self._late:
                self.dropped += self._late.pop()

    def _fold_chunk(self, limit: int) -> int:
        self.blocked = False
        # A limit for each kind: frequent kinds must not delay rare ones.
        return sum(self._guarded(fold, min(limit, count)) for fold, count in self._kinds() if count)

    def _kinds(self) -> list[tuple[Callable[[int], int], int]]:
        """Return, for each kind of events, the function that folds them and how many there are."""
        lists, seen = self._lists.waiting(), self.sightings.lists.waiting()
        return [
            (partial(self._fold_events, lists), sum([count for _, _, count in lists])),
            (self._fold_many, self._unfolded_many()),
            (self._fold_batches, self._unfolded_batches()),
            (partial(self._fold_seen, seen), sum([count for _, _, count in seen])),
        ]

    def _guarded(self, fold: Callable[[int], int], limit: int) -> int:
        """Return ``fold(limit)``, or 0 in a signal handler or finalizer that interrupts a fold."""
        if self._folding:
            return 0
        self._folding = True
        try:
            return fold(limit)
        finally:
            self._folding = False

    def _with_room(self, limit: int) -> int:
        """Return how many of ``limit`` events may be folded now: with ``waits_for_room``, those
        that have room, while the others wait; else all, and those without room are dropped."""
        if not self.waits_for_room:
            return limit
        free = self.buffer.free_rows
        self.blocked = self.blocked or not free
        return min(limit, free)

    def _fold_events(self, lists: list[Listed], limit: int) -> int:
        minute = self._clock.minute()
        limit = self._with_room(limit)
        bounded = limit > self.buffer.free_rows  # asked once: each event may be in its own list

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

        return fold_lists(lists, limit, fold)

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
            if dropped and self.waits_for_room and self.buffer.fits(keys):
                self.blocked = True
                self._many.insert(0, (counter, at, keys, amounts))
                break  # wait for room
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
            if self.buffer.closed:  # Outbox.give_up() was called meanwhile
                self.dropped += done
                return done
            self.buffer.add_batches(batches, minute)
            self.accepted += done
            return done
        finally:
            self.buffer.redeemed += sum(batch.room for batch in batches)

    def _fold_seen(self, lists: list[Listed], limit: int) -> int:
        limit = self._with_room(limit)
        folded, dropped = self.sightings.fold(limit, lists, wait=self.waits_for_room)
        self.blocked = self.blocked or bool(lists and not folded)
        self.dropped += dropped
        self.accepted += folded - dropped
        return folded

    def fold_waiting(self, *, end: bool = False) -> None:
        """Fold the sightings that waited for salts and whose salts are known by now. With ``end``,
        also count the remaining ones without their members."""

        def fold(_: int) -> int:
            dropped = self.sightings.fold_waiting(end=end)
            self.dropped += dropped
            self.accepted -= dropped
            return 0

        with self.lock:
            self._guarded(fold, 0)
