"""The spool of a producer (``Spool``) and the thread that writes it (``SpoolThread``): when rows go
to disk (memory half full, or a flush), the limit ``spool_max_bytes``, the size of a segment, the
pause and the log line after a failed write.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from countersink.producers.buffer.rows import RowBuffer
from countersink.producers.errors import SpoolError
from countersink.producers.outbox import PARCELS_AT_A_TIME, Outbox, Parcel
from countersink.producers.spool.replay import Backlog, new_segment_path, segment_paths, used_bytes
from countersink.producers.spool.segment import (
    FILE_HEADER_SIZE,
    RECORD_HEADER_SIZE,
    Segment,
    spool_errors,
)
from countersink.producers.threads import Lock, WorkThread, sleep
from countersink.runtime.log import Log

RETRY_SECONDS: Final = 1.0
"""Seconds between a failed write and the next attempt."""
SEGMENT_BYTES: Final = 16 << 20
"""Size in bytes above which a segment gets no more entries; a new segment is begun."""


class Spool:
    """The spool of one producer. The spool thread writes entries into it, the send thread sends
    them to Redis.

    Attributes:
        directory: the spool's directory.
        backlog: the segments to be replayed. Only the send thread may use it, except its method
            ``add``, which any thread may call.
        failure: error message of the last write or the last :meth:`look` at the directory,
            whichever came later, if that failed; otherwise ``None``.
        failing: whether the spool thread pauses after a failed write and will try again, because
            there is still something to write.
    """

    def __init__(self, directory: Path, max_bytes: int, log: Log) -> None:
        self.directory = directory
        self.backlog = Backlog(log)
        self.failure: str | None = None
        self.failing = False
        self._max_bytes = max_bytes
        self._log = log
        self._lock = Lock()  # guards the current segment; held during fsync
        self._current: Segment | None = None
        if not self.look():
            # Not raised: the directory may be mended before it is needed.
            log("spool_failed", f"{self.failure}: nothing can be spooled", level=logging.ERROR)

    def look(self) -> bool:
        """Make the directory if it is missing. Return whether it can be written to, and set
        :attr:`failure`: an error message if not, otherwise None.
        """
        try:
            self._make_directory()
        except SpoolError as error:
            self.failure = str(error)
        else:
            self.failure = None
        return self.failure is None

    def _make_directory(self) -> None:
        with spool_errors(f"{self.directory}: cannot create the directory"):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        effective = os.access in os.supports_effective_ids
        if not os.access(self.directory, os.W_OK | os.X_OK, effective_ids=effective):
            raise SpoolError(f"{self.directory}: this user may not write here")

    @property
    def waiting(self) -> bool:
        """Whether segments that this process has locked, or released after an error, may have
        entries that are not in Redis yet."""
        current, backlog = self._current, self.backlog
        written = current is not None and current.end > FILE_HEADER_SIZE
        return len(backlog) > 0 or backlog.released or written

    def append(self, parcels: Sequence[Parcel]) -> None:
        """Write parcels to the spool and fsync them: all of them or none.

        Raises:
            SpoolError: writing failed, or the spool is full; no parcel is stored.
        """
        size = sum(len(parcel.rows) + RECORD_HEADER_SIZE + 64 for parcel in parcels)
        with self._lock:
            self._make_directory()
            if used_bytes(self.directory) + size > self._max_bytes:
                raise SpoolError(
                    f"{self.directory}: the spool is full (spool_max_bytes: {self._max_bytes})"
                )
            if self._current is not None and self._current.end > SEGMENT_BYTES:
                self.backlog.add(self._current)
                self._current = None
            if self._current is None:
                self._current = Segment.create(new_segment_path(self.directory))
            self._current.append(parcels)

    def roll(self) -> None:
        """Move the segment that is being written, if it has records, into the backlog, so that it
        is replayed. The next entries go into a new segment.
        """
        with self._lock:
            if self._current is not None and self._current.end > FILE_HEADER_SIZE:
                self.backlog.add(self._current)
                self._current = None

    def adopt_one(self) -> bool:
        """Lock the oldest segment that nobody has locked (of a dead process or a closed producer,
        or released after an error) and add it to the backlog; returns whether there was such a
        segment. Segments that cannot be read are logged and skipped.

        Raises:
            SpoolError: the directory cannot be read.
        """
        unreadable = False
        for path in segment_paths(self.directory):
            try:
                segment = Segment.adopt(path)
            except SpoolError as error:
                self._log.seldom("spool_failed", str(error), level=logging.ERROR)
                unreadable = True
                continue
            if segment is not None:
                self.backlog.add(segment)
                return True
        self.backlog.released &= unreadable
        return False

    def close(self) -> None:
        """Release the locks of all segments, so that another process may replay them."""
        self.backlog.close()
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            current.close()


@dataclass(repr=False, eq=False)
class SpoolThread(WorkThread):
    """The thread that writes rows to the spool when memory is half full, and when a flush requests
    it. After a failed write it tries again after 1 s, without a request.
    """

    _spool: Spool
    _outbox: Outbox
    _buffer: RowBuffer
    _log: Log
    _stored: Callable[[], None]

    def __post_init__(self) -> None:
        super().__init__("countersink-spooler")
        self._upto = 0
        self._not_before = 0.0

    def request(self, generation: int) -> None:
        """Make the thread write all rows of the generations up to ``generation`` immediately, even
        in the pause after a failed write.
        """
        self._upto = max(self._upto, generation)
        self._not_before = 0.0
        self._spool.failing = False
        self.bell.ring()

    def rows_waiting(self) -> None:
        """Make the thread write rows if memory is half full. Called after each fold."""
        if self._buffer.half_full:
            self.bell.ring()

    def run(self) -> None:
        """Write rows when a flush requests it or memory is half full, until the thread is
        stopped.
        """
        while not self.stopping:
            seconds = max(0.0, self._not_before - time.monotonic())
            self.bell.wait(seconds if self._spool.failing else None)
            try:
                self.work()
            except Exception:
                self._spool.failing = True
                self._log.bug("the spool thread")
                sleep(RETRY_SECONDS)

    def work_once(self) -> None:
        """Write the requested rows, then further rows until memory is less than half full. Ends
        early after a failed write; does nothing in the pause after it.
        """
        # A parcel that the send thread is sealing at this moment is in no list: check again until
        # it is in the outbox.
        while not self.stopping and time.monotonic() >= self._not_before:
            if self._upto and not self._outbox.settled(self._upto):
                upto = self._upto
            elif self._buffer.half_full:
                upto = self._buffer.generation
            else:
                if self._spool.failing:
                    self._spool.failing = False
                    self._spool.look()
                return
            if not self._store(upto):
                sleep(0.001)

    def _store(self, upto: int) -> bool:
        """Write up to 16 parcels: those in the outbox, then rows of generations up to ``upto``. If
        the write fails, the parcels are in the outbox afterwards, and the pause of 1 s begins.
        Return False if there were no parcels, True if there were some, even if the write failed.
        """
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
        except BaseException as error:
            # Parcels that were sent before have stayed in the outbox.
            self._outbox.post([parcel for parcel in parcels if parcel.at is None])
            if not isinstance(error, SpoolError):
                raise
            self._spool.failure = str(error)
            self._not_before = time.monotonic() + RETRY_SECONDS
            self._spool.failing = True
            self._log.seldom("spool_failed", f"{error}; rows stay in memory", level=logging.ERROR)
        else:
            self._spool.failure = None
            self._spool.failing = False
            self._outbox.settle(parcels, spooled=True)
            self._stored()
        return True
