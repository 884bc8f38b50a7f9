"""A producer's own segments: the one it writes, and those it has closed and will replay."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from countersink.producers.journal import Journal
from countersink.producers.parcel import Parcel
from countersink.producers.primitives import Lock
from countersink.producers.spool.backlog import Backlog
from countersink.producers.spool.directory import new_segment_path, segment_paths, used_bytes
from countersink.producers.spool.errors import SpoolError, SpoolFull
from countersink.producers.spool.record import FILE_HEADER_SIZE, RECORD_HEADER_SIZE
from countersink.producers.spool.segment import Segment

SEGMENT_BYTES: Final = 16 << 20
"""A segment that is larger gets no more records."""


class Spool:
    """The spool as one producer uses it: its spooler thread appends, its sender thread replays.

    Attributes:
        backlog: the segments being replayed; for the sender alone.
        failure: why the last attempt to write failed; ``None``: it did not.
    """

    def __init__(self, directory: Path, max_bytes: int, journal: Journal) -> None:
        self.directory = directory
        self.backlog = Backlog(journal)
        self.failure: str | None = None
        self._max_bytes = max_bytes
        self._journal = journal
        self._lock = Lock()  # the current segment and the list of closed ones; held during fsync
        self._current: Segment | None = None
        self._closed: list[Segment] = []

    @property
    def waiting(self) -> bool:
        """Whether records of this producer wait for Redis."""
        current = self._current
        written = current is not None and current.end > FILE_HEADER_SIZE
        return written or bool(self._closed) or len(self.backlog) > 0

    def append(self, parcels: Sequence[Parcel]) -> None:
        """Store the parcels on disk: all or none.

        Raises:
            SpoolError: none of them is stored.
        """
        size = sum(len(parcel.rows) + RECORD_HEADER_SIZE + 64 for parcel in parcels)
        with self._lock:
            self._make_directory()
            if used_bytes(self.directory) + size > self._max_bytes:
                raise SpoolFull(
                    f"{self.directory} holds {self._max_bytes} bytes, as much as it may"
                )
            if self._current is not None and self._current.end > SEGMENT_BYTES:
                self._closed.append(self._current)
                self._current = None
            if self._current is None:
                self._current = Segment.create(new_segment_path(self.directory))
            self._current.append(parcels)

    def roll(self) -> None:
        """Give what was written so far to the backlog."""
        with self._lock:
            if self._current is not None and self._current.end > FILE_HEADER_SIZE:
                self._closed.append(self._current)
                self._current = None
            closed, self._closed = self._closed, []
        for segment in closed:
            self.backlog.add(segment)

    def adopt_one(self) -> bool:
        """Give the oldest segment that a dead process left to the backlog; whether there was one.

        Raises:
            SpoolError: the directory cannot be read.
        """
        for path in segment_paths(self.directory):
            try:
                segment = Segment.adopt(path)
            except SpoolError as error:
                self._journal.seldom(logging.ERROR, "spool_failed", "%s", error)
                continue
            if segment is not None:
                self.backlog.add(segment)
                return True
        return False

    def close(self) -> None:
        """Leave everything to a later process. An empty segment is deleted."""
        self.backlog.close()
        with self._lock:
            current, self._current = self._current, None
            closed, self._closed = self._closed, []
        for segment in closed:
            segment.close()
        if current is not None and current.end == FILE_HEADER_SIZE:
            try:
                current.finish()
            except SpoolError as error:
                self._journal.seldom(logging.ERROR, "spool_failed", "%s", error)
        elif current is not None:
            current.close()

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SpoolError(f"{self.directory}: cannot create: {error.strerror}") from error
