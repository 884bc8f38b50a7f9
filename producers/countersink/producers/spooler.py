"""The thread that writes the disk spool: a slow disk holds up no other, nor a frozen Redis it."""

import logging
import time
from collections.abc import Callable
from typing import Final

from countersink.producers.bell import Bell
from countersink.producers.journal import Journal
from countersink.producers.outbox import Outbox
from countersink.producers.parcel import PARCELS_AT_A_TIME, Parcel
from countersink.producers.primitives import RLock, Thread, sleep
from countersink.producers.rows import RowBuffer
from countersink.producers.spool.errors import SpoolError
from countersink.producers.spool.writer import Spool

RETRY_SECONDS: Final = 1.0


class Spooler(Thread):
    """Spools when memory is half full, and when a flush asks for it.

    Attributes:
        last_error: the last failure's text.
    """

    def __init__(
        self,
        spool: Spool,
        outbox: Outbox,
        buffer: RowBuffer,
        journal: Journal,
        stored: Callable[[], None],
    ) -> None:
        super().__init__("countersink-spooler")
        self.last_error: str | None = None
        self._spool = spool
        self._outbox = outbox
        self._buffer = buffer
        self._journal = journal
        self._stored = stored
        self._bell = Bell()
        self._upto = 0
        self._stopping = False
        self._not_before = 0.0
        self._failing = False  # the last attempt failed: try again, even if nobody asks
        self._working = RLock()  # see Sender
        self._busy = False

    def request(self, generation: int) -> None:
        """Spool everything up to ``generation`` soon, even if the last attempt has just failed."""
        self._upto = max(self._upto, generation)
        self._not_before = 0.0
        self._failing = False
        self._bell.ring()

    def rows_waiting(self) -> None:
        """Spool if memory is half full."""
        if self._buffer.crowded:
            self._bell.ring()

    def stop(self) -> None:
        """End soon."""
        self._stopping = True
        self._bell.ring()

    def run(self) -> None:
        """The thread."""
        while not self._stopping:
            pause = max(0.0, self._not_before - time.monotonic())
            self._bell.wait(pause if self._failing else None)
            try:
                self.work()
            except Exception:
                self._failing = True
                self._journal.bug("the spooler")
                sleep(RETRY_SECONDS)

    def work(self) -> None:
        """Spool what was asked for."""
        with self._working:
            if self._busy:
                return
            self._busy = True
            try:
                self._work()
            finally:
                self._busy = False

    @property
    def failing(self) -> bool:
        """Whether the last attempt to write failed."""
        return self._failing

    def _work(self) -> None:
        # A parcel that the sender is sealing at this moment is in nobody's list: look again until
        # it turns up.
        while not self._stopping and time.monotonic() >= self._not_before:
            if self._upto and not self._outbox.settled(self._upto):
                upto = self._upto
            elif self._buffer.crowded:
                upto = self._buffer.generation
            else:
                self._failing = False
                return
            if not self._store(upto):
                sleep(0.001)

    def _store(self, upto: int) -> bool:
        """Spool up to 16 parcels; whether there were any."""
        parcels = self._outbox.for_spool(PARCELS_AT_A_TIME)
        while len(parcels) < PARCELS_AT_A_TIME:
            parcel = self._outbox.seal(upto)
            if parcel is None:
                break
            parcels.append(parcel)
        if not parcels:
            return False
        try:
            self._spool.append(parcels)
        except SpoolError as error:
            self._failed(parcels, error)
        except BaseException:
            self._outbox.post([parcel for parcel in parcels if parcel.at is None])
            raise
        else:
            self._failing = False
            self._spool.failure = None
            self._outbox.settle(parcels, spooled=True)
            self._stored()
        return True

    def _failed(self, parcels: list[Parcel], error: SpoolError) -> None:
        # Those that were sent before have stayed in the outbox.
        self._outbox.post([parcel for parcel in parcels if parcel.at is None])
        self.last_error = self._spool.failure = str(error)
        self._not_before = time.monotonic() + RETRY_SECONDS
        self._failing = True
        self._journal.seldom(logging.ERROR, "spool_failed", "%s; rows stay in memory", error)
