"""A producer's machinery in one process: built anew in a forked child."""

import logging
import time
from pathlib import Path
from threading import Lock
from typing import Final

from countersink.producers import lifecycle
from countersink.producers.clock import RedisClock
from countersink.producers.folder import Folder, breathe
from countersink.producers.intake import Intake, Mode
from countersink.producers.journal import Journal
from countersink.producers.link import Link
from countersink.producers.options import Options
from countersink.producers.outbox import Outbox
from countersink.producers.rows import RowBuffer
from countersink.producers.sender import Sender
from countersink.producers.spool.writer import Spool
from countersink.producers.spooler import Spooler
from countersink.producers.stats import Stats
from countersink.stream.connection import command, connect
from countersink.stream.errors import StreamError

JOIN_SECONDS: Final = 1.0
"""How long the end of a thread is waited for at close, once what it waits for was broken off."""
POLL_SECONDS: Final = 0.02


class Core:
    """Wires intake, folder, sender and spooler together, and closes them in order."""

    def __init__(self, url: str, options: Options) -> None:
        self._url = url
        self._options = options
        self._journal = Journal()
        self._clock = RedisClock()
        self._buffer = RowBuffer(options.max_rows_in_memory)
        self.intake = Intake(self._buffer, self._clock, self._wake)
        self._outbox = Outbox(self.intake, self._clock, options.id_scope, breathe)
        self._link = Link(
            url, options.socket_timeout, options.max_stream_length, self._clock, self._journal
        )
        self._spool: Spool | None = None
        self._spooler: Spooler | None = None
        if options.spool is not None:
            self._spool = Spool(Path(options.spool), options.spool_max_bytes, self._journal)
        self._sender = Sender(
            self._link,
            self._outbox,
            self._buffer,
            self._clock,
            self._journal,
            self._spool,
            flush_interval=options.flush_interval,
            max_rows=options.max_rows,
        )
        if self._spool is not None:
            self._spooler = Spooler(
                self._spool, self._outbox, self._buffer, self._journal, self._sender.flush_now
            )
        self._folder = Folder(self.intake, self._clock, self._journal, self._rows_waiting)
        self._starting = Lock()
        self._started = False

    # --- threads -----------------------------------------------------------------------------

    def start(self, *, wait: bool = True) -> bool:
        """Start the threads unless they run; whether they do.

        With ``wait=False`` for callers that must not wait until another one has started them.
        """
        if self._started:
            return True
        if not self._starting.acquire(blocking=wait):
            return False
        try:
            if not self._started:
                for thread in (self._folder, self._sender, self._spooler):
                    if thread is not None and not thread.is_alive():
                        thread.start()
                self._started = True
                lifecycle.finalize_with_multiprocessing()
        except RuntimeError as error:
            # No more threads to be had, or the interpreter is ending: callers fold, and close()
            # sends.
            self.intake.switch(Mode.CROWDED)
            self._journal.seldom(logging.ERROR, "internal_error", "no thread: %s", error)
        finally:
            self._starting.release()
        return self._started

    def _wake(self) -> None:
        """A caller has left an event while nobody was looking."""
        if self.start(wait=False):
            self.intake.switch(Mode.HOT)
            self._folder.wake()

    def _rows_waiting(self) -> None:
        self._sender.rows_waiting()
        if self._spooler is not None:
            self._spooler.rows_waiting()

    # --- flushing ----------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Store what was accepted so far; whether that was done within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self.intake.fold_all()
        generation = self._buffer.generation
        if self._spool is not None:
            self.start()  # to replay what dead processes left, even if nothing is counted here
        if self._outbox.settled(generation):
            return True
        if not self.start():
            return self._flush_without_threads(generation, deadline)
        failures = self._link.failures
        self._link.try_now()
        self._sender.flush_now()
        spool_at = time.monotonic() + timeout / 2
        spooling = self._spooler is None
        with self._outbox.progress:
            while not self._outbox.settled(generation):
                now = time.monotonic()
                away = self._link.held_back or self._link.failures > failures
                if self._spooler is not None and not spooling and (away or now >= spool_at):
                    self._spooler.request(generation)
                    spooling = True
                if now >= deadline:
                    return False
                self._outbox.progress.wait(min(deadline - now, POLL_SECONDS))
        return True

    def _flush_without_threads(self, generation: int, deadline: float) -> bool:
        while not self._outbox.settled(generation) and time.monotonic() < deadline:
            self._sender.work()
            if self._spooler is not None and not self._outbox.settled(generation):
                self._spooler.request(generation)
                self._spooler.work()
            breathe()
        return self._outbox.settled(generation)

    def applied(self, timeout: float) -> bool:
        """Wait until all that this process stored has left the streams, and the spool."""
        deadline = time.monotonic() + timeout
        pause = POLL_SECONDS
        client = connect(self._url, socket_timeout=self._options.socket_timeout)
        try:
            left: dict[str, str] | None = None
            while True:
                if left is None and not (self._spool and self._spool.waiting):
                    left = dict(self._link.last_ids)
                for stream, last in list(left.items()) if left is not None else []:
                    try:
                        # Workers delete what they have acknowledged.
                        if not command(client, "XRANGE", stream, "-", last, "COUNT", 1):
                            del left[stream]  # type: ignore[union-attr]
                    except StreamError:
                        pass  # not known to be applied: ask again
                if left is not None and not left:
                    return True
                now = time.monotonic()
                if now >= deadline:
                    return False
                time.sleep(min(pause, deadline - now))
                pause = min(0.2, pause * 1.5)
        finally:
            client.close()

    def stats(self) -> Stats:
        """The figures now."""
        self.intake.fold_all()
        if self._buffer.waiting:
            self._rows_waiting()  # the folder may find nothing to fold, and so nothing to tell
        with self.intake.lock:
            self.intake.fold_rest_locked()
            spool_error = None if self._spooler is None else self._spooler.last_error
            return Stats(
                accepted=self.intake.accepted,
                stored=self._outbox.stored,
                resent=self._outbox.resent,
                spooled=self._outbox.spooled,
                replayed=self._sender.replayed,
                dropped=self.intake.dropped,
                pending_rows=self._buffer.held,
                last_error=spool_error or self._link.last_error,
                connected=self._link.usable,
            )

    def close(self, timeout: float) -> bool:
        """Store what ``timeout`` seconds allow, count the rest as dropped; whether none was."""
        self.intake.switch(Mode.CLOSED)
        self.flush(timeout)
        self._stop_threads()
        lost = self._outbox.give_up()
        if lost:
            self._journal.say(
                logging.ERROR,
                "left_over",
                "%d increments could be stored neither in Redis nor on disk and are lost",
                lost,
            )
        self._link.close()
        if self._spool is not None:
            self._spool.close()
        return not lost

    def _stop_threads(self) -> None:
        if not self._started:
            return
        self._folder.stop()
        self._sender.stop()
        if self._spooler is not None:
            self._spooler.stop()
            self._spooler.join(JOIN_SECONDS)
        self._sender.join(JOIN_SECONDS if self._link.usable else POLL_SECONDS)
        if self._sender.is_alive():
            self._link.abort()  # it hangs in a command that a frozen Redis does not answer
        self._sender.join(JOIN_SECONDS)
        self._folder.join(JOIN_SECONDS)
