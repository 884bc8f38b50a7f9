"""Sending segments that are no longer written: in order, each record until Redis has it."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from countersink.producers.journal import Journal
from countersink.producers.parcel import Parcel
from countersink.producers.spool.record import Record
from countersink.producers.spool.segment import Segment


class Backlog:
    """Segments to be replayed, all of which this process holds. Used by one thread.

    Attributes:
        segments_done: finished segments.
        entries_done: entries that Redis has got.
        increments_done: the increments in them.
        damaged_bytes: bytes of corrupt records that were passed over.
        kept: files that were kept because of such.
    """

    def __init__(self, journal: Journal) -> None:
        self.segments_done = 0
        self.entries_done = 0
        self.increments_done = 0
        self.damaged_bytes = 0
        self.kept: list[Path] = []
        self._journal = journal
        self._segments: deque[Segment] = deque()
        self._records: list[Record] = []  # read, and not yet in Redis
        self._offset = 0

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Replay ``segment`` after those that are here."""
        if not self._segments:
            self._offset = segment.done
        self._segments.append(segment)

    def next(self, limit: int, now_ms: Callable[[], int]) -> list[Parcel]:
        """At most ``limit`` parcels to send now, with ``at`` frozen on disk; none: everything is
        replayed.

        Raises:
            SpoolError: they cannot be read or stamped at the moment.
        """
        while self._segments and not self._records:
            segment = self._segments[0]
            while len(self._records) < limit:
                record = segment.read(self._offset)
                if record is None:
                    break
                if record.offset > self._offset:
                    self._damage(segment, record.offset - self._offset)
                self._records.append(record)
                self._offset = record.end
            if not self._records:
                self._finish(segment)
        new = [record for record in self._records if record.parcel.at is None]
        if new:
            self._segments[0].stamp(new, now_ms())
        return [record.parcel for record in self._records]

    def delivered(self, parcels: Sequence[Parcel]) -> None:
        """Redis has these.

        Raises:
            SpoolError: that could not be noted; they may be sent once more.
        """
        ids = {id(parcel) for parcel in parcels}
        for parcel in parcels:
            self.entries_done += 1
            self.increments_done += parcel.increments
        self._records = [record for record in self._records if id(record.parcel) not in ids]
        self._segments[0].mark_done(self._records[0].offset if self._records else self._offset)

    def close(self) -> None:
        """Let other processes have the rest."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._records.clear()

    def drop_first(self) -> None:
        """Leave the first segment, which cannot be read, to a later process."""
        self._records.clear()
        self._segments.popleft().close()
        if self._segments:
            self._offset = self._segments[0].done

    def _finish(self, segment: Segment) -> None:
        left = segment.left(self._offset)
        if left > 0 and not segment.torn(self._offset):
            self._damage(segment, left)
        elif left > 0:
            segment.cut(self._offset)
            self._journal.say(
                logging.WARNING,
                "spool_damaged",
                "%s: cut %d bytes of a record that was not written to its end",
                segment.path,
                left,
            )
        self._segments.popleft()
        if self._segments:
            self._offset = self._segments[0].done
        self.segments_done += 1
        kept = segment.finish()
        if kept is not None:
            self.kept.append(kept)
        self._journal.say(logging.INFO, "replayed", "%s: replayed", segment.path)

    def _damage(self, segment: Segment, size: int) -> None:
        self.damaged_bytes += size
        self._journal.say(
            logging.ERROR,
            "spool_damaged",
            "%s: %d bytes are corrupt and were passed over; the file is kept",
            segment.path,
            size,
        )
