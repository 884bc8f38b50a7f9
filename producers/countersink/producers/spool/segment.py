"""A file of the spool (``Segment``): lock, append with fsync, times of entries, progress, deletion
or renaming to ``.damaged``; and its binary format (``Records``)::

    file    = magic "csspool1" (8 bytes), checked: number of bytes that need no replay,
              12 bytes reserved; then records
    record  = magic (4 bytes), length of the body (u32), CRC-32 of length and body (u32),
              checked: at; then the body
    body    = entry id (16 bytes), row count (u32), increments (u64), rows: the entry's JSON
    checked = number (i64), CRC-32 of the number (u32); anything else, such as zeros: not set

``at`` is the Unix time in ms at which the entry was first sent. All numbers are little-endian.
Records are only appended. Checked numbers are overwritten in place. This also works on a full disk,
where a replay has to write ``at`` before it sends an entry. If a crash interrupts this write,
``at`` is not set. The entry was not sent then: the fsync comes first.

After a record with a corrupt body, its length leads to the next record. After a record with a
corrupt header, no further record is found.
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

DAMAGED_SUFFIX: Final = ".damaged"
FILE_MAGIC: Final = b"csspool1"
DONE_OFFSET: Final = len(FILE_MAGIC)
FILE_HEADER_SIZE: Final = 32

RECORD_MAGIC: Final = b"\xc5\x0a\x5d\x91"
_HEAD: Final = struct.Struct("<4sII")
_CHECKED: Final = struct.Struct("<qI")
_BODY: Final = struct.Struct("<16sIQ")
AT_OFFSET: Final = _HEAD.size
RECORD_HEADER_SIZE: Final = _HEAD.size + _CHECKED.size
MAX_BODY: Final = 1 << 26
"""Maximum of bytes in a body, far above 1,000 rows of the longest names. A longer one is corrupt.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """A record in a segment: offset of its first byte, offset after its last byte, its parcel."""

    offset: int
    end: int
    parcel: Parcel


def pack_checked(value: int) -> bytes:
    """Return the bytes of a checked number: ``value`` with its CRC-32."""
    return _CHECKED.pack(value, crc32(_CHECKED.pack(value, 0)))


def unpack_checked(raw: bytes) -> int | None:
    """Return the value of a checked number; ``None`` where the CRC-32 shows that it is not set."""
    value, check = _CHECKED.unpack(raw)
    return int(value) if check == crc32(_CHECKED.pack(value, 0)) else None


def file_header() -> bytes:
    """Return the first 32 bytes of a new segment."""
    return FILE_MAGIC.ljust(FILE_HEADER_SIZE, b"\0")


def pack(parcel: Parcel) -> list[bytes]:
    """Return the bytes of a parcel's record, in pieces to be written in this order."""
    start = _BODY.pack(bytes.fromhex(parcel.id), parcel.row_count, parcel.increments)
    length = len(start) + len(parcel.rows)
    check = crc32(parcel.rows, crc32(start, crc32(length.to_bytes(4, "little"))))
    at = bytes(_CHECKED.size) if parcel.at is None else pack_checked(parcel.at)
    return [_HEAD.pack(RECORD_MAGIC, length, check) + at + start, parcel.rows]


def body_length(header: bytes) -> int | None:
    """Return the number of bytes in the body after a record's ``header``; ``None`` if ``header`` is
    too short, does not begin with the magic, or has an impossible length."""
    if len(header) < RECORD_HEADER_SIZE:
        return None
    magic, length, _ = _HEAD.unpack_from(header)
    if magic != RECORD_MAGIC or not _BODY.size <= length <= MAX_BODY:
        return None
    return int(length)


def checksum_fits(header: bytes, body: bytes) -> bool:
    """Whether the checksum in ``header`` fits ``body`` and the length of ``body``. The length that
    ``header`` states is not used."""
    length = len(body).to_bytes(4, "little")
    return bool(_HEAD.unpack_from(header)[2] == crc32(body, crc32(length)))


def unpack(offset: int, header: bytes, body: bytes) -> Record | None:
    """Return the record at ``offset``; ``None`` if its checksum is wrong or its body incomplete."""
    if not checksum_fits(header, body):
        return None
    id, row_count, increments = _BODY.unpack_from(body)
    at = unpack_checked(header[AT_OFFSET:RECORD_HEADER_SIZE])
    parcel = Parcel(id.hex(), body[_BODY.size :], row_count, increments, at=at)
    return Record(offset, offset + RECORD_HEADER_SIZE + len(body), parcel)


class Records:
    """A reader of the records in a segment. It neither locks nor writes the file.

    Args:
        path: the file's path, for error messages.
        fd: descriptor of the open file.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def bytes_done(self, size: int) -> int | None:
        """Return how many bytes at the beginning of the file, which has ``size`` bytes, need no
        replay: the file header's 32 (even if the file is shorter, because its writer died) and the
        records noted to be in Redis. Return ``None`` if it is no segment, or of a newer format.

        Raises:
            SpoolError: the file cannot be read."""
        start = self._read(0, FILE_HEADER_SIZE)
        if size <= FILE_HEADER_SIZE and (not any(start) or file_header().startswith(start)):
            return FILE_HEADER_SIZE  # its writer died before the header was on disk
        if len(start) < FILE_HEADER_SIZE or not start.startswith(FILE_MAGIC):
            return None
        done = unpack_checked(start[DONE_OFFSET : DONE_OFFSET + _CHECKED.size])
        if done is None or not FILE_HEADER_SIZE <= done <= size:
            done = FILE_HEADER_SIZE
        return done

    def at_or_after(self, offset: int, end: int) -> Record | None:
        """Return the first intact record between the offsets ``offset`` and ``end``. ``offset`` is
        where a record begins. Records with a corrupt body are skipped. Return ``None`` if no intact
        record is found, or if a corrupt header comes first.

        Raises:
            SpoolError: the file cannot be read."""
        while True:
            header = self._read(offset, RECORD_HEADER_SIZE)
            length = body_length(header)
            if length is None or offset + RECORD_HEADER_SIZE + length > end:
                return None
            record = unpack(offset, header, self._read(offset + RECORD_HEADER_SIZE, length))
            if record is not None:
                return record
            offset += RECORD_HEADER_SIZE + length

    def is_torn(self, offset: int, end: int) -> bool:
        """Return True if the rest of the file, from ``offset`` to ``end``, is the beginning of a
        record that was never written to its end (no stored entry is lost), or zeros; False if it is
        damaged.

        Raises:
            SpoolError: the file cannot be read."""
        rest = self._read(offset, end - offset)
        if len(rest) < RECORD_HEADER_SIZE or not rest.strip(b"\0"):
            return True
        length = body_length(rest)
        if length is None or RECORD_HEADER_SIZE + length <= len(rest):
            return False
        # Else only its length is damaged, and other records may follow.
        return RECORD_MAGIC not in rest[1:] and not checksum_fits(rest, rest[RECORD_HEADER_SIZE:])

    def _read(self, offset: int, size: int) -> bytes:
        with spool_errors(f"{self._path}: cannot read"):
            raw = os.pread(self._fd, size, offset)
            while len(raw) < size:
                more = os.pread(self._fd, size - len(raw), offset + len(raw))
                if not more:
                    break
                raw += more
        return raw


@contextmanager
def spool_errors(prefix: str) -> Iterator[None]:
    """Turn an OSError of the ``with`` block into a SpoolError, with ``prefix`` in its message."""
    try:
        yield
    except OSError as error:
        raise SpoolError(f"{prefix}: {error.strerror}") from error


class Segment:
    """A segment that this process has locked. Only one thread at a time may use it.

    Attributes:
        path: the file's path.
        end: offset of the file's end, where :meth:`append` writes.
        offset: offset from which a replay reads the next record; the replay advances it.
        records: the reader of its records.
        damaged: whether corrupt records were skipped.
    """

    def __init__(self, path: Path, file: "UnsharedFile") -> None:
        self.path = path
        self.damaged = False
        self._file = file
        self._fd = file.fd
        self.records = Records(path, file.fd)
        self.end = os.fstat(file.fd).st_size
        self.offset = FILE_HEADER_SIZE

    @classmethod
    def create(cls, path: Path) -> "Segment":
        """Create a new, empty segment and lock it.

        Raises:
            SpoolError: the file cannot be created, or another process locked it first."""
        with spool_errors(f"{path}: cannot create a segment"):
            segment = cls._lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            if segment is None:
                # Before it was locked, a replay took the empty file for a dead process's segment.
                raise SpoolError(f"{path}: another process has locked the new segment")
            try:
                segment._write(0, [file_header()])
                os.fsync(segment._fd)
                _sync_directory(path.parent)
            except OSError:
                # The disk may stay full for long: no attempt leaves a file or a descriptor open.
                with suppress(OSError):  # a replay deletes empty segments
                    path.unlink(missing_ok=True)
                segment.close()
                raise
        segment.end = FILE_HEADER_SIZE
        return segment

    @classmethod
    def adopt(cls, path: Path) -> "Segment | None":
        """Lock the segment at ``path`` and return it, for a replay; ``None`` if the lock is held
        (even by this process), or the file does not exist.

        Raises:
            SpoolError: the file cannot be opened or read, or is no segment of this format.
        """
        with spool_errors(str(path)):
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
        # The file is shorter if its writer died before the header was complete.
        segment.end = max(segment.end, FILE_HEADER_SIZE)
        segment.offset = done
        return segment

    @classmethod
    def _lock(cls, path: Path, flags: int) -> "Segment | None":
        file = UnsharedFile(path, flags)
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder of the lock before may have deleted the file.
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
        """Write parcels at the end of the file and fsync them: all of them or none.

        Raises:
            SpoolError: writing failed; no parcel is stored."""
        offset = self.end
        with spool_errors(f"{self.path}: cannot write"):
            try:
                for parcel in parcels:
                    offset = self._write(offset, pack(parcel))
                os.fsync(self._fd)
            except OSError:
                with suppress(OSError):  # the next append overwrites it; a replay finds it torn
                    os.ftruncate(self._fd, self.end)
                raise
        self.end = offset

    def stamp(self, records: Sequence[Record], at: int) -> None:
        """Write the time ``at`` (Unix ms) into records and their parcels and fsync the file, before
        they are sent for the first time.

        Raises:
            SpoolError: the time may not be on disk; the records must not be sent."""
        with spool_errors(f"{self.path}: cannot stamp"):
            for record in records:
                self._write(record.offset + AT_OFFSET, [pack_checked(at)])
            os.fsync(self._fd)
        for record in records:
            record.parcel.at = at

    def mark_done(self, offset: int) -> None:
        """Write into the file that the records before ``offset`` are in Redis, without fsync: if
        this is lost, records are sent again with the same ids. Do nothing if the file is damaged,
        so that the next replay finds the damage, too.

        Raises:
            SpoolError: the file cannot be written."""
        if self.damaged:
            return
        with spool_errors(f"{self.path}: cannot write"):
            self._write(DONE_OFFSET, [pack_checked(offset)])

    def finish(self) -> Path | None:
        """Delete the file, after all its records were sent to Redis. A damaged file is renamed to
        ``….damaged`` instead; its new path is returned, otherwise None. The lock is released.

        Raises:
            SpoolError: the file cannot be deleted or renamed."""
        with closing(self), spool_errors(f"{self.path}: cannot delete"):
            if self.damaged:
                return self.path.rename(self.path.with_name(self.path.name + DAMAGED_SUFFIX))
            self.path.unlink(missing_ok=True)
        return None

    def close(self) -> None:
        """Release the lock and close the file. Idempotent."""
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


class UnsharedFile:
    """An open file that is closed in each forked child, immediately after the fork.

    A ``flock`` belongs to the open file, which children share. If children kept the file open, the
    lock of a dead parent would last until they end, and no process could replay the segment. ``fd``
    is the file's descriptor, ``flags`` are those of ``os.open``.

    Raises:
        OSError: the file cannot be opened."""

    def __init__(self, path: Path, flags: int) -> None:
        with _fork_lock:
            self.fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
            _open.add(self)

    def close(self) -> None:
        """Close the file. Does nothing if it is closed already (as in a forked child)."""
        with _fork_lock:
            if self in _open:
                _open.remove(self)
                os.close(self.fd)  # inside the lock: else a fork in between would leave it open


_fork_lock = RLock()  # held during a fork, so that all open files are in `_open` then
_open: Final[set[UnsharedFile]] = set()


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
