"""Reading a log file or pipe, plain or gzip: recognizes compressions and UTF-16/32 by the first
bytes, and holds the errors about files that cannot be read and how to convert them.

Offsets are in uncompressed bytes everywhere.
"""

import gzip
import os
import re
import select
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from countersink.producers.errors import LogError

BOM: Final = b"\xef\xbb\xbf"
"""The mark that some programs put before UTF-8."""
LOOKED_AT: Final = 256
"""First bytes that tell all there is to tell."""

_MARKS: Final = {
    # Those of UTF-32 first: one of them begins as one of UTF-16 does.
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_WIDE: Final = {
    # How many bytes a character has, and which of them ASCII leaves 0.
    "UTF-32LE": (4, (1, 2, 3), 0),
    "UTF-32BE": (4, (0, 1, 2), 3),
    "UTF-16LE": (2, (1,), 0),
    "UTF-16BE": (2, (0,), 1),
}
_SHORTEST: Final = 8

_GZIP: Final = 16 + zlib.MAX_WBITS
_SNIFFED: Final = 8
"""First bytes of a pipe that are waited for; a line of a log is longer."""
_PIPE_WAIT: Final = 0.2
"""Seconds until a silent pipe is called idle."""


def _is_gzip(head: bytes, name: str) -> bool:
    """Whether a log that begins so is gzip; otherwise it is plain.

    Raises:
        LogError: it is neither.
    """
    packed = packing(head)
    if packed is not None and packed.name != "gzip":
        raise LogError(
            f"{name} is compressed by {packed.name}, which is not read here:"
            f" {packed.tool} FILE | countersink tail -"
        )
    if packed is None and (reason := wide_text(head, name, "tail")):
        raise LogError(reason)
    return packed is not None


class LogFile:
    """An open log. Offsets are in uncompressed bytes.

    Attributes:
        path: the name it was opened by.
        device, inode: which file that was.
        compressed: whether it is gzip, told by its first bytes and not by its name.

    Raises:
        LogError: it cannot be opened, is no regular file, or is compressed or encoded in a way that
            is not read.
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
        try:
            self.compressed = _is_gzip(self._pread(LOOKED_AT, 0), path)
        except LogError:
            os.close(self._fd)
            raise
        self._unpacked: gzip.GzipFile | None = None
        if self.compressed:
            # It moves the descriptor's offset, which pread does not use.
            self._unpacked = gzip.GzipFile(fileobj=os.fdopen(self._fd, "rb", closefd=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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

    def holds(self, offset: int) -> bool:
        """Whether it is at least ``offset`` bytes long."""
        if self._unpacked is None:
            return os.fstat(self._fd).st_size >= offset
        return offset == 0 or len(self.read(1, offset - 1)) == 1

    def changed_ns(self) -> int:
        """When it was last written to, in Unix nanoseconds."""
        return os.fstat(self._fd).st_mtime_ns

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


class Pipe:
    """A pipe, terminal or socket, plain or gzip, read without getting stuck in it.

    Args:
        fd: what to read from; stays open.
        stopped: asked while nothing comes; when it says True, the pipe counts as ended.

    Raises:
        LogError: it is compressed or encoded in a way that is not read.
    """

    def __init__(self, fd: int, stopped: Callable[[], bool]) -> None:
        self._fd = fd
        self._stopped = stopped
        head = b""
        while len(head) < _SNIFFED and (more := self._wait(_SNIFFED - len(head))):
            head += more
        self._came = head
        self._compressed = _is_gzip(head, "it")
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


@dataclass(frozen=True, slots=True)
class Packing:
    """A compression: its name, the program that unpacks it, and the first bytes by which it is
    known.

    Attributes:
        name: for people.
        tool: the command that unpacks it to its standard output.
        magic: what it begins with.
    """

    name: str
    tool: str
    magic: re.Pattern[bytes]


PACKINGS: Final = tuple(
    Packing(name, tool, re.compile(magic, re.DOTALL))
    for name, tool, magic in (
        ("gzip", "zcat", rb"\x1f\x8b\x08"),
        ("bzip2", "bzcat", rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
        ("zstd", "zstdcat", rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        ("xz", "xzcat", rb"\xfd7zXZ\0"),
        ("compress", "zcat", rb"\x1f\x9d"),
        ("lz4", "lz4cat", rb"\x04\x22\x4d\x18"),
        ("zip", "unzip -p", rb"PK\x03\x04"),
        ("7z", "7z e -so", rb"7z\xbc\xaf\x27\x1c"),
    )
)


def packing(first: bytes) -> Packing | None:
    """How what begins with ``first``, 16 bytes or all there is, is compressed; None: it is not."""
    return next((one for one in PACKINGS if one.magic.match(first)), None)


def wide_text(head: bytes, name: str, command: str) -> str:
    """Why ``name``, which begins so, cannot be read, and how to convert it for ``command``: it is
    text in UTF-16 or UTF-32. Empty: it is not.
    """
    encoding = _wide_encoding(head)
    if encoding is None:
        return ""
    return (
        f"{name} is {encoding}; convert it first: iconv -f {encoding} -t UTF-8 FILE |"
        f" countersink {command} -"
    )


def _wide_encoding(head: bytes) -> str | None:
    """The encoding of text with characters of more than a byte, by its mark or by its zeros."""
    for mark, encoding in _MARKS.items():
        # Two odd bytes alone may be anything.
        if head.startswith(mark) and b"\0" in head[2:LOOKED_AT]:
            return encoding
    if len(head) < _SHORTEST:
        return None
    start = head[: min(LOOKED_AT, len(head)) // 4 * 4]
    for encoding, (width, zeros, letters) in _WIDE.items():
        # Most are ASCII, and none is NUL, as they are where a log was cut off under its writer.
        if b"\0" not in start[letters::width] and all(
            4 * start[place::width].count(0) >= 3 * len(start[place::width]) for place in zeros
        ):
            return encoding
    return None
