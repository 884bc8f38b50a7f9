"""The binary format of a spool file: header, records, checksums, how corrupt or torn records are
told, and the largest record (``MAX_BODY``).

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

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from countersink.producers.errors import SpoolError
from countersink.producers.outbox import Parcel

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
