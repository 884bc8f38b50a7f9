"""The thread that talks to Redis."""

import logging
import time
from typing import Final

from countersink.producers.bell import Bell
from countersink.producers.clock import RedisClock
from countersink.producers.intake import Intake
from countersink.producers.journal import Journal
from countersink.producers.link import Link
from countersink.producers.outbox import Outbox
from countersink.producers.parcel import PARCELS_AT_A_TIME
from countersink.producers.primitives import RLock, Thread, sleep
from countersink.producers.spool.errors import SpoolError
from countersink.producers.spool.writer import Spool

AFTER_BUG_SECONDS: Final = 1.0
"""From an exception that nobody thought of to the next attempt, at most."""
ADOPT_SECONDS: Final = 10.0
"""Between two looks for segments of dead processes."""


class Sender(Thread):
    """Flushes at intervals, early when many rows wait, and at once when asked to.

    Attributes:
        stopping: it is to end soon.
    """

    def __init__(
        self,
        link: Link,
        outbox: Outbox,
        intake: Intake,
        clock: RedisClock,
        journal: Journal,
        spool: Spool | None,
        *,
        flush_interval: float,
        max_rows: int,
    ) -> None:
        super().__init__("countersink-sender")
        self._link = link
        self._outbox = outbox
        self._intake = intake
        self._buffer = intake.buffer
        self._clock = clock
        self._journal = journal
        self._spool = spool
        self._interval = flush_interval
        self._max_rows = max_rows
        self._bell = Bell()
        self._urgent = False
        self._idle = False
        self.stopping = False
        self._next_flush = 0.0
        self._next_adoption = 0.0
        # For callers that work themselves when no thread is to be had. A signal handler that
        # interrupts that finds `_busy` set.
        self._working = RLock()
        self._busy = False
        self._reported = 0

    @property
    def replayed(self) -> int:
        """Increments sent from the spool."""
        return 0 if self._spool is None else self._spool.backlog.increments_done

    def rows_waiting(self) -> None:
        """There are rows: flush now if there are many, or if none were sent for an interval, so
        that a short-lived process has sent the first ones before it ends; else when it is time.
        """
        if self._buffer.growing >= self._max_rows:
            self.flush_now()
        elif self._idle:
            self._idle = False
            self._bell.ring()

    def flush_now(self) -> None:
        """Flush without waiting for the interval to end."""
        self._urgent = True
        self._bell.ring()

    def stop(self) -> None:
        """End as soon as the command being sent has ended."""
        self.stopping = True
        self._bell.ring()

    def run(self) -> None:
        """The thread."""
        while not self.stopping:
            try:
                self._bell.wait(self._patience())
                if self._urgent or time.monotonic() >= self._next_flush:
                    self.work()
                self._report()
            except Exception:
                self._journal.bug("the sender")
                self._link.close()  # whatever has gone wrong there, begin anew
                self._next_flush = 0.0
                sleep(min(self._interval, AFTER_BUG_SECONDS))
        self._link.close()

    def work(self) -> None:
        """Send everything that is there now, as far as Redis takes it."""
        with self._working:
            if self._busy:
                return
            self._busy = True
            try:
                self._work()
            finally:
                self._busy = False

    def _work(self) -> None:
        self._urgent = False
        self._next_flush = time.monotonic() + self._interval
        upto = self._buffer.generation
        if not (self._link.ready() and self._replay() and self._send(upto)):
            # What is not sealed goes on coalescing, which bounds memory by distinct rows.
            self._outbox.give_back()

    def _report(self) -> None:
        """Tell of drops: here, where a log handler that blocks holds up nobody's memory."""
        dropped = self._intake.dropped
        if (
            dropped > self._reported
            and not self.stopping  # close() says what is left to say
            and self._journal.seldom(
                logging.WARNING,
                "dropped",
                "%d increments dropped: %s",
                dropped - self._reported,
                self._cause(),
            )
        ):
            self._reported = dropped

    def unsaid(self) -> int:
        """How many increments were dropped of which the log says nothing so far; asked once."""
        said, self._reported = self._reported, self._intake.dropped
        return self._reported - said

    def _cause(self) -> str:
        """Why there was no room."""
        largest = self._intake.largest_refused
        if largest and not self._buffer.crowded:
            return f"memory has no room for a call of increment_many with {largest} keys as a whole"
        if self._link.usable:
            redis = "they came faster than Redis took them"
        else:
            redis = self._link.last_error or "Redis has not answered yet"
        spool = "there is no spool"
        if self._spool is not None:
            spool = self._spool.failure or "the spool did not take them in time"
        held, size = self._buffer.held, self._buffer.held_bytes >> 20
        return f"memory is full ({held} rows, {size} MB): {redis}; {spool}"

    def _patience(self) -> float | None:
        """Seconds to wait for the bell."""
        now = time.monotonic()
        self._idle = True
        if self._buffer.waiting or len(self._outbox) or (self._spool and self._spool.waiting):
            self._idle = False
            return max(self._next_flush - now, self._link.seconds_to_next_try(), 0.0)
        if self._spool is not None:
            # All three, or a look that is due and cannot be taken yet would keep this thread busy.
            return max(
                self._next_adoption - now,
                self._next_flush - now,
                self._link.seconds_to_next_try(),
                0.0,
            )
        return None

    def _send(self, upto: int) -> bool:
        """Send the outbox and the rows up to generation ``upto``; whether Redis has taken all."""
        while not self.stopping:
            if len(self._outbox):
                parcels = self._outbox.stamp(PARCELS_AT_A_TIME)
                self._outbox.settle(self._link.send(parcels))
                if not self._link.usable:
                    return False
                continue
            for _ in range(PARCELS_AT_A_TIME):
                parcel = self._outbox.seal(upto)
                if parcel is None:
                    break
                self._outbox.post([parcel])
            if not len(self._outbox):
                return True
        return False

    def _replay(self) -> bool:
        """Send what the spool holds; whether Redis has taken all that can be read."""
        spool = self._spool
        if spool is None:
            return True
        backlog = spool.backlog
        while not self.stopping:
            try:
                spool.roll()
                looking = not len(backlog) and time.monotonic() >= self._next_adoption
                if looking and not spool.adopt_one():
                    self._next_adoption = time.monotonic() + ADOPT_SECONDS
                if not len(backlog):
                    return True
                parcels = backlog.next(PARCELS_AT_A_TIME, self._clock.now_ms)
                if parcels:
                    backlog.delivered(self._link.send(parcels))
                    if not self._link.usable:
                        return False
            except SpoolError as error:
                self._journal.seldom(logging.ERROR, "spool_failed", "%s; tried again later", error)
                self._next_adoption = time.monotonic() + ADOPT_SECONDS
                if len(backlog):
                    backlog.drop_first()
        return False
