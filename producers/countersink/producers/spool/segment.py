"""One spool file: lock, append with fsync, stamping, progress, deleting or keeping it as
``.damaged``. The binary format of a spool file: header, records, checksums, how corrupt or torn
records are told, and the largest record (``MAX_BODY``).

::

    file    = magic "csspool1" (8 bytes), slot: bytes of the file that are done,
              12 bytes reserved; then records
    record  = magic (4 bytes), length of the body (u32), CRC-32 of length and body (u32),
              slot: at; then the body
    body    = entry id (16 bytes), row count (u32), increments (u64), rows: the entry's JSON
    slot    = value (i64), CRC-32 of the value (u32); anything else, such as zeros: not set

All little-endian. Records are only ever appended. The two kinds of slots are overwritten in place
instead of recording their changes at the end, because a replay has to stamp ``at`` before it sends,
and must be able to on a full disk: it is what will empty it. A slot torn by a crash is not set,
which is right: what depends on it had not begun.

The record behind a corrupt one is found by the length in the header of the corrupt one. Where that
header is corrupt as well, the segment ends there, and its file is kept.
"""

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from countersink.producers.errors import SpoolError
from countersink.producers.outbox import Parcel
from countersink.producers.threads import RLock

FILE_MAGIC: Final = b"csspool1"
DONE_SLOT_OFFSET: Final = len(FILE_MAGIC)
FILE_HEADER_SIZE: Final = 32

RECORD_MAGIC: Final = b"\xc5\x0a\x5d\x91"
_HEAD: Final = struct.Struct("<4sII")
_SLOT: Final = struct.Struct("<qI")
_BODY: Final = struct.Struct("<16sIQ")
AT_SLOT_OFFSET: Final = _HEAD.size
RECORD_HEADER_SIZE: Final = _HEAD.size + _SLOT.size
MAX_BODY: Final = 1 << 26
"""Bytes; far above 1,000 rows of the longest names, so that a corrupt length is known as such."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read: where it is in the file, and its parcel."""

    offset: int
    end: int
    parcel: Parcel


def pack_slot(value: int) -> bytes:
    """A slot that is set."""
    return _SLOT.pack(value, crc32(_SLOT.pack(value, 0)))


def unpack_slot(raw: bytes) -> int | None:
    """A slot's value; ``None``: not set."""
    value, check = _SLOT.unpack(raw)
    return int(value) if check == crc32(_SLOT.pack(value, 0)) else None


def file_header() -> bytes:
    """The beginning of a new segment."""
    return FILE_MAGIC.ljust(FILE_HEADER_SIZE, b"\0")


def pack(parcel: Parcel) -> list[bytes]:
    """The record of a parcel, in pieces to be written one after the other."""
    start = _BODY.pack(bytes.fromhex(parcel.id), parcel.row_count, parcel.increments)
    length = len(start) + len(parcel.rows)
    check = crc32(parcel.rows, crc32(start, crc32(length.to_bytes(4, "little"))))
    slot = bytes(_SLOT.size) if parcel.at is None else pack_slot(parcel.at)
    return [_HEAD.pack(RECORD_MAGIC, length, check) + slot + start, parcel.rows]


def body_length(header: bytes) -> int | None:
    """How many bytes of body follow this record header; ``None``: it is not one."""
    if len(header) < RECORD_HEADER_SIZE:
        return None
    magic, length, _ = _HEAD.unpack_from(header)
    if magic != RECORD_MAGIC or not _BODY.size <= length <= MAX_BODY:
        return None
    return int(length)


def checks(header: bytes, body: bytes) -> bool:
    """Whether the checksum in ``header`` is that of ``body``, whatever length the header names."""
    length = len(body).to_bytes(4, "little")
    return bool(_HEAD.unpack_from(header)[2] == crc32(body, crc32(length)))


def unpack(offset: int, header: bytes, body: bytes) -> Record | None:
    """The record at ``offset``; ``None``: its checksum is wrong or its body is cut short."""
    if not checks(header, body):
        return None
    id, row_count, increments = _BODY.unpack_from(body)
    at = unpack_slot(header[AT_SLOT_OFFSET:RECORD_HEADER_SIZE])
    parcel = Parcel(id.hex(), body[_BODY.size :], row_count, increments, at=at)
    return Record(offset, offset + RECORD_HEADER_SIZE + len(body), parcel)


class Records:
    """The records of a file, which it neither locks nor writes.

    Args:
        path: for messages.
        fd: the open file.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def bytes_done(self, size: int) -> int | None:
        """How many bytes of the file, which has ``size``, are done, its header included; ``None``:
        it is no segment of ours, or of a newer version.

        Raises:
            SpoolError: the file cannot be read.
        """
        start = self._read(0, FILE_HEADER_SIZE)
        if size <= FILE_HEADER_SIZE and (not any(start) or file_header().startswith(start)):
            return FILE_HEADER_SIZE  # its writer died before all of it was on disk
        if len(start) < FILE_HEADER_SIZE or not start.startswith(FILE_MAGIC):
            return None
        done = unpack_slot(start[DONE_SLOT_OFFSET : DONE_SLOT_OFFSET + _SLOT.size])
        if done is None or not FILE_HEADER_SIZE <= done <= size:
            done = FILE_HEADER_SIZE
        return done

    def at_or_after(self, offset: int, end: int) -> Record | None:
        """The first whole record at or after ``offset`` and before ``end``; ``None``: no more, or
        none that is found by the lengths of the corrupt ones before it.

        Raises:
            SpoolError: the file cannot be read.
        """
        while True:
            header = self._read(offset, RECORD_HEADER_SIZE)
            length = body_length(header)
            if length is None or offset + RECORD_HEADER_SIZE + length > end:
                return None
            record = unpack(offset, header, self._read(offset + RECORD_HEADER_SIZE, length))
            if record is not None:
                return record
            offset += RECORD_HEADER_SIZE + length

    def torn(self, offset: int, end: int) -> bool:
        """Whether the rest of the file, from ``offset`` to ``end``, in which there is no whole
        record, is one that was not written to its end. Else it was whole once, and is damaged now.

        Raises:
            SpoolError: the file cannot be read.
        """
        rest = self._read(offset, end - offset)
        if len(rest) < RECORD_HEADER_SIZE or not rest.strip(b"\0"):
            return True
        length = body_length(rest)
        if length is None or RECORD_HEADER_SIZE + length <= len(rest):
            return False
        # Else its length alone is damaged, and maybe others follow.
        return RECORD_MAGIC not in rest[1:] and not checks(rest, rest[RECORD_HEADER_SIZE:])

    def _read(self, offset: int, size: int) -> bytes:
        with failing_as(f"{self._path}: cannot read"):
            raw = os.pread(self._fd, size, offset)
            while len(raw) < size:
                more = os.pread(self._fd, size - len(raw), offset + len(raw))
                if not more:
                    break
                raw += more
        return raw


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turn an OSError into a SpoolError that begins with ``what``."""
    try:
        yield
    except OSError as error:
        raise SpoolError(f"{what}: {error.strerror}") from error


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
