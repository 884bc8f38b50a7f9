"""One segment file, held under its lock from opening to closing."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from countersink.producers.parcel import Parcel
from countersink.producers.spool import descriptors
from countersink.producers.spool.errors import SpoolError
from countersink.producers.spool.reading import Records
from countersink.producers.spool.record import (
    AT_SLOT_OFFSET,
    DAMAGED_FLAG,
    DAMAGED_FLAG_OFFSET,
    DONE_SLOT_OFFSET,
    FILE_HEADER_SIZE,
    SYNCED_MARK_OFFSET,
    Record,
    file_header,
    pack,
    pack_mark,
    pack_slot,
)

DAMAGED_SUFFIX: Final = ".damaged"


class Segment:
    """A segment that this process holds the lock of. Used by one thread at a time.

    Attributes:
        path: the file.
        end: bytes of it that hold records (and the file header).
        done: records before this offset are in Redis.
        damaged: corrupt records were passed over, now or by an earlier replay.
        synced: bytes of it that are known to have been fsynced.
    """

    def __init__(self, path: Path, fd: int, token: object) -> None:
        self.path = path
        self.damaged = False
        self._fd = fd
        self._token = token
        self._records = Records(path, fd)
        self.end = os.fstat(fd).st_size
        self.done = FILE_HEADER_SIZE
        self.synced = 0

    @classmethod
    def create(cls, path: Path) -> "Segment":
        """A new, empty segment.

        Raises:
            SpoolError: it cannot be created.
        """
        try:
            segment = cls._lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise SpoolError(f"{path}: cannot create a segment: {error.strerror}") from error
        if segment is None:
            # Between creating and locking, a replayer took the empty file for a dead process's.
            raise SpoolError(f"{path}: taken by another process")
        try:
            segment._write(0, [file_header()])
            os.fsync(segment._fd)
            _sync_directory(path.parent)
        except OSError as error:
            # A full disk will be met again and again: no file and no descriptor stays of each time.
            try:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # an empty segment: a replay deletes it
            segment.close()
            raise SpoolError(f"{path}: cannot create a segment: {error.strerror}") from error
        segment.end = FILE_HEADER_SIZE
        return segment

    @classmethod
    def adopt(cls, path: Path) -> "Segment | None":
        """The segment at ``path`` if nobody holds it; ``None``: somebody does, or it is gone.

        Raises:
            SpoolError: it cannot be opened or is not a segment.
        """
        segment = None
        try:
            segment = cls._lock(path, os.O_RDWR)
            if segment is None:
                return None
            header = segment._records.file_header(segment.end)
            if header is not None and header.lost:
                # Before a slot is written into what is no header.
                segment._write(0, [file_header(damaged=True)])
        except FileNotFoundError:
            return None
        except OSError as error:
            if segment is not None:
                segment.close()
            raise SpoolError(f"{path}: {error.strerror}") from error
        except SpoolError:
            if segment is not None:
                segment.close()
            raise
        if header is None:
            segment.close()
            raise SpoolError(f"{path} is not a spool segment")
        # A shorter file: its writer died before it had written anything.
        segment.end = max(segment.end, FILE_HEADER_SIZE)
        segment.done, segment.damaged, segment.synced = header.done, header.damaged, header.synced
        return segment

    @classmethod
    def _lock(cls, path: Path, flags: int) -> "Segment | None":
        token = object()
        fd = descriptors.open_file(token, str(path), flags)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held the lock until now may have deleted the file: then this lock is on
            # nothing.
            mine, named = os.fstat(fd), os.stat(path)
            if (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino):
                return cls(path, fd, token)
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            descriptors.close_file(token)
            raise
        descriptors.close_file(token)
        return None

    def append(self, parcels: Sequence[Parcel]) -> None:
        """Write the parcels and wait until the disk has them: all or none.

        Raises:
            SpoolError: none of them is stored.
        """
        offset = self.end
        try:
            for parcel in parcels:
                offset = self._write(offset, pack(parcel))
            os.fsync(self._fd)
        except OSError as error:
            try:
                os.ftruncate(self._fd, self.end)
            except OSError:
                pass  # the next append overwrites it, and a replay cuts it
            raise SpoolError(f"{self.path}: cannot write: {error.strerror}") from error
        self.end = self.synced = offset
        try:
            self._write(SYNCED_MARK_OFFSET, [pack_mark(offset)])
        except OSError:
            pass  # a replay then tells by the bytes alone whether a tail is torn or damaged

    def read(self, offset: int) -> Record | None:
        """The first record at or after ``offset``; ``None``: no more. What lies between is corrupt.

        Raises:
            SpoolError: the file cannot be read, or the damage cannot be noted in it.
        """
        record = self._records.at_or_after(offset, self.end)
        if record is not None and record.offset > offset:
            self._note_damage()
        return record

    def left(self, offset: int) -> int:
        """How many bytes there are, or were once, from ``offset`` on."""
        return max(self.end, self.synced) - offset

    def torn(self, offset: int) -> bool:
        """Whether what is left from ``offset`` on, in which there is no record, was never written
        to its end; else it is corrupt.

        Raises:
            SpoolError: the file cannot be read, or the damage cannot be noted in it.
        """
        if self._records.torn(offset, self.end, self.synced):
            return True
        self._note_damage()
        return False

    def cut(self, offset: int) -> int:
        """Cut a torn tail from ``offset`` on; how many bytes those were.

        Raises:
            SpoolError: the file cannot be written.
        """
        torn, self.end = self.end - offset, offset
        try:
            os.ftruncate(self._fd, offset)
        except OSError as error:
            raise SpoolError(f"{self.path}: cannot cut: {error.strerror}") from error
        return torn

    def stamp(self, records: Sequence[Record], at: int) -> None:
        """Freeze ``at`` in these records, on disk, before they are sent for the first time.

        Raises:
            SpoolError: it is not certain to be on disk; they must not be sent.
        """
        try:
            for record in records:
                self._write(record.offset + AT_SLOT_OFFSET, [pack_slot(at)])
            os.fsync(self._fd)
        except OSError as error:
            raise SpoolError(f"{self.path}: cannot stamp: {error.strerror}") from error
        for record in records:
            record.parcel.at = at

    def mark_done(self, offset: int) -> None:
        """Note how far Redis has it. Not fsynced: what is replayed again is known by its ids.

        Raises:
            SpoolError: the file cannot be written.
        """
        try:
            self._write(DONE_SLOT_OFFSET, [pack_slot(offset)])
        except OSError as error:
            raise SpoolError(f"{self.path}: cannot write: {error.strerror}") from error
        self.done = offset

    def finish(self) -> Path | None:
        """Delete the file, whose records are all in Redis; one with damage is kept under another
        name, which is returned, to be looked at.

        Raises:
            SpoolError: the file cannot be deleted or renamed.
        """
        try:
            if self.damaged:
                return self.path.rename(self.path.with_name(self.path.name + DAMAGED_SUFFIX))
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise SpoolError(f"{self.path}: cannot delete: {error.strerror}") from error
        finally:
            self.close()
        return None

    def close(self) -> None:
        """Give up the lock. Idempotent."""
        descriptors.close_file(self._token)

    def _note_damage(self) -> None:
        try:
            self._write(DAMAGED_FLAG_OFFSET, [DAMAGED_FLAG])
        except OSError as error:
            raise SpoolError(f"{self.path}: cannot write: {error.strerror}") from error
        self.damaged = True

    def _write(self, offset: int, pieces: Sequence[bytes]) -> int:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                written = os.pwrite(self._fd, view, offset)
                offset += written
                view = view[written:]
        return offset


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
