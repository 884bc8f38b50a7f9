"""One spool file: lock, append with fsync, stamping, progress, deleting or keeping it as
``.damaged``."""

import fcntl
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from countersink.producers.errors import SpoolError
from countersink.producers.outbox import Parcel
from countersink.producers.spool.record import (
    AT_SLOT_OFFSET,
    DONE_SLOT_OFFSET,
    FILE_HEADER_SIZE,
    Record,
    Records,
    failing_as,
    file_header,
    pack,
    pack_slot,
)
from countersink.producers.threads import RLock

DAMAGED_SUFFIX: Final = ".damaged"


class Segment:
    """A segment that this process holds the lock of. Used by one thread at a time.

    Attributes:
        path: the file.
        end: bytes of it that hold records (and the file header).
        offset: records before it were read.
        records: what reads it.
        damaged: corrupt records were passed over.
    """

    def __init__(self, path: Path, file: "OwnFile") -> None:
        self.path = path
        self.damaged = False
        self._file = file
        self._fd = file.fd
        self.records = Records(path, file.fd)
        self.end = os.fstat(file.fd).st_size
        self.offset = FILE_HEADER_SIZE

    @classmethod
    def create(cls, path: Path) -> "Segment":
        """A new, empty segment.

        Raises:
            SpoolError: it cannot be created.
        """
        with failing_as(f"{path}: cannot create a segment"):
            segment = cls._lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            if segment is None:
                # Between creating and locking, a replayer took the empty file for a dead process's.
                raise SpoolError(f"{path}: taken by another process")
            try:
                segment._write(0, [file_header()])
                os.fsync(segment._fd)
                _sync_directory(path.parent)
            except OSError:
                # A full disk will be met again and again: no file and no descriptor stays of each
                # time.
                with suppress(OSError):  # an empty segment: a replay deletes it
                    path.unlink(missing_ok=True)
                segment.close()
                raise
        segment.end = FILE_HEADER_SIZE
        return segment

    @classmethod
    def adopt(cls, path: Path) -> "Segment | None":
        """The segment at ``path`` if nobody holds it; ``None``: somebody does, or it is gone.

        Raises:
            SpoolError: it cannot be opened or is not a segment.
        """
        with failing_as(str(path)):
            try:
                segment = cls._lock(path, os.O_RDWR)
            except FileNotFoundError:
                return None
            if segment is None:
                return None
            try:
                done = segment.records.bytes_done(segment.end)
                if done is None:
                    raise SpoolError(f"{path} is not a spool segment")
            except BaseException:
                segment.close()
                raise
        # A shorter file: its writer died before it had written anything.
        segment.end = max(segment.end, FILE_HEADER_SIZE)
        segment.offset = done
        return segment

    @classmethod
    def _lock(cls, path: Path, flags: int) -> "Segment | None":
        file = OwnFile(path, flags)
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held the lock until now may have deleted the file: then this lock is on
            # nothing.
            if os.path.samestat(os.fstat(file.fd), os.stat(path)):
                return cls(path, file)
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            file.close()
            raise
        file.close()
        return None

    def append(self, parcels: Sequence[Parcel]) -> None:
        """Write the parcels and wait until the disk has them: all or none.

        Raises:
            SpoolError: none of them is stored.
        """
        offset = self.end
        with failing_as(f"{self.path}: cannot write"):
            try:
                for parcel in parcels:
                    offset = self._write(offset, pack(parcel))
                os.fsync(self._fd)
            except OSError:
                with suppress(OSError):  # the next append overwrites it, and a replay cuts it
                    os.ftruncate(self._fd, self.end)
                raise
        self.end = offset

    def stamp(self, records: Sequence[Record], at: int) -> None:
        """Freeze ``at`` in these records, on disk, before they are sent for the first time.

        Raises:
            SpoolError: it is not certain to be on disk; they must not be sent.
        """
        with failing_as(f"{self.path}: cannot stamp"):
            for record in records:
                self._write(record.offset + AT_SLOT_OFFSET, [pack_slot(at)])
            os.fsync(self._fd)
        for record in records:
            record.parcel.at = at

    def mark_done(self, offset: int) -> None:
        """Note how far Redis has it, but not beyond damage, which the next replay is to see as
        well. Not fsynced: what is replayed again is known by its ids.

        Raises:
            SpoolError: the file cannot be written.
        """
        if self.damaged:
            return
        with failing_as(f"{self.path}: cannot write"):
            self._write(DONE_SLOT_OFFSET, [pack_slot(offset)])

    def finish(self) -> Path | None:
        """Delete the file, whose records are all in Redis; one with damage is kept under another
        name, which is returned, to be looked at.

        Raises:
            SpoolError: the file cannot be deleted or renamed.
        """
        with closing(self), failing_as(f"{self.path}: cannot delete"):
            if self.damaged:
                return self.path.rename(self.path.with_name(self.path.name + DAMAGED_SUFFIX))
            self.path.unlink(missing_ok=True)
        return None

    def close(self) -> None:
        """Give up the lock. Idempotent."""
        self._file.close()

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


class OwnFile:
    """A file that is open in this process alone, and never in a forked child.

    A ``flock`` belongs to the open file, which a child shares: as long as a child keeps it open,
    the lock of a dead parent would go on, and nobody could replay its segment.

    Raises:
        OSError: from ``open(2)``.
    """

    def __init__(self, path: Path, flags: int) -> None:
        with _fork_lock:
            self.fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
            _open.add(self)

    def close(self) -> None:
        """Close it, unless this is a child, which has closed it."""
        with _fork_lock:
            if self in _open:
                _open.remove(self)
                os.close(self.fd)  # inside the lock: a fork in between would leave it open there


_fork_lock = RLock()  # held over a fork, so that no file is open and not yet noted here
_open: Final[set[OwnFile]] = set()


def _in_child() -> None:
    global _fork_lock
    _fork_lock = RLock()
    for file in _open:
        os.close(file.fd)
    _open.clear()


def _before_fork() -> None:
    _fork_lock.acquire()


def _in_parent() -> None:
    _fork_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
