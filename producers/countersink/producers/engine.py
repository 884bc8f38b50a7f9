"""One producer in one process: starts buffers and threads, flushes and closes them in order,
``Stats``, and the log lines about increments lost at the end; drops while running are logged in
``send_thread.py``."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from countersink.producers import lifecycle
from countersink.producers.buffer.events import EventBuffer, Mode
from countersink.producers.buffer.fold_thread import FoldThread
from countersink.producers.buffer.rows import NEVER, RowBuffer
from countersink.producers.options import Options
from countersink.producers.outbox import Outbox
from countersink.producers.redis_link import RedisLink, StoredMark, Trail
from countersink.producers.send_thread import POLL_SECONDS, Flush, SendThread
from countersink.producers.spool.writer import Spool, SpoolThread
from countersink.producers.threads import Lock, breathe, pause
from countersink.runtime.log import Log
from countersink.stream.clock import RedisClock
from countersink.stream.connection import connect

JOIN_SECONDS: Final = 1.0
"""How long the end of a thread is waited for at close, once what it waits for was broken off."""
ANSWER_SECONDS: Final = 5.0
"""How long the fold thread is waited for by callers that have no time-out of their own."""
DRAINING_SECONDS: Final = 2.0
"""Rows leave memory if some were stored so long ago at most."""
RESTART_SECONDS: Final = 1.0
"""Between two attempts to start the threads."""


ACTIONS: Final = frozenset(
    (
        "connected",  # Redis answers again
        "unavailable",  # Redis does not answer, or refuses
        "held_back",  # the stream is longer than max_stream_length
        "dropped",  # increments were lost for want of room
        "no_salt",  # members wait: their counter does not count different ones, so far
        "no_members",  # sightings were counted without their members: no salt came in time
        "spool_failed",  # the spool could not be written or read
        "spool_damaged",  # a segment has a torn tail or a corrupt record
        "replayed",  # a spool segment was sent and deleted
        "not_known",  # whether what was stored is in MySQL: entries left the stream otherwise
        "sigterm",  # flushing because of SIGTERM
        "left_over",  # increments could not be stored before close
        "internal_error",  # a bug: a background thread caught an exception and goes on
    )
)
"""Every ``action`` a record of the logger ``countersink.producers`` can carry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """Figures of one producer in one process, since it was created there (a forked child starts at
    0).

    The unit is the *increment*, one call of ``increment()`` or one item of ``increment_many()`` and
    ``increment_batch()`` whatever its amount, except where another is named. ``accepted + dropped``
    is what was asked for, but for batches of which ``increment_batch()`` said that there was no
    room, and ``accepted - stored - spooled`` is what only this process's memory holds.

    Attributes:
        accepted: increments taken and not dropped.
        stored: increments that Redis has acknowledged, straight from memory.
        resent: increments sent again because the first answer was lost (not counted twice: same
            entry id).
        spooled: increments written and fsynced to the disk spool.
        replayed: increments sent to Redis from spool segments, also from those that dead processes
            left.
        dropped: increments that fitted neither into memory nor into the spool, or were left over at
            close.
        pending_rows: distinct rows, in *rows*, held in memory and not stored yet.
        last_error: the last failure to reach Redis or to write the spool, without passwords;
            ``None``: none so far.
        connected: Redis answered the last time it was asked, and takes entries.
    """

    accepted: int = 0
    stored: int = 0
    resent: int = 0
    spooled: int = 0
    replayed: int = 0
    dropped: int = 0
    pending_rows: int = 0
    last_error: str | None = None
    connected: bool = False


class Engine:
    """Wires the buffers and the threads together, and closes them in order."""

    def __init__(self, url: str, options: Options) -> None:
        self._url = url
        self._options = options
        self._log = Log(logging.getLogger("countersink.producers"))
        self._clock = RedisClock()
        self._buffer = RowBuffer(options.max_rows_in_memory or NEVER, options.max_bytes_in_memory)
        self.events = EventBuffer(self._buffer, self._clock, self._wake)
        self._outbox = Outbox(self.events, self._clock, options.id_scope)
        self._link = RedisLink(url, options, self._clock, self._log)
        self._spool: Spool | None = None
        self._spool_thread: SpoolThread | None = None
        if options.spool is not None:
            self._spool = Spool(Path(options.spool), options.spool_max_bytes, self._log)
        self._send_thread = SendThread(
            self._link, self._outbox, self.events, self._clock, self._log, self._spool, options
        )
        if self._spool is not None:
            self._spool_thread = SpoolThread(
                self._spool, self._outbox, self._buffer, self._log, self._send_thread.flush_now
            )
        self._fold_thread = FoldThread(
            self.events, self._clock, self._log, self._rows_waiting, self._draining
        )
        self._guard = Lock()  # never held over a call, so that no signal handler meets it
        self._starter: object | None = None  # who starts the threads at this moment
        self._started = False
        self._next_start = 0.0
        self._ending = False
        self._told = 0  # increments and members dropped of which flush() has told

    # --- threads -----------------------------------------------------------------------------

    def start(self, *, wait: bool = True) -> bool:
        """Start the threads unless they run; whether they do.

        With ``wait=False`` for callers that must not wait until another one has started them.
        """
        if self._started:
            return True
        me = object()
        give_up = time.monotonic() + (JOIN_SECONDS if wait else 0.0)
        try:
            while True:
                with self._guard:
                    if self._starter is None:
                        self._starter = me
                if self._starter is me:
                    break
                if self._started or time.monotonic() >= give_up:
                    return self._started
                breathe()
            if not self._started and (wait or time.monotonic() >= self._next_start):
                self._start_threads()
        finally:
            if self._starter is me:
                self._starter = None
        return self._started

    def _start_threads(self) -> None:
        try:
            for thread in (self._fold_thread, self._send_thread, self._spool_thread):
                if thread is not None and not thread.is_alive():
                    thread.start()
            self._started = True
            lifecycle.use_multiprocessing()
        except RuntimeError as error:
            # No more threads to be had, or the interpreter is ending: callers fold, and close()
            # sends, unless a later attempt succeeds.
            self._next_start = time.monotonic() + RESTART_SECONDS
            self.events.switch(Mode.ALONE)
            self._log.seldom("internal_error", f"no thread: {error}", level=logging.ERROR)

    @property
    def unused(self) -> bool:
        """Whether nothing was counted in this process, and nothing flushed."""
        return not (self._started or self.events.raw() or self._buffer.held)

    def _wake(self) -> None:
        """A caller has left an event while nobody was looking."""
        if self._options.handle_sigterm:
            lifecycle.handle_signals_anew()
        if self.start(wait=False):
            self.events.switch(Mode.HOT)
            self._fold_thread.wake()

    def ask_salts(self) -> None:
        """Have the send thread ask for the salts that are wanted."""
        if self.start(wait=False):
            self._send_thread.flush_now()

    def _rows_waiting(self) -> None:
        if self.events.mode is Mode.FULL:
            self._send_thread.flush_now()
        self._send_thread.rows_waiting()
        if self._spool_thread is not None:
            self._spool_thread.rows_waiting()

    def _draining(self, full_since: float) -> bool:
        """Whether somebody takes rows out of memory, as it seems."""
        link, spool_thread = self._link, self._spool_thread
        tries = (
            link.usable
            or not link.failures
            or (spool_thread is not None and not spool_thread.failing)
        )
        last = max(full_since, self._outbox.settled_at)
        return (
            tries and not self._send_thread.stopping and time.monotonic() - last < DRAINING_SECONDS
        )

    # --- flushing ----------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Store what was accepted so far; whether that was done within ``timeout`` seconds, and
        nothing was dropped since the last call, members neither.
        """
        stored = self._flush(timeout)
        return not self._dropped_anew() and stored

    def _dropped_anew(self) -> bool:
        lost = self.events.dropped + self.events.sightings.without_member
        told, self._told = self._told, lost
        return self._told > told

    def _flush(self, timeout: float) -> bool:
        flush = self.begin_flush(time.monotonic() + timeout)
        return flush is not None and flush.wait(without_threads=self._without_threads)

    @property
    def _without_threads(self) -> bool:
        return self._ending or not self._started

    def begin_flush(self, deadline: float) -> Flush | None:
        """Begin to store what was accepted so far; None: the fold thread did not answer in time."""
        if self._spool is not None or self.events.raw() or self._buffer.held:
            # With a spool even if nothing is counted here: to replay what dead processes left.
            self.start()
        generation = self._fold_thread.ask(
            self._outbox.mark, max(JOIN_SECONDS, deadline - time.monotonic())
        )
        if generation is None:
            return None
        return Flush(
            self._link, self._outbox, self._send_thread, self._spool_thread, generation, deadline
        )

    def begin_flush_over(self, deadline: float) -> Callable[[], bool]:
        """Begin a flush that others wait for: what is returned says whether it is over."""
        flush = self.begin_flush(deadline)
        if flush is None or self._without_threads:
            return lambda: True  # close() does what can be done without threads
        return flush.over

    @property
    def trail(self) -> Trail:
        """What became of all that this process has stored."""
        return self._link.trail

    def mark(self, since: int) -> StoredMark | None:
        """Where what this process has stored ends; ``None``: some of that is in its spool."""
        return None if self._spool and self._spool.waiting else self.trail.mark(since)

    def applied(self, timeout: float, since: int) -> bool:
        """Wait until all that this process stored is applied, and the spool is empty.

        ``since``: the breaks of the trail that somebody had been told of before.
        """
        deadline = time.monotonic() + timeout
        patience = POLL_SECONDS
        client = connect(self._url, socket_timeout=self._options.socket_timeout)
        try:
            mark: StoredMark | None = None
            while True:
                if mark is None:
                    mark = self.mark(since)
                if mark is not None:
                    (verdict,) = self.trail.applied(client, [mark])
                    if verdict is None:
                        self.trail.tell()
                    if verdict is not False:
                        return bool(verdict)
                now = time.monotonic()
                if now >= deadline:
                    return False
                pause(min(patience, deadline - now))
                patience = min(0.2, patience * 1.5)
        finally:
            client.close()

    def stats(self) -> Stats:
        """The figures now."""
        figures = self._fold_thread.ask(self._figures, ANSWER_SECONDS)
        return self._figures() if figures is None else figures

    def _figures(self) -> Stats:
        if self._buffer.waiting:
            self._rows_waiting()  # the fold thread may find nothing to fold, and so nothing to tell
        spool_error = None if self._spool_thread is None else self._spool_thread.last_error
        with self.events.lock:
            return Stats(
                accepted=self.events.accepted,
                stored=self._outbox.stored,
                resent=self._outbox.resent,
                spooled=self._outbox.spooled,
                replayed=self._send_thread.replayed,
                dropped=self.events.dropped,
                pending_rows=self._buffer.held,
                last_error=spool_error or self._link.last_error,
                connected=self._link.usable,
            )

    def close(self, timeout: float) -> bool:
        """Store what ``timeout`` seconds allow, count the rest as dropped; whether none was, nor
        since the last flush.

        May be called again if an exception of a signal handler ended it, and goes on.
        """
        self.events.switch(Mode.CLOSED)
        if not self._ending:
            deadline = time.monotonic() + timeout
            stored = self._flush(timeout)
            while stored and self.events.raw():  # of calls that were under way at the switch
                stored = self._flush(deadline - time.monotonic())
            if self._buffer.waiting_members.count:
                end = partial(self.events.fold_waiting, end=True)
                self._fold_thread.ask(end, ANSWER_SECONDS)
                stored = self._flush(deadline - time.monotonic())
            if not stored and self._spool_thread is not None:
                self._flush(JOIN_SECONDS)  # what Redis has not taken goes to the spool
            self._ending = True
        self._send_thread.tell_of_members()
        self._stop_threads()
        lost = self._fold_thread.ask(self._outbox.give_up, ANSWER_SECONDS)
        self._fold_thread.stop()
        if self._fold_thread.is_alive():
            self._fold_thread.join(JOIN_SECONDS)
        if lost is None:
            self._log(
                "left_over",
                "increments that were not stored are lost, and not counted: the thread that folds"
                " them did not end in time",
                level=logging.ERROR,
            )
        elif unsaid := self._send_thread.unsaid():
            self._log(
                "left_over",
                f"{unsaid} increments could be stored neither in Redis nor on disk and are lost",
                level=logging.ERROR,
            )
        self._link.close()
        if self._spool is not None:
            self._spool.close()
        return not self._dropped_anew() and lost == 0

    def complain_of_late(self) -> None:
        """Say that increments came after the close at the end of the process."""
        self._log.seldom("dropped", "counted after the flush at exit, and so dropped")

    def tell_of_loss(self) -> None:
        """Say how much is in this process's memory alone, which ends."""
        figures = self.stats()
        if left := figures.accepted - figures.stored - figures.spooled:
            self._log(
                "left_over",
                f"{left} increments are not stored, and lost as the process ends now",
                level=logging.ERROR,
            )

    def _stop_threads(self) -> None:
        self._send_thread.stop()
        if self._spool_thread is not None:
            self._spool_thread.stop()
        if self._spool_thread is not None and self._spool_thread.is_alive():
            self._spool_thread.join(JOIN_SECONDS)
        if self._send_thread.is_alive():
            self._send_thread.join(JOIN_SECONDS if self._link.usable else POLL_SECONDS)
        if self._send_thread.is_alive():
            self._link.abort()  # it hangs in a command that a frozen Redis does not answer
            self._send_thread.join(JOIN_SECONDS)
