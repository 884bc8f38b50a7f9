"""The thread that sends rows to Redis (``SendThread``) and the call that waits for it (``Flush``):
when the thread sends rows, how often it looks for segments to replay, the log line about dropped
increments and their cause.

See ``runtime/log.py`` (``QUIET_S``) for how often a line is logged.
"""

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
from countersink.producers.threads import WorkThread, let_app_run, sleep
from countersink.runtime.log import Log
from countersink.runtime.members import no_salt
from countersink.runtime.texts import plural
from countersink.stream.entry import RedisClock

AFTER_BUG_SECONDS: Final = 1.0
"""Maximum of seconds between an unexpected exception and the next attempt."""
ADOPT_SECONDS: Final = 10.0
"""Seconds between searches for segments of dead processes."""


@dataclass(repr=False, eq=False)
class SendThread(WorkThread):
    """The thread that sends rows to Redis: at regular intervals, earlier if there are many rows,
    and immediately on request. It also replays the spool and reads salts.
    """

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
        """Tell the thread that there are rows to send (called after each fold). It sends them
        immediately if there are at least ``max_rows``, or if members wait for a salt that is to be
        read from Redis now. It also sends them immediately if it has sent nothing for
        ``flush_interval`` seconds, so that a short-lived process sends its first rows early.
        Otherwise it sends them at the end of this interval.
        """
        wanting = self._buffer.waiting_members.count and self._link.seconds_to_next_try() <= 0.0
        if self._buffer.current_rows >= self._options.max_rows or (
            wanting and self._events.sightings.salts.due()
        ):
            self.flush_now()
        elif self._idle:
            self._idle = False
            self.bell.ring()

    def flush_now(self) -> None:
        """Make the thread try to send all rows now, without waiting for the interval to end. During
        a pause of the link, nothing is sent."""
        self._urgent = True
        self.bell.ring()

    def run(self) -> None:
        """Send rows until the thread is stopped; then close the connection."""
        while not self.stopping:
            try:
                self.bell.wait(self._seconds_to_wait())
                if self._urgent or time.monotonic() >= self._next_flush:
                    self.work()
                self._report()
            except Exception:
                self._log.bug("the send thread")
                self._link.close()  # the connection may be the cause: open a new one
                self._next_flush = 0.0
                sleep(min(self._options.flush_interval, AFTER_BUG_SECONDS))
        self._link.close()

    def work_once(self) -> None:
        """Read the salts that are due, send the entries of the spool, then all rows that are in
        memory now. Stop when Redis takes no more. During a pause of the link, send nothing.
        """
        self._urgent = False
        self._next_flush = time.monotonic() + self._options.flush_interval
        upto = self._buffer.generation
        ready = self._link.ready()
        self._learn_salts(ready=ready)
        if ready and self._replay():
            self._send(upto)

    def _learn_salts(self, *, ready: bool) -> None:
        """Read the salts that are due from Redis, and fold the sightings whose members waited for
        them into rows.

        Args:
            ready: whether Redis can be used now. If False, no salt is read, and only the salts
                known already are used.
        """
        salts = self._events.sightings.salts
        due = salts.due() if ready else []
        if due and (found := self._link.salts(due)) is not None:
            for counter, known in found.items():
                salts.learn(counter, known)
        salts.reachable = self._link.connected
        if self._buffer.waiting_members.count:
            self._events.fold_waiting()
            self._outbox.settle([])  # flushes no longer wait for dropped members
            self._log_waiting_members()
        if self._buffer.waiting_members.count:
            # Salts are asked for at this interval even if flushes are rarer.
            again = time.monotonic() + sightings.ASK_AGAIN_SECONDS
            self._next_flush = min(self._next_flush, again)

    def has_no_salts(self, since: float) -> bool:
        """Return True if it is useless to wait for salts: for each counter with waiting members,
        Redis has answered for ``SALT_SECONDS`` (10 s) that the salt is missing, the last time after
        the monotonic time ``since``. Return False if no member waits.
        """
        salts = self._events.sightings.salts
        waiting = self._buffer.waiting_members.counters
        return bool(waiting) and all(salts.has_none(counter, since) for counter in waiting)

    def _log_waiting_members(self) -> None:
        """Log that members wait for a salt, and why, for the first of their counters about which
        Redis has answered; at most once a minute.
        """
        salts = self._events.sightings.salts
        for counter in self._buffer.waiting_members.counters:
            known = salts.counts_members(counter)
            if known is not None:
                self._log.seldom("no_salt", f"members wait in memory: {no_salt(counter)}")
                return

    def log_missing_members(self, *, seldom: bool = False) -> None:
        """Log how many sightings were counted without their members since the last such line, if
        any, and the reason for the last of them.

        Args:
            seldom: True leaves the line out if such a line was logged in the last minute, and the
                next line includes its number; False (at the close) always logs it.
        """
        found = self._events.sightings
        number = found.without_member - self._reported_members
        if not number:
            return
        text = f"{plural(number, 'sighting')} counted without their members: {found.without_salt}"
        if not seldom:
            self._log("no_members", text, level=logging.WARNING)
        elif not self._log.seldom("no_members", text):
            return
        self._reported_members += number

    def _report(self) -> None:
        """Log dropped increments, and sightings that are counted without their members because no
        salt came. Do nothing once the thread is to end: ``close()`` logs them. This is done in the
        send thread, not in the fold thread, because a log handler that blocks must not stop the
        folding of events.
        """
        if self.stopping:
            return  # close() logs the rest
        self.log_missing_members(seldom=True)
        dropped, new = self._events.dropped, self._events.dropped - self._reported
        if new and self._log.seldom(
            "dropped", f"{plural(new, 'increment')} dropped: {self._cause()}"
        ):
            self._reported = dropped

    def take_unlogged_drops(self) -> int:
        """Return the number of dropped increments that were not logged. From then on they count as
        logged: the caller, ``close()``, logs them.
        """
        before, self._reported = self._reported, self._events.dropped
        return self._reported - before

    def _cause(self) -> str:
        """Return the reason why memory was full, as a text for the log: that increments came too
        fast, if Redis can be used now; else the last error of Redis, or that Redis has not answered
        yet. The spool's error, if any, is added.
        """
        redis = self._link.last_error or "Redis has not answered yet"
        if self._link.usable:
            redis = "increments came faster than rows are sent, or too many at once"
        spool = None if self._spool is None else self._spool.failure
        return f"memory is full: {redis}" + (f"; {spool}" if spool else "")

    def _seconds_to_wait(self) -> float | None:
        """Return the seconds until the thread has work to do, such as the search for segments of
        dead processes; None where it has none until its bell rings.
        """
        self._idle = True  # set before the checks: rows that come after them ring the bell
        if (
            self._buffer.waiting
            or self._buffer.waiting_members.count
            or len(self._outbox)
            or (self._spool and self._spool.waiting)
        ):
            self._idle = False
        elif self._spool is None:
            return None
        # The maximum: a search that is due while Redis is away must not keep this thread busy.
        due = max(self._next_flush, self._next_adoption if self._idle else 0.0)
        return max(due - time.monotonic(), self._link.seconds_to_next_try(), 0.0)

    def _send(self, upto: int) -> None:
        """Send the entries of the outbox, then the rows of all generations up to ``upto``, as far
        as Redis takes them.
        """
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
        """Send the entries of the spool, if any, those of dead processes included (searched every
        10 s). Return True if Redis has taken all of them, except those of segments that cannot be
        read or written now, or if there is no spool; False if Redis takes no more, or if the thread
        is to end.
        """
        spool = self._spool
        if spool is None:
            return True
        backlog = spool.backlog
        while not self.stopping:
            self._learn_salts(ready=True)  # salts may become stale during a long backlog
            try:
                spool.roll()
                search = not len(backlog) and time.monotonic() >= self._next_adoption
                if search and not spool.adopt_one():
                    self._next_adoption = time.monotonic() + ADOPT_SECONDS
                if not len(backlog):
                    return True
                parcels = backlog.next(PARCELS_AT_A_TIME, self._clock.now_ms)
                if parcels:
                    backlog.delivered(self._link.send(parcels))
                    if not self._link.usable:
                        return False
            except SpoolError as error:
                self._log.seldom("spool_failed", f"{error}; will try again", level=logging.ERROR)
                self._next_adoption = time.monotonic() + ADOPT_SECONDS
                if len(backlog):
                    backlog.release_first()
        return False


CHECK_SECONDS: Final = 0.02
"""Seconds between checks whether everything is stored: where several flushes wait, the bell wakes
only one of them."""
STORING_SECONDS: Final = 1.0
"""A flush stops waiting for salts this many seconds before its end, but not before half of its time
has passed."""


@dataclass(repr=False, eq=False)
class Flush:
    """A flush: it waits until all rows of the generations up to ``generation`` are stored, or until
    its time has passed, or until only sightings wait, in vain, for their salts: see :meth:`over`.
    It makes the send thread send the rows immediately. If there is a spool, the spool thread writes
    the rows if Redis fails, the stream is too long, or Redis has not taken them in half of that
    time.

    Holds no lock between two calls: a signal handler may interrupt it and flush as well.

    Attributes:
        generation: the last generation that the flush has to store, from
            :meth:`Outbox.newest_generation`.
    """

    _link: RedisLink
    _outbox: Outbox
    _sender: SendThread
    _spool_thread: SpoolThread | None
    generation: int
    _deadline: float  # monotonic time

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._failures = self._link.failures
        self._spool_at = (self._began + self._deadline) / 2
        # From then on sightings without a salt are left to close(), which stores them without
        # their members.
        self._members_until = max(self._spool_at, self._deadline - STORING_SECONDS)
        self._spooling = False
        if not self.stored():
            self._link.try_now()
            self._sender.flush_now()

    def stored(self) -> bool:
        """Whether all rows of the flush are stored, sightings that wait for a salt included."""
        return self._outbox.settled(self.generation)

    def over(self) -> bool:
        """Return True if the flush is over: all its rows are stored; or its time has passed; or
        only sightings are left, and it is useless to wait for their salts. If rows are not stored
        and there is a spool, also make the spool thread write them, once, as soon as Redis has
        failed since the flush began, the stream is too long, or half of the time has passed.
        """
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
        return now >= self._deadline or self._only_saltless_members_left()

    def _only_saltless_members_left(self) -> bool:
        """Return True if all rows are stored except sightings whose members wait for a salt, and
        the wait for salts is over. It is over if :meth:`SendThread.has_no_salts` returns True; or 1
        s (``STORING_SECONDS``) before the end of the flush, but not before half of its time has
        passed.
        """
        return self._outbox.settled(self.generation, members=False) and (
            time.monotonic() >= self._members_until or self._sender.has_no_salts(self._began)
        )

    def wait(self, *, without_threads: bool = False) -> bool:
        """Wait until :meth:`over` returns True. Return whether all rows of the flush are stored.

        Args:
            without_threads: True if the threads do not run; then this call itself sends rows and
                writes the spool.
        """
        while not self.over():
            if without_threads:
                self._work()
            else:
                self._outbox.bell.wait_in_app(CHECK_SECONDS)
        return self.stored()

    def _work(self) -> None:
        self._sender.work()
        if self._spool_thread is not None and not self.stored():
            self._spool_thread.request(self.generation)
            self._spool_thread.work()
        let_app_run()
