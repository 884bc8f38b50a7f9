"""One producer in one process: starts buffers and threads, flushes and closes them in order,
``Stats``, and the log lines about increments lost at the end; drops while running are logged in
``send_thread.py``.

The logger ``countersink.producers`` has records with these actions::

    connected       Redis answers again
    unavailable     Redis does not answer, or refuses
    held_back       the stream is longer than max_stream_length
    dropped         increments were lost for want of room
    no_salt         members wait: their counter does not count different ones, so far
    no_members      sightings were counted without their members: no salt came in time
    spool_failed    the spool could not be written or read
    spool_damaged   a segment has a torn tail or a corrupt record
    replayed        a spool segment was sent and deleted
    not_known       whether what was stored is in MySQL: entries left the stream otherwise
    sigterm         flushing because of SIGTERM
    left_over       increments could not be stored before close
    internal_error  a bug: a background thread caught an exception and goes on
"""

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
from countersink.producers.redis_link import RedisLink, StoredMark
from countersink.producers.send_thread import Flush, SendThread
from countersink.producers.spool.writer import Spool, SpoolThread
from countersink.producers.threads import Lock, RLock, breathe, pause
from countersink.runtime.log import Log
from countersink.stream.clock import RedisClock
from countersink.stream.connection import connect

JOIN_SECONDS: Final = 1.0
"""How long the end of a thread is waited for at close, once what it waits for was broken off."""
ANSWER_SECONDS: Final = 5.0
"""How long the fold thread is waited for by callers that have no time-out of their own."""
POLL_SECONDS: Final = 0.02
"""Between two looks, at first, whether what is stored is applied."""
DRAINING_SECONDS: Final = 2.0
"""Rows leave memory if some were stored so long ago at most."""
RESTART_SECONDS: Final = 1.0
"""Between two attempts to start the threads."""


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
    """A producer without the calls that count: wires the buffers and the threads together, flushes
    them, and closes them in order.

    Attributes:
        trail: what became of all that this process has stored; tells of a :meth:`mark`.
    """

    def __init__(self, url: str, options: Options) -> None:
        self._url = url
        self._options = options
        self._exited = False
        self.start_over()

    def start_over(self) -> None:
        """Begin empty: the parent of a forked child sends what it had accepted."""
        options = self._options
        self._log = Log(logging.getLogger("countersink.producers"))
        self._clock = RedisClock()
        self._buffer = RowBuffer(options.max_rows_in_memory or NEVER, options.max_bytes_in_memory)
        self._events = EventBuffer(self._buffer, self._clock, self._wake)
        self._outbox = Outbox(self._events, self._clock, options.id_scope)
        self._link = RedisLink(self._url, options, self._clock, self._log)
        self.trail = self._link.trail
        self._spool: Spool | None = None
        self._spool_thread: SpoolThread | None = None
        if options.spool is not None:
            self._spool = Spool(Path(options.spool), options.spool_max_bytes, self._log)
        self._send_thread = SendThread(
            self._link, self._outbox, self._events, self._clock, self._log, self._spool, options
        )
        if self._spool is not None:
            self._spool_thread = SpoolThread(
                self._spool, self._outbox, self._buffer, self._log, self._send_thread.flush_now
            )
        self._fold_thread = FoldThread(
            self._events, self._clock, self._log, self._rows_waiting, self._draining
        )
        self._guard = Lock()  # never held over a call, so that no signal handler meets it
        self._starter: object | None = None  # who starts the threads at this moment
        self._started = False
        self._next_start = 0.0
        self._ending = False
        self._told = 0  # increments and members dropped of which flush() has told
        self._closing = RLock()  # reentrant: a signal handler may close, too
        self._complete: bool | None = None  # what close() returned

    # --- threads -----------------------------------------------------------------------------

    def _start(self, *, wait: bool = True) -> bool:
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
            self._events.switch(Mode.ALONE)
            self._log.seldom("internal_error", f"no thread: {error}", level=logging.ERROR)

    @property
    def unused(self) -> bool:
        """Whether nothing was counted in this process, nor flushed."""
        return not (self._started or self._events.raw() or self._buffer.held)

    def _wake(self) -> None:
        """A caller has left an event while nobody was looking."""
        if self._options.handle_sigterm:
            lifecycle.handle_signals_anew()
        if self._start(wait=False):
            self._events.switch(Mode.HOT)
            self._fold_thread.wake()

    def _rows_waiting(self) -> None:
        if self._events.mode is Mode.FULL:
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

    def flush(self, timeout: float = 5.0, applied: bool = False) -> bool:
        """Wait until everything accepted before this call is stored: in Redis, or else in the
        spool.

        Args:
            timeout: seconds to wait at most.
            applied: wait until it is in MySQL (or among the dead letters), and until what this
                process has spooled is too.

        Returns:
            Whether that is so, and nothing was dropped since the last flush, nor any member. Never
            raises because of Redis or a disk. With ``applied``, False also where it cannot be
            known: entries left the stream otherwise than by a worker (Redis was emptied, started
            anew or replaced by a replica; XTRIM, XDEL, DEL), since the last call that said so. The
            log has which, and the next call is about what was stored since.
        """
        deadline = time.monotonic() + timeout
        since = self.trail.told
        stored = self._flush(timeout)
        if self._dropped_anew() or not stored:
            return False
        return not applied or self._applied(deadline - time.monotonic(), since)

    def _dropped_anew(self) -> bool:
        lost = self._events.dropped + self._events.sightings.without_member
        told, self._told = self._told, lost
        return self._told > told

    def _flush(self, timeout: float) -> bool:
        flush = self._begin(time.monotonic() + timeout)
        return flush is not None and flush.wait(without_threads=self._without_threads)

    @property
    def _without_threads(self) -> bool:
        return self._ending or not self._started

    def _begin(self, deadline: float) -> Flush | None:
        """Begin to store what was accepted so far; None: the fold thread did not answer in time."""
        if self._spool is not None or self._events.raw() or self._buffer.held:
            # With a spool even if nothing is counted here: to replay what dead processes left.
            self._start()
        generation = self._fold_thread.ask(
            self._outbox.mark, max(JOIN_SECONDS, deadline - time.monotonic())
        )
        if generation is None:
            return None
        return Flush(
            self._link, self._outbox, self._send_thread, self._spool_thread, generation, deadline
        )

    def begin_flush(self, deadline: float) -> Callable[[], bool]:
        """Begin a flush; what is returned is called until it says that the flush is over, done or
        not, which is so from the monotonic time ``deadline`` on.
        """
        flush = self._begin(deadline)
        if flush is None or self._without_threads:
            return lambda: True  # close() does what can be done without threads
        return flush.over

    def mark(self, since: int = 0) -> StoredMark | None:
        """Where all that this process has stored by now ends in the streams, to be asked for with
        :meth:`countersink.producers.redis_link.Trail.applied`; None as long as some of it is in its
        spool.

        Args:
            since: :attr:`Trail.breaks <countersink.producers.redis_link.Trail.breaks>` before it
                was stored.
        """
        return None if self._spool and self._spool.waiting else self.trail.mark(since)

    def _applied(self, timeout: float, since: int) -> bool:
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
        """The figures of this producer in this process."""
        figures = self._fold_thread.ask(self._figures, ANSWER_SECONDS)
        return self._figures() if figures is None else figures

    def _figures(self) -> Stats:
        if self._buffer.waiting:
            self._rows_waiting()  # the fold thread may find nothing to fold, and so nothing to tell
        spool_error = None if self._spool is None else self._spool.failure
        with self._events.lock:
            return Stats(
                accepted=self._events.accepted,
                stored=self._outbox.stored,
                resent=self._outbox.resent,
                spooled=self._outbox.spooled,
                replayed=0 if self._spool is None else self._spool.backlog.done.increments,
                dropped=self._events.dropped,
                pending_rows=self._buffer.held,
                last_error=spool_error or self._link.last_error,
                connected=self._link.usable,
            )

    def close(self, timeout: float = 5.0) -> bool:
        """Flush, then end the threads. Calls of ``increment()`` from then on raise RuntimeError.
        Idempotent.

        What can be stored neither in Redis nor in the spool is lost: counted as dropped, and
        logged.

        Args:
            timeout: seconds that the flush may take.

        Returns:
            Whether nothing was lost, nor dropped since the last flush; a second call returns the
            same.
        """
        with self._closing:
            complete = self._complete
            if complete is None:
                # Remembered only now: a close that an exception of a signal handler ended is made
                # up for by the next one, the exit's if no other comes.
                complete = self._complete = self._close(timeout)
        lifecycle.forget(self)
        return complete

    def _close(self, timeout: float) -> bool:
        """May be called again if an exception of a signal handler ended it, and goes on."""
        self._events.switch(Mode.CLOSED)
        if not self._ending:
            deadline = time.monotonic() + timeout
            stored = self._flush(timeout)
            while stored and self._events.raw():  # of calls that were under way at the switch
                stored = self._flush(deadline - time.monotonic())
            if self._buffer.waiting_members.count:
                end = partial(self._events.fold_waiting, end=True)
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
            self._tell_of_lost(
                "increments that were not stored are lost, and not counted: the thread that folds"
                " them did not end in time"
            )
        elif unsaid := self._send_thread.unsaid():
            self._tell_of_lost(
                f"{unsaid} increments could be stored neither in Redis nor on disk and are lost"
            )
        self._link.close()
        if self._spool is not None:
            self._spool.close()
        return not self._dropped_anew() and lost == 0

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

    # --- for the end of the process -------------------------------------------------------------

    @property
    def exit_timeout(self) -> float:
        """Seconds that a flush at the end of the process may take."""
        return self._options.exit_timeout

    def stop_counting(self) -> None:
        """Accept no more: later increments are dropped instead of raising, and do not return if the
        process is about to end.
        """
        self._exited = True
        self._events.switch(Mode.CLOSED)

    def close_at_exit(self, deadline: float) -> None:
        """Close until the monotonic time ``deadline``; later increments are dropped instead of
        raising.
        """
        self._exited = True
        # Another thread may be closing, with more time than this one has.
        if self._closing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                self.close(max(0.0, deadline - time.monotonic()))
            finally:
                self._closing.release()
        else:
            self.tell_of_loss()

    def tell_of_loss(self) -> None:
        """Say how much is in this process's memory alone, which ends."""
        figures = self.stats()
        if left := figures.accepted - figures.stored - figures.spooled:
            self._tell_of_lost(
                f"{left} increments are not stored, and lost as the process ends now"
            )

    def _tell_of_lost(self, text: str) -> None:
        self._log("left_over", text, level=logging.ERROR)
