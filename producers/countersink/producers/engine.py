"""Class ``Engine``, the buffers and threads of one producer in one process: start, flush, close,
and log lines about increments lost at the end (``send_thread.py`` logs earlier drops).
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from countersink.producers import lifecycle
from countersink.producers.buffer.events import EventBuffer, Mode
from countersink.producers.buffer.fold_thread import FoldThread
from countersink.producers.buffer.rows import NEVER, RowBuffer
from countersink.producers.options import Options
from countersink.producers.outbox import Outbox, Stats
from countersink.producers.redis_link import Checkpoint, RedisLink
from countersink.producers.send_thread import Flush, SendThread
from countersink.producers.spool.writer import Spool, SpoolThread
from countersink.producers.threads import Lock, RLock, let_app_run, pause
from countersink.runtime.log import Log
from countersink.runtime.texts import plural
from countersink.stream.connection import connect
from countersink.stream.entry import RedisClock

JOIN_SECONDS: Final = 1.0
"""Seconds to wait for a thread to end when the producer is closed; also for other short waits."""
ANSWER_SECONDS: Final = 5.0
"""Seconds to wait for the fold thread's answer in calls that have no time-out of their own."""
POLL_SECONDS: Final = 0.02
"""Seconds between the first two checks whether stored entries are applied; then up to 0.2."""
DRAINING_SECONDS: Final = 2.0
"""Seconds after rows were last stored during which a full memory is expected to become emptier."""
RESTART_SECONDS: Final = 1.0
"""Interval between attempts to start the threads."""


class Engine:
    """The base of ``Producer``: creates the buffers and threads, flushes and closes them.

    Attributes:
        trail: tells whether the entries that this process has stored are applied to MySQL, up to a
            checkpoint from :meth:`checkpoint`."""

    _recorder: EventBuffer | None = None  # takes increments in place of a buffer for the threads

    def __init__(self, url: str, options: Options) -> None:
        self._url = url
        self._options = options
        self._exited = False
        self.start_over()

    def start_over(self) -> None:
        """Create empty buffers and new threads, and do not start the threads. Called by the
        constructor, and again in a forked child, because the parent sends what was accepted before
        the fork."""
        options = self._options
        self._log = Log(logging.getLogger("countersink.producers"))
        self._clock = RedisClock()
        self._buffer = RowBuffer(options.max_rows_in_memory or NEVER, options.max_bytes_in_memory)
        self._events = self._recorder or EventBuffer(self._buffer, self._clock, self._wake)
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
        self._guard = Lock()  # never held over a call: signal handlers cannot deadlock on it
        self._starter: object | None = None  # identifies the call that is starting the threads
        self._started = False
        self._next_start = 0.0
        self._ending = False
        self._reported_drops = 0  # dropped increments and members that flush() has reported
        self._closing = RLock()  # reentrant: a signal handler may close, too
        self._complete: bool | None = None  # the result of close()

    # --- threads -----------------------------------------------------------------------------

    def _start(self, *, wait: bool = True) -> bool:
        """Start the threads unless they run already. Return True if they run afterwards.

        Args:
            wait: True waits up to 1 s for another call that is starting them. False does not wait,
                and does not try again within ``RESTART_SECONDS`` after a failed start."""
        if self._started:
            return True
        me = object()
        deadline = time.monotonic() + (JOIN_SECONDS if wait else 0.0)
        try:
            while True:
                with self._guard:
                    if self._starter is None:
                        self._starter = me
                if self._starter is me:
                    break
                if self._started or time.monotonic() >= deadline:
                    return self._started
                let_app_run()
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
            lifecycle.hook_multiprocessing()
        except RuntimeError as error:
            # The limit on threads is reached, or the interpreter is ending. Until a later attempt
            # succeeds, callers fold, and close() sends.
            self._next_start = time.monotonic() + RESTART_SECONDS
            self._events.switch(Mode.NO_THREADS)
            self._log.seldom(
                "internal_error", f"cannot start threads: {error}", level=logging.ERROR
            )

    @property
    def unused(self) -> bool:
        """True as long as this process has not used this producer: its threads do not run, and its
        memory has no events."""
        return not (self._started or self._events.unfolded() or self._buffer.held)

    def _wake(self) -> None:
        """Start the threads unless they run. If they run afterwards, switch to ``Mode.HOT`` and
        wake the fold thread, which then folds every 50 ms. The event buffer calls this for events
        that are added while the threads are idle or do not run; for batches unless in ``HOT``."""
        if self._options.handle_sigterm:
            lifecycle.reinstall_handlers()
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
        """Return True if a full memory will probably have room soon, so that callers can wait for
        it. All of this is necessary: Redis or the spool takes rows, or Redis has not failed yet; in
        the last ``DRAINING_SECONDS`` rows were stored, or memory became nearly full (at
        ``full_since``, monotonic); and the send thread is not being stopped."""
        link, spool = self._link, self._spool
        tries = link.usable or not link.failures or (spool is not None and not spool.failing)
        last = max(full_since, self._outbox.settled_at)
        return (
            tries and not self._send_thread.stopping and time.monotonic() - last < DRAINING_SECONDS
        )

    # --- flushing ----------------------------------------------------------------------------

    def flush(self, timeout: float = 5.0, applied: bool = False) -> bool:
        """Wait until all increments accepted before this call are stored, in Redis or in the spool.
        Never raises because of Redis or a disk.

        Args:
            timeout: seconds to wait at most (folding may take 1 s even if ``timeout`` is less).
            applied: True waits longer: until these increments, and all entries that this process
                has spooled, are in MySQL (or among the dead letters).

        Returns:
            True if everything was stored in time (with ``applied``: is in MySQL), and since the
            last flush no increment was dropped and no sighting (see ``seen``) was counted without
            its member. With ``applied``, also False if the state cannot be known any more, because
            something other than a worker removed entries from the stream: Redis was emptied,
            restarted or replaced by a replica, or XTRIM, XDEL or DEL was used. The cause is logged.
            Only one call returns False for it: the next call checks only entries stored later."""
        deadline = time.monotonic() + timeout
        since = self.trail.reported_breaks
        stored = self._flush(timeout)
        if self._dropped_anew() or not stored:
            return False
        return not applied or self._applied(deadline - time.monotonic(), since)

    def _dropped_anew(self) -> bool:
        lost = self._events.dropped + self._events.sightings.without_member
        before, self._reported_drops = self._reported_drops, lost
        return lost > before

    def _flush(self, timeout: float) -> bool:
        flush = self._begin(time.monotonic() + timeout)
        return flush is not None and flush.wait(without_threads=self._without_threads)

    @property
    def _without_threads(self) -> bool:
        return self._ending or not self._started

    def _begin(self, deadline: float) -> Flush | None:
        """Begin a flush of all accepted increments until ``deadline`` (monotonic), and return it.
        Return None if events are not folded by then, or within 1 s if that is later."""
        if self._spool is not None or self._events.unfolded() or self._buffer.held:
            # A spool needs the threads for segments of dead processes, even if nothing is counted.
            self._start()
        generation = self._fold_thread.ask(
            self._outbox.newest_generation, max(JOIN_SECONDS, deadline - time.monotonic())
        )
        if generation is None:
            return None
        return Flush(
            self._link, self._outbox, self._send_thread, self._spool_thread, generation, deadline
        )

    def begin_flush(self, deadline: float) -> Callable[[], bool]:
        """Wait until events are folded, and begin a flush until ``deadline`` (monotonic). Return
        a function to call until it returns True: the flush is over then, its rows stored or not
        (see ``Flush.over``). If the threads do not run or answer, the function returns True at
        once: only ``close()`` can store the rows then."""
        flush = self._begin(deadline)
        if flush is None or self._without_threads:
            return lambda: True  # close() flushes without threads
        return flush.over

    def checkpoint(self, since: int = 0) -> Checkpoint | None:
        """Return a checkpoint: the last entry that this process has stored so far in each stream,
        for :meth:`countersink.producers.redis_link.Trail.applied`. Return None if some entries are
        still in the spool of this process.

        Args:
            since: the value of :attr:`Trail.breaks <countersink.producers.redis_link.Trail.breaks>`
                before the entries were stored. If it has grown since (it became unknown
                whether entries were applied), ``applied`` returns None."""
        return None if self._spool and self._spool.waiting else self.trail.checkpoint(since)

    def _applied(self, timeout: float, since: int) -> bool:
        """Wait until the spool of this process is empty and all entries that the process has stored
        are applied. Return True if so. Return False after ``timeout`` seconds, or if it can never
        be known.

        Args:
            since: number of breaks of the trail (it became unknown whether entries were applied)
                that earlier calls have reported. A further break is logged; the result is False.
        """
        deadline = time.monotonic() + timeout
        poll_seconds = POLL_SECONDS
        client = connect(self._url, socket_timeout=self._options.socket_timeout)
        try:
            checkpoint: Checkpoint | None = None
            while True:
                if checkpoint is None:
                    checkpoint = self.checkpoint(since)
                if checkpoint is not None:
                    (verdict,) = self.trail.applied(client, [checkpoint])
                    if verdict is None:
                        self.trail.report_break()
                    if verdict is not False:
                        return bool(verdict)
                now = time.monotonic()
                if now >= deadline:
                    return False
                pause(min(poll_seconds, deadline - now))
                poll_seconds = min(0.2, poll_seconds * 1.5)
        finally:
            client.close()

    def stats(self) -> Stats:
        """Wait until all increments are folded, 5 s at most, and return the producer's figures."""
        figures = self._fold_thread.ask(self._figures, ANSWER_SECONDS)
        return self._figures() if figures is None else figures

    def _figures(self) -> Stats:
        if self._buffer.waiting:
            self._rows_waiting()  # the fold thread reports rows only after folding
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
        """Flush, then end the threads. From the beginning on, ``increment()`` raises RuntimeError.
        Increments that could be stored neither in Redis nor in the spool are lost; their number is
        logged, and they count as dropped. Idempotent.

        Args:
            timeout: seconds that the flush may take; ending the threads may take a few more.

        Returns:
            True if no increment was lost, and since the last flush no increment was dropped and no
            sighting was counted without its member. Later calls return the first call's result.
        """
        with self._closing:
            complete = self._complete
            if complete is None:
                # Set after _close(): if an exception of a signal handler ends that, the next call
                # (at the latest the one at exit) completes it.
                complete = self._complete = self._close(timeout)
        lifecycle.unregister(self)
        return complete

    def _close(self, timeout: float) -> bool:
        """Do the work of :meth:`close`. If an exception from a signal handler has interrupted an
        earlier call, continue its work."""
        self._events.switch(Mode.CLOSED)
        if not self._ending:
            deadline = time.monotonic() + timeout
            stored = self._flush(timeout)
            while stored and self._events.unfolded():  # left by calls in progress at the switch
                stored = self._flush(deadline - time.monotonic())
            if self._buffer.waiting_members.count:
                end = partial(self._events.fold_waiting, end=True)
                self._fold_thread.ask(end, ANSWER_SECONDS)
                stored = self._flush(deadline - time.monotonic())
            if not stored and self._spool_thread is not None:
                self._flush(JOIN_SECONDS)  # rows that Redis has not taken go to the spool
            self._ending = True
        self._send_thread.log_missing_members()
        self._stop_threads()
        lost = self._fold_thread.ask(self._outbox.give_up, ANSWER_SECONDS)
        self._fold_thread.stop()
        if self._fold_thread.is_alive():
            self._fold_thread.join(JOIN_SECONDS)
        if lost is None:
            self._log_lost(
                "an unknown number of increments was not stored and is lost: the thread that folds"
                " increments did not end in time"
            )
        elif drops := self._send_thread.take_unlogged_drops():
            self._log_lost(
                f"{plural(drops, 'increment')} could be stored neither in Redis nor on disk: lost"
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
            self._link.abort()  # it waits for the answer of a frozen Redis
            self._send_thread.join(JOIN_SECONDS)

    # --- for the end of the process -------------------------------------------------------------

    @property
    def exit_timeout(self) -> float:
        """Most seconds that a flush at the end of the process may take."""
        return self._options.exit_timeout

    def stop_counting(self) -> None:
        """Make later calls of ``increment()`` drop their increments, without the RuntimeError of a
        closed producer. While the process is ending, these calls block in other threads, because
        nothing is stored any more."""
        self._exited = True
        self._events.switch(Mode.CLOSED)

    def close_at_exit(self, deadline: float) -> None:
        """Close until the monotonic time ``deadline``; drop later increments. If another thread is
        still closing the producer at that time, only log how many increments are lost."""
        self._exited = True
        # Another thread may be closing, with a later deadline.
        if self._closing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                self.close(max(0.0, deadline - time.monotonic()))
            finally:
                self._closing.release()
        else:
            self.log_loss()

    def log_loss(self) -> None:
        """Log how many increments this process has not stored and so loses when it ends, if any."""
        figures = self.stats()
        if lost := figures.accepted - figures.stored - figures.spooled:
            self._log_lost(f"{plural(lost, 'increment')} not stored: lost, as the process ends now")

    def _log_lost(self, text: str) -> None:
        self._log("left_over", text, level=logging.ERROR)
