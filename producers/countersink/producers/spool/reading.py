"""Reading records from an open segment file, in which some may be corrupt."""

import os
from pathlib import Path
from typing import Final

from countersink.producers.spool.errors import SpoolError
from countersink.producers.spool.record import (
    FILE_HEADER_SIZE,
    FILE_MAGIC,
    MAX_BODY,
    RECORD_HEADER_SIZE,
    RECORD_MAGIC,
    FileHeader,
    Record,
    body_length,
    checks,
    read_file_header,
    unpack,
)

_AT_ONCE: Final = 1 << 20
"""Bytes looked through at once for the record behind a damage."""
_SECTOR: Final = 512
"""Bytes that a disk writes all or none of; those of a file that it did not come to are zeros."""


class Records:
    """The records of a file, which it neither locks nor writes.

    Args:
        path: for messages.
        fd: the open file.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def file_header(self, size: int) -> FileHeader | None:
        """The header of the file, which has ``size`` bytes; ``None``: it is no segment of ours, or
        of a newer version. One that is damaged is known by the records behind it.

        Raises:
            SpoolError: the file cannot be read.
        """
        start = self._read(0, FILE_HEADER_SIZE)
        header = read_file_header(start, size)
        if header is not None or start.startswith(FILE_MAGIC[:-1]):
            return header
        if self.at_or_after(FILE_HEADER_SIZE, size) is None:
            return None
        return FileHeader(FILE_HEADER_SIZE, damaged=True, lost=True)

    def at_or_after(self, offset: int, end: int) -> Record | None:
        """The first record at or after ``offset`` and before ``end``; ``None``: no more. What lies
        between is corrupt, or was not written to its end.

        Raises:
            SpoolError: the file cannot be read.
        """
        record = self._at(offset, end)
        while record is None:
            found = self._magic_after(offset, end)
            if found is None:
                return None
            offset = found
            record = self._at(offset, end)
        return record

    def torn(self, offset: int, end: int, synced: int) -> bool:
        """Whether the rest of the file, from ``offset`` to ``end``, in which there is no record, is
        one that was not written to its end. Else it was whole once, and is damaged now.

        Args:
            synced: bytes of the file that are known to have been fsynced: those were whole.

        Raises:
            SpoolError: the file cannot be read.
        """
        if offset < synced:
            return False
        tail = self._read(offset, min(end - offset, RECORD_HEADER_SIZE + MAX_BODY))
        border = -offset % _SECTOR
        sectors = (tail[at : at + _SECTOR] for at in range(border, len(tail), _SECTOR))
        if any(not any(part) for part in (tail[:border], *sectors) if part):
            return True  # the size was on disk, and the content not yet: JSON holds no zeros
        header, body = tail[:RECORD_HEADER_SIZE], tail[RECORD_HEADER_SIZE:]
        if len(header) < RECORD_HEADER_SIZE:
            return RECORD_MAGIC.startswith(header[: len(RECORD_MAGIC)])
        length = body_length(header)
        if length is None or length <= len(body) or RECORD_MAGIC in body:
            return False
        return not checks(header, body)  # else only its length is damaged

    def _magic_after(self, offset: int, end: int) -> int | None:
        """Where the next record may begin."""
        offset += 1
        while offset < end:
            # The next piece begins within this one, for the sake of a magic across their border.
            piece = self._read(offset, min(_AT_ONCE + len(RECORD_MAGIC) - 1, end - offset))
            found = piece.find(RECORD_MAGIC)
            if found >= 0:
                return offset + found
            offset += _AT_ONCE
        return None

    def _at(self, offset: int, end: int) -> Record | None:
        header = self._read(offset, RECORD_HEADER_SIZE)
        length = body_length(header)
        if length is None or offset + RECORD_HEADER_SIZE + length > end:
            return None
        return unpack(offset, header, self._read(offset + RECORD_HEADER_SIZE, length))

    def _read(self, offset: int, size: int) -> bytes:
        try:
            raw = os.pread(self._fd, size, offset)
            while len(raw) < size:
                more = os.pread(self._fd, size - len(raw), offset + len(raw))
                if not more:
                    break
                raw += more
        except OSError as error:
            raise SpoolError(f"{self._path}: cannot read: {error.strerror}") from error
        return raw
