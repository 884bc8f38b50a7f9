"""Where a log's bytes come from: a file, plain or gzip, or a pipe.

Offsets are in uncompressed bytes everywhere.
"""

import gzip
import os
import select
import stat
import zlib
from collections.abc import Callable
from io import BufferedReader, RawIOBase
from types import TracebackType
from typing import Final, Self

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP: Final = 16 + zlib.MAX_WBITS
_PIPE_WAIT: Final = 0.2
"""Seconds until a silent pipe is called idle."""


class LogError(Exception):
    """A log cannot be read; the message says why."""


class LogFile:
    """An open log. Offsets are in uncompressed bytes.

    Attributes:
        path: the name it was opened by.
        device, inode: which file that was.
        compressed: whether it is gzip, told by its first bytes and not by its name.

    Raises:
        LogError: it cannot be opened, or is no regular file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LogError(f"cannot read {path}: {error.strerror}") from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise LogError(f"cannot read {path}: it is not a file")
        self.device, self.inode = status.st_dev, status.st_ino
        self.compressed = self._pread(2, 0) == _GZIP_MAGIC
        self._unpacked: gzip.GzipFile | None = self._unpack() if self.compressed else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; empty at the end.

        Raises:
            LogError: the file cannot be read, or its compression is damaged.
        """
        if self._unpacked is None:
            return self._pread(size, offset)
        try:
            if self._unpacked.tell() != offset:
                self._unpacked.seek(offset)
            if self._unpacked.tell() < offset:
                return b""
            return self._unpacked.read(size)
        except (EOFError, zlib.error, OSError) as error:
            raise LogError(f"{self.path} is damaged or not complete: {error}") from error

    def head(self, size: int) -> bytes:
        """Up to ``size`` of the first bytes, as they are now."""
        if self._unpacked is None:
            return self._pread(size, 0)
        with self._unpack() as again:
            try:
                return again.read(size)
            except (EOFError, zlib.error, OSError) as error:
                raise LogError(f"{self.path} is damaged or not complete: {error}") from error

    def holds(self, offset: int) -> bool:
        """Whether it is at least ``offset`` bytes long."""
        if self._unpacked is None:
            return os.fstat(self._fd).st_size >= offset
        return offset == 0 or len(self.read(1, offset - 1)) == 1

    def changed_at(self) -> float:
        """When it was last written to, in Unix seconds."""
        return os.fstat(self._fd).st_mtime

    def close(self) -> None:
        """Close it; once more does no harm."""
        if self._unpacked is not None:
            self._unpacked.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise LogError(f"cannot read {self.path}: {error.strerror}") from error

    def _unpack(self) -> gzip.GzipFile:
        return gzip.GzipFile(fileobj=BufferedReader(_Bytes(self._fd)))


class _Bytes(RawIOBase):
    """The bytes behind a descriptor, read from their start whatever else reads it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = os.pread(self._fd, len(buffer), self._offset)
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)


class Pipe:
    """A pipe, terminal or socket, plain or gzip, read without getting stuck in it.

    Args:
        fd: what to read from; stays open.
        stopped: asked while nothing comes; when it says True, the pipe counts as ended.
    """

    def __init__(self, fd: int, stopped: Callable[[], bool]) -> None:
        self._fd = fd
        self._stopped = stopped
        head = b""
        while len(head) < 2 and (more := self._wait(2 - len(head))):
            head += more
        self._came = head
        self._compressed = head == _GZIP_MAGIC
        # Not gzip.GzipFile: it waits for the rest of what it was asked for.
        self._member = zlib.decompressobj(_GZIP)
        self._full = False  # the last output filled its size: zlib may hold more of it

    def take(self, size: int) -> bytes | None:
        """Up to ``size`` bytes; None while nothing comes, empty at the end.

        Raises:
            LogError: it cannot be read, or its compression is damaged.
        """
        while True:
            if not self._came and not self._full:
                ready, _, _ = select.select([self._fd], [], [], _PIPE_WAIT)
                if not ready:
                    return None
                self._came = os.read(self._fd, size)
                if not self._came:
                    if self._compressed and not self._member.eof and not self._stopped():
                        raise LogError("the compressed input is damaged or cut off")
                    return b""
            if not self._compressed:
                data, self._came = self._came, b""
                return data
            data = self._unpack(size)
            if data:
                return data

    def _unpack(self, size: int) -> bytes:
        if self._member.eof:  # another member may follow, behind padding
            self._full = False
            self._came = self._came.lstrip(b"\0")
            if not self._came:
                return b""
            self._member = zlib.decompressobj(_GZIP)
        member = self._member
        try:
            data = member.decompress(self._came, size)
        except zlib.error as error:
            raise LogError(f"the compressed input is damaged or cut off: {error}") from error
        self._came = member.unused_data if member.eof else member.unconsumed_tail
        self._full = len(data) == size
        return data

    def _wait(self, size: int) -> bytes:
        while not self._stopped():
            ready, _, _ = select.select([self._fd], [], [], _PIPE_WAIT)
            if ready:
                return os.read(self._fd, size)
        return b""
