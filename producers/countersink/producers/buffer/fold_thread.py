"""The thread that folds events into rows (``FoldThread``): at which intervals, how many events at a
time, and when callers wait because memory is nearly full.

A call that needs all events folded asks this thread to do it and waits. The main thread must not
fold, because a signal handler may raise an exception between any two of its instructions, and this
would interrupt the folding.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from countersink.producers.buffer.events import ALL_CHUNK, CHUNK, MAX_UNFOLDED, EventBuffer, Mode
from countersink.producers.threads import Bell, Empty, SimpleQueue, Thread, let_app_run, sleep
from countersink.runtime.log import Log
from countersink.stream.entry import RedisClock

FOLD_SECONDS: Final = 0.05
"""Seconds between folds while there are events; also the maximum error of an event's time."""
IDLE_FOLD_SECONDS: Final = 1.0
"""Seconds between folds in the mode ``IDLE``, in which only a call that was suspended on its way
can add events without waking the thread."""
IDLE_AFTER_SECONDS: Final = 1.0
"""Seconds without events after which the mode becomes ``IDLE``."""
HOLD_SECONDS: Final = 0.0001
"""Seconds for which folding one chunk of events should hold the interpreter lock."""
MIN_CHUNK: Final = 250
MAX_CHUNK: Final = 4_000
SLOW_FROM: Final = 0.75
"""Part of the memory in use above which callers wait for a moment, if memory becomes emptier."""
SLOW_TO: Final = 0.5
"""Part of the memory in use below which callers no longer wait."""
ALIVE_SECONDS: Final = 0.1
"""Seconds between checks in which a waiting caller looks whether the fold thread still runs."""

Answer = TypeVar("Answer")


@dataclass(repr=False, eq=False)
class FoldThread(Thread):
    """The thread that folds events into rows (adds up equal events): while there are events, every
    50 ms and at the end of each minute.

    Args:
        events: the buffer with the events to be folded.
        clock: the clock that tells the minute of the events.
        log: the log for exceptions.
        rows_waiting: called after folding, if rows wait to be stored, members wait for salts, or
            increments were dropped. It wakes the threads that store rows.
        draining: takes the monotonic time at which memory became nearly full; returns whether
            memory is becoming emptier, because rows are being stored.
    """

    _events: EventBuffer
    _clock: RedisClock
    _log: Log
    _rows_waiting: Callable[[], None]
    _draining: Callable[[float], bool]

    def __post_init__(self) -> None:
        super().__init__("countersink-folder")
        # Not an Event: a signal handler, or a finalizer of the garbage collector, that runs during
        # set() would deadlock on its lock. A SimpleQueue is reentrant.
        self._wakeups: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = False
        self._chunk = CHUNK
        self._reported_drops = 0  # increments dropped at the last report
        self._full_since: float | None = None  # monotonic time since which memory is nearly full

    def wake(self) -> None:
        """Make the thread fold now, without waiting for the interval to end."""
        self._wakeups.put(None)

    def ask(self, question: Callable[[], Answer], timeout: float) -> Answer | None:
        """In the fold thread, fold all present events and then call ``question``; return its
        result. Return None if there is no result after ``timeout`` seconds; the thread may still
        call ``question`` later.
        If the thread does not run, the caller's thread folds and calls ``question``.
        """
        answers: list[Answer] = []
        bell = Bell()

        def answer() -> None:
            answers.append(question())
            bell.ring()

        deadline = time.monotonic() + timeout
        if self.is_alive():
            self._wakeups.put(answer)
        while self.is_alive() and not answers:
            left = deadline - time.monotonic()
            if not bell.wait_in_app(min(left, ALIVE_SECONDS)) and left <= 0:
                return None
        if not answers:
            self._events.waits_for_room = False  # only the thread updates it
            self._events.fold_all()
            answers.append(question())
        return answers[0]

    def stop(self) -> None:
        """Let the thread end. After that, a call of :meth:`ask` that still waits folds the events
        and calls its question itself.
        """
        self._stopping = True
        self.wake()

    def run(self) -> None:
        """Fold events until the thread is stopped."""
        busy = time.monotonic()
        while not self._stopping:
            try:
                if self._events.mode is Mode.IDLE:
                    self._wait(IDLE_FOLD_SECONDS)
                else:
                    self._wait(min(FOLD_SECONDS, self._clock.seconds_to_next_minute()))
                if self._pass():
                    busy = time.monotonic()
                    if self._events.mode is Mode.IDLE:
                        self._events.switch(Mode.HOT)
                elif time.monotonic() - busy > IDLE_AFTER_SECONDS:
                    self._events.switch(Mode.IDLE)
            except Exception:
                self._log.bug("the fold thread")
                sleep(FOLD_SECONDS)

    def _wait(self, seconds: float) -> None:
        questions = []
        try:
            questions.append(self._wakeups.get(timeout=seconds))
            while True:  # several callers may wait for answers
                questions.append(self._wakeups.get_nowait())
        except Empty:
            pass
        if any(questions):
            try:
                self._events.fold_all(self._wait_for_room)
                self._report_rows()
            except Exception:
                for question in questions:
                    self._wakeups.put(question)  # the next pass answers it
                raise
            for question in filter(None, questions):
                try:
                    question()
                except Exception:  # the other callers still get their answers
                    self._log.bug("the fold thread")

    def _pass(self) -> bool:
        """Fold until at most a chunk of events is left, memory has no room, or a call wakes or asks
        this thread. Return whether any event was folded.

        A chunk (the most events of each kind folded at a time) is a quarter of the unfolded events,
        but at least the number that :meth:`_adapt` sets, and at most the events that may be folded
        now. If calls are rare, chunks are small, so that no caller waits long for the interpreter
        lock. If calls are frequent, this thread gets that lock only once per switch interval, and
        the large chunk makes up for it.
        """
        folded = False
        while not self._stopping:
            waiting = self._events.unfolded()
            room = self._update_mode(waiting)
            if not (waiting and room):
                break
            before = time.thread_time()
            count = self._events.fold(min(room, max(self._chunk, waiting // 4)))
            self._adapt(count, time.thread_time() - before)
            folded = folded or count > 0
            self._report_rows()
            if waiting <= self._chunk or not self._wakeups.empty():
                break
            let_app_run()
        self._report_rows()  # callers may have folded events, too
        return folded

    def _update_mode(self, waiting: int) -> int:
        """Set the mode of the event buffer, which decides whether callers wait. Return how many
        events may be folded now. If memory is nearly full and rows are being stored, this is only
        the number of events for which there is certainly room. Otherwise it may be more, and events
        without room are dropped.

        Args:
            waiting: number of unfolded events.
        """
        events, buffer, now = self._events, self._events.buffer, time.monotonic()
        mode = events.mode
        free = buffer.free_rows
        part = SLOW_TO if mode is Mode.FULL else SLOW_FROM
        if free and not events.blocked and not buffer.fuller_than(part, waiting):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        since = self._full_since
        events.waits_for_room = not buffer.closed and (since is None or self._draining(since))
        if events.waits_for_room and since is not None:
            events.switch(Mode.FULL)
            return free
        if waiting > MAX_UNFOLDED:
            events.switch(Mode.FULL)
        elif mode in (Mode.FULL, Mode.NO_THREADS) and waiting < MAX_UNFOLDED // 4:
            events.switch(Mode.HOT)
        return max(ALL_CHUNK, events.buffer.free_rows)  # more could exceed the limit at once

    def _wait_for_room(self) -> int:
        """Wait until memory has room for some events, or stops becoming emptier (events without
        room are dropped then). Return how many events may be folded, at least 1.
        """
        while True:
            let_app_run()
            self._report_rows()  # in each round: the waiting call may need more room than there is
            if room := min(ALL_CHUNK, self._update_mode(self._events.unfolded())):
                return room

    def _report_rows(self) -> None:
        before, self._reported_drops = self._reported_drops, self._events.dropped
        buffer = self._events.buffer
        if buffer.waiting or buffer.waiting_members.count or self._reported_drops > before:
            self._rows_waiting()

    def _adapt(self, count: int, seconds: float) -> None:
        """Move the number of events that are folded at a time half-way to the number that takes
        ``HOLD_SECONDS``, within ``MIN_CHUNK`` and ``MAX_CHUNK``. Events with many different keys
        take longer. If fewer than ``MIN_CHUNK`` events were folded, change nothing.

        Args:
            count: number of events that were folded last.
            seconds: processor time that folding them took.
        """
        if count >= MIN_CHUNK and seconds > 0:
            fitting = int(HOLD_SECONDS * count / seconds)
            self._chunk = min(MAX_CHUNK, max(MIN_CHUNK, (self._chunk + fitting) // 2))
