"""The thread that folds events into rows: how often it looks, how many events it folds at a time,
and when callers are made to wait because memory fills.

Callers who need everything folded ask this thread and wait, since folding must not be torn: an
exception raised by a signal handler comes up between any two instructions of the main thread, and
in no other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from countersink.producers.buffer.events import ALL_CHUNK, CHUNK, MAX_RAW, EventBuffer, Mode
from countersink.producers.threads import Bell, Empty, SimpleQueue, Thread, breathe, sleep
from countersink.runtime.log import Log
from countersink.stream.clock import RedisClock

LOOK_SECONDS: Final = 0.05
"""Between two looks while there are events; an event's minute is right to within this."""
IDLE_LOOK_SECONDS: Final = 1.0
"""Between two looks while there are none: only a caller that was suspended in mid-call can have
left one.
"""
IDLE_AFTER_SECONDS: Final = 1.0
HOLD_SECONDS: Final = 0.0001
"""How long folding should hold the interpreter lock at a time, while there is little to fold."""
MIN_CHUNK: Final = 250
MAX_CHUNK: Final = 4_000
SLOW_FROM: Final = 0.75
"""Callers wait a little when more of the room than this is taken, if rows leave it;"""
SLOW_TO: Final = 0.5
"""until no more than this is."""
ALIVE_SECONDS: Final = 0.1
"""Between two looks whether the thread that is to answer still runs."""

Answer = TypeVar("Answer")


@dataclass(repr=False, eq=False)
class FoldThread(Thread):
    """Folds every 50 ms while there are events, and right at each minute's end.

    Args:
        events: the events.
        clock: whose minutes count.
        log: where a bug is reported.
        rows_waiting: called as long as rows wait to be stored.
        draining: whether rows leave memory, which is full since the monotonic time given.
    """

    _events: EventBuffer
    _clock: RedisClock
    _log: Log
    _rows_waiting: Callable[[], None]
    _draining: Callable[[float], bool]

    def __post_init__(self) -> None:
        super().__init__("countersink-folder")
        # Not an Event, whose lock a caller could meet again: in a signal handler, or in a finalizer
        # that the garbage collector runs, in the midst of set(). A SimpleQueue is reentrant.
        self._wakeups: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = False
        self._chunk = CHUNK
        self._told = 0  # increments dropped by then
        self._pressed: float | None = None  # since when memory is nearly full

    def wake(self) -> None:
        """Look now."""
        self._wakeups.put(None)

    def ask(self, question: Callable[[], Answer], timeout: float) -> Answer | None:
        """What ``question`` returns after everything left so far was folded.

        The thread is waited for ``timeout`` seconds, then ``None`` is returned. If it does not run,
        the caller folds.
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
            self._events.patient = False  # nobody is there to judge
            self._events.fold_all()
            answers.append(question())
        return answers[0]

    def stop(self) -> None:
        """End soon, after the questions asked so far."""
        self._stopping = True
        self.wake()

    def run(self) -> None:
        """The thread."""
        busy = time.monotonic()
        while not self._stopping:
            try:
                if self._events.mode is Mode.IDLE:
                    self._wait(IDLE_LOOK_SECONDS)
                else:
                    self._wait(min(LOOK_SECONDS, self._clock.seconds_to_next_minute()))
                if self._pass():
                    busy = time.monotonic()
                    if self._events.mode is Mode.IDLE:
                        self._events.switch(Mode.HOT)
                elif time.monotonic() - busy > IDLE_AFTER_SECONDS:
                    self._events.switch(Mode.IDLE)
            except Exception:
                self._log.bug("the fold thread")
                sleep(LOOK_SECONDS)

    def _wait(self, seconds: float) -> None:
        questions = []
        try:
            questions.append(self._wakeups.get(timeout=seconds))
            while True:  # several callers may have asked
                questions.append(self._wakeups.get_nowait())
        except Empty:
            pass
        if any(questions):
            self._events.fold_all(self._allowed)
            self._tell()
            for question in questions:
                if question is not None:
                    question()

    def _pass(self) -> bool:
        """Fold until little is left; whether anything was folded.

        A chunk is a quarter of what waits: small when calls are few, so that none of them waits
        long for the interpreter lock, and large when they are many, since this thread then gets
        the lock once per switch interval.
        """
        folded = False
        while not self._stopping:
            waiting = self._events.raw()
            room = self._judge(waiting)
            if not (waiting and room):
                break
            before = time.thread_time()
            count = self._events.fold(min(room, max(self._chunk, waiting // 4)))
            self._adapt(count, time.thread_time() - before)
            folded = folded or count > 0
            self._tell()
            if waiting <= self._chunk or not self._wakeups.empty():
                break
            breathe()
        self._tell()  # of what a caller has folded, too
        return folded

    def _judge(self, waiting: int) -> int:
        """Let callers go on, or wait a little; how many events may be folded now: as long as rows
        leave a memory that is nearly full, as many as find room for certain.
        """
        events, buffer, now = self._events, self._events.buffer, time.monotonic()
        mode = events.mode
        certain = buffer.certain
        part = SLOW_TO if mode is Mode.FULL else SLOW_FROM
        if certain and not events.refused and not buffer.above(part, waiting):
            self._pressed = None
        elif self._pressed is None:
            self._pressed = now
        pressed = self._pressed
        events.patient = not buffer.closed and (pressed is None or self._draining(pressed))
        if events.patient and pressed is not None:
            events.switch(Mode.FULL)
            return certain
        if waiting > MAX_RAW:
            events.switch(Mode.FULL)
        elif mode in (Mode.FULL, Mode.ALONE) and waiting < MAX_RAW // 4:
            events.switch(Mode.HOT)
        return max(ALL_CHUNK, events.buffer.certain)  # no more, or it could overflow at once

    def _allowed(self) -> int:
        """How many events of a flush may be folded now; waits until there are some."""
        while True:
            breathe()
            self._tell()  # also where there is room, but not for the call that waits for some
            if room := min(ALL_CHUNK, self._judge(self._events.raw())):
                return room

    def _tell(self) -> None:
        told, self._told = self._told, self._events.dropped
        buffer = self._events.buffer
        if buffer.waiting or buffer.waiting_members.count or self._told > told:
            self._rows_waiting()

    def _adapt(self, count: int, seconds: float) -> None:
        """Let a chunk be what folds in ``HOLD_SECONDS``: many events of few keys, few of many."""
        if count >= MIN_CHUNK and seconds > 0:
            fitting = int(HOLD_SECONDS * count / seconds)
            self._chunk = min(MAX_CHUNK, max(MIN_CHUNK, (self._chunk + fitting) // 2))
