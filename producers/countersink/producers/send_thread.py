"""The thread that sends: when rows are flushed, how fast a spool is replayed, and the log line that
increments were dropped and why; how often it is logged: ``QUIET_S`` in ``runtime/log.py``."""

import logging
import time
from dataclasses import dataclass
from typing import Final

from countersink.producers.buffer import sightings
from countersink.producers.buffer.events import EventBuffer
from countersink.producers.errors import SpoolError
from countersink.producers.options import Options
from countersink.producers.outbox import PARCELS_AT_A_TIME, Outbox
from countersink.producers.redis_link import RedisLink
from countersink.producers.spool.writer import Spool, SpoolThread
from countersink.producers.threads import WorkThread, breathe, sleep
from countersink.runtime.log import Log
from countersink.runtime.members import no_salt
from countersink.stream.clock import RedisClock

AFTER_BUG_SECONDS: Final = 1.0
"""From an exception that nobody thought of to the next attempt, at most."""
ADOPT_SECONDS: Final = 10.0
"""Between two looks for segments of dead processes."""


@dataclass(repr=False, eq=False)
class SendThread(WorkThread):
    """Flushes at intervals, early when many rows wait, and at once when asked to."""

    _link: RedisLink
    _outbox: Outbox
    _events: EventBuffer
    _clock: RedisClock
    _log: Log
    _spool: Spool | None
    _options: Options

    def __post_init__(self) -> None:
        super().__init__("countersink-sender")
        self._buffer = self._events.buffer
        self._urgent = False
        self._idle = False
        self._next_flush = 0.0
        self._next_adoption = 0.0
        self._reported = 0
        self._reported_members = 0

    def rows_waiting(self) -> None:
        """There are rows: flush now if there are many, if members wait for a salt, or if none were
        sent for an interval, so that a short-lived process has sent the first ones before it ends;
        else when it is time.
        """
        wanting = self._buffer.waiting_members.count and self._link.seconds_to_next_try() <= 0.0
        if self._buffer.growing >= self._options.max_rows or (
            wanting and self._events.sightings.salts.due()
        ):
            self.flush_now()
        elif self._idle:
            self._idle = False
            self.bell.ring()

    def flush_now(self) -> None:
        """Flush without waiting for the interval to end."""
        self._urgent = True
        self.bell.ring()

    def run(self) -> None:
        """The thread."""
        while not self.stopping:
            try:
                self.bell.wait(self._patience())
                if self._urgent or time.monotonic() >= self._next_flush:
                    self.work()
                self._report()
            except Exception:
                self._log.bug("the sender")
                self._link.close()  # whatever has gone wrong there, begin anew
                self._next_flush = 0.0
                sleep(min(self._options.flush_interval, AFTER_BUG_SECONDS))
        self._link.close()

    def work_once(self) -> None:
        """Send everything that is there now, as far as Redis takes it."""
        self._urgent = False
        self._next_flush = time.monotonic() + self._options.flush_interval
        upto = self._buffer.generation
        ready = self._link.ready()
        self._learn_salts(ready=ready)
        if ready and self._replay():
            self._send(upto)

    def _learn_salts(self, *, ready: bool) -> None:
        """Ask for the salts that are due, and let members go on that have waited for theirs."""
        salts = self._events.sightings.salts
        due = salts.due() if ready else []
        if due and (found := self._link.salts(due)) is not None:
            for counter, known in found.items():
                salts.learn(counter, known)
        salts.reachable = self._link.connected
        if self._buffer.waiting_members.count:
            self._events.fold_waiting()
            self._outbox.settle([])  # what was dropped is not waited for any more
            self._tell_of_waiting()
        if self._buffer.waiting_members.count:
            # Asked for again however rarely rows are flushed.
            again = time.monotonic() + sightings.ASK_AGAIN_SECONDS
            self._next_flush = min(self._next_flush, again)

    def has_no_salts(self, since: float) -> bool:
        """Whether Redis has told since then that the counters of all waiting members have none, and
        none is due.
        """
        salts = self._events.sightings.salts
        waiting = self._buffer.waiting_members.counters
        return bool(waiting) and all(salts.has_none(counter, since) for counter in waiting)

    def _tell_of_waiting(self) -> None:
        """Say what members wait for."""
        salts = self._events.sightings.salts
        for counter in self._buffer.waiting_members.counters:
            known = salts.counts_members(counter)
            if known is not None:
                self._log.seldom("no_salt", f"members wait in memory: {no_salt(counter)}")
                return

    def tell_of_members(self, *, seldom: bool = False) -> None:
        """Say how many sightings were counted without their members, and why."""
        found = self._events.sightings
        number = found.without_member - self._reported_members
        if not number:
            return
        text = f"{number} sightings counted without their members: {found.without_salt}"
        if not seldom:
            self._log("no_members", text, level=logging.WARNING)
        elif not self._log.seldom("no_members", text):
            return
        self._reported_members += number

    def _report(self) -> None:
        """Tell of drops: here, where a log handler that blocks holds up nobody's memory."""
        if self.stopping:
            return  # close() says what is left to say
        self.tell_of_members(seldom=True)
        dropped, new = self._events.dropped, self._events.dropped - self._reported
        if new and self._log.seldom("dropped", f"{new} increments dropped: {self._cause()}"):
            self._reported = dropped

    def unsaid(self) -> int:
        """How many increments were dropped of which the log says nothing so far; asked once."""
        said, self._reported = self._reported, self._events.dropped
        return self._reported - said

    def _cause(self) -> str:
        """Why there was no room."""
        redis = self._link.last_error or "Redis has not answered yet"
        if self._link.usable:
            redis = "they came faster than rows leave it, or too many at once"
        spool = None if self._spool is None else self._spool.failure
        return f"memory has no room: {redis}" + (f"; {spool}" if spool else "")

    def _patience(self) -> float | None:
        """Seconds to wait for the bell."""
        self._idle = True  # before the look: for rows that come after it the bell is rung
        if (
            self._buffer.waiting
            or self._buffer.waiting_members.count
            or len(self._outbox)
            or (self._spool and self._spool.waiting)
        ):
            self._idle = False
        elif self._spool is None:
            return None
        # All three, or a look that is due and cannot be taken yet would keep this thread busy.
        due = max(self._next_flush, self._next_adoption if self._idle else 0.0)
        return max(due - time.monotonic(), self._link.seconds_to_next_try(), 0.0)

    def _send(self, upto: int) -> None:
        """Send the outbox and the rows up to generation ``upto``, as far as Redis takes them."""
        while not self.stopping:
            if len(self._outbox):
                parcels = self._outbox.stamp(PARCELS_AT_A_TIME)
                self._outbox.settle(self._link.send(parcels))
                if not self._link.usable:
                    return
                continue
            for _ in range(PARCELS_AT_A_TIME):
                parcel = self._outbox.seal(upto)
                if parcel is None:
                    break
                self._outbox.post([parcel])
            if not len(self._outbox):
                return

    def _replay(self) -> bool:
        """Send what the spool holds; whether Redis has taken all that can be read."""
        spool = self._spool
        if spool is None:
            return True
        backlog = spool.backlog
        while not self.stopping:
            self._learn_salts(ready=True)  # a long backlog takes longer than salts stay known
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
                self._log.seldom("spool_failed", f"{error}; tried again later", level=logging.ERROR)
                self._next_adoption = time.monotonic() + ADOPT_SECONDS
                if len(backlog):
                    backlog.drop_first()
        return False


LOOK_SECONDS: Final = 0.02
"""Between two looks whether everything is stored: of several flushes the bell wakes one."""
STORING_SECONDS: Final = 1.0
"""What a flush leaves of its time, where members wait for a salt until then: at most half of it."""


@dataclass(repr=False, eq=False)
class Flush:
    """Has the send thread send, and the spool thread write what Redis does not take in time.

    Holds no lock between two calls: a signal handler may interrupt it and flush as well.

    Attributes:
        generation: what is to be stored, from :meth:`Outbox.mark`.

    The last field is the monotonic time at which it is no longer waited for.
    """

    _link: RedisLink
    _outbox: Outbox
    _sender: SendThread
    _spool_thread: SpoolThread | None
    generation: int
    _deadline: float

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._failures = self._link.failures
        self._spool_at = (self._began + self._deadline) / 2
        # Their sightings may have to be stored without the members.
        self._members_until = max(self._spool_at, self._deadline - STORING_SECONDS)
        self._spooling = False
        if not self.stored():
            self._link.try_now()
            self._sender.flush_now()

    def stored(self) -> bool:
        """Whether everything is stored."""
        return self._outbox.settled(self.generation)

    def over(self) -> bool:
        """Whether everything is stored or the time is up; asks for the spool when it should be."""
        if self.stored():
            return True
        now = time.monotonic()
        away = self._link.held_back or self._link.failures > self._failures
        if (
            self._spool_thread is not None
            and not self._spooling
            and (away or now >= self._spool_at)
        ):
            self._spooling = True
            self._spool_thread.request(self.generation)
        return now >= self._deadline or self._waits_in_vain()

    def _waits_in_vain(self) -> bool:
        """Whether nothing is left but members whose counters have no salt, as Redis has told since
        this began, or none in time.
        """
        return self._outbox.settled(self.generation, members=False) and (
            time.monotonic() >= self._members_until or self._sender.has_no_salts(self._began)
        )

    def wait(self, *, without_threads: bool = False) -> bool:
        """Wait until :meth:`over`, or do the threads' work here; whether everything is stored."""
        while not self.over():
            if without_threads:
                self._work()
            else:
                self._outbox.bell.wait_in_app(LOOK_SECONDS)
        return self.stored()

    def _work(self) -> None:
        self._sender.work()
        if self._spool_thread is not None and not self.stored():
            self._spool_thread.request(self.generation)
            self._spool_thread.work()
        breathe()
