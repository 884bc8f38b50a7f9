"""Reading a log file, plain or compressed, or a pipe, plain or gzip: recognizes compressions
(``PACKINGS``) and UTF-16/32 by the first bytes, unpacks block by block, and holds the errors about
files that cannot be read.

Offsets are in uncompressed bytes everywhere. gzip, bzip2, zstd and xz may be several streams one
after the other (``cat a.gz b.gz``); gzip's may be padded with zeros. Memory stays flat whatever
they unpack to. Formats: RFC 1952, RFC 8878; those of bzip2 and xz are written by their libraries.
"""

import bz2
import lzma
import os
import re
import select
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from countersink.producers.errors import Damaged, LogError

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


EXTENSIONS: Final = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".Z", ".zip", ".7z")
"""Ends of the names of compressed files."""


def check_begun(first: bytes, name: str) -> None:
    """Refuse a file of 0 bytes whose name is a compressed file's: such a file is never empty.

    Raises:
        LogError: it is one.
    """
    if not first and name.endswith(EXTENSIONS):
        raise LogError(
            f"{name} is damaged or not complete: it has 0 bytes. Put a whole copy in its place,"
            " or move it away"
        )


BLOCK: Final = 256 * 1024
"""Uncompressed bytes that are handed out at once, about."""
SNIFF: Final = 16
"""First bytes of a file that tell how it is compressed."""

_XZ_BYTES: Final = 256 * 1024 * 1024
"""Memory that an xz file may ask for; ``xz -9`` asks for 65 MiB."""
_SLICE: Final = 256
"""Compressed bytes given to zstd at once: it has no limit on what it makes of them (of the most
hostile, 8 MiB)."""


class _Gzip:
    """One stream, read as by :class:`bz2.BZ2Decompressor`: ``decompress`` wants b"" until
    ``needs_input``; after ``eof``, ``unused_data`` is what came after the stream.
    """

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        found = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        self.needs_input = not self._inflate.unconsumed_tail and len(found) < max_length
        return found


class _Zstd:
    """The same of a frame of zstd."""

    def __init__(self) -> None:
        # Not of the base install, whose applications read no logs.
        import zstandard  # noqa: PLC0415 (few read .zst)

        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._error = zstandard.ZstdError
        self._waiting = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + self._waiting

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._waiting = memoryview(data)
        parts: list[bytes] = []
        missing = max_length
        while missing > 0 and self._waiting and not self._frame.eof:
            try:
                part = self._frame.decompress(self._waiting[:_SLICE])
            except self._error as error:
                raise ValueError(str(error)) from error
            self._waiting = self._waiting[_SLICE:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


_Decoder = _Gzip | _Zstd | bz2.BZ2Decompressor | lzma.LZMADecompressor
_DECODERS: Final[Mapping[str, Callable[[], _Decoder]]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "zstd": _Zstd,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_XZ_BYTES),
}


def is_read(packed: Packing) -> bool:
    """Whether it can be unpacked here."""
    return packed.name in _DECODERS


class Unpacker:
    """The uncompressed bytes of what ``read`` gives, block by block; b"" is the end."""

    def __init__(self, packed: Packing, read: Callable[[], bytes]) -> None:
        self._packed = packed
        self._new = _DECODERS[packed.name]
        self._read = read
        self._decoder: _Decoder | None = None
        self._input = b""
        self._streams = 0
        self._error: Exception | None = None

    def next(self) -> bytes:
        """The next block.

        Raises:
            Damaged: there is none, for the compressed data is corrupt or cut off. What came before
                was handed out (of corrupt data all but the last block).
            Exception: from ``read``.
        """
        if self._error is not None:
            raise self._error
        parts: list[bytes] = []
        missing = BLOCK
        while missing > 0:
            try:
                part = self._some(missing)
            except Exception as error:
                if not parts:
                    raise
                self._error = error  # first what could be had
                break
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        """Some uncompressed bytes; b"" at the end."""
        while True:
            if self._decoder is None and not self._begin():
                return b""
            decoder = self._decoder
            assert decoder is not None
            if decoder.eof:
                self._input = decoder.unused_data
                self._decoder = None
                continue
            data = b""
            if decoder.needs_input:
                data, self._input = self._input or self._read(), b""
                if not data:
                    raise Damaged(f"its {self._packed.name} data is cut off")
            found = self._decoded(decoder, data, size)
            if found:
                return found

    def _decoded(self, decoder: _Decoder, data: bytes, size: int) -> bytes:
        try:
            return decoder.decompress(data, size)
        except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
            raise Damaged(f"its {self._packed.name} data is corrupt ({error})") from error

    def _begin(self) -> bool:
        """Begin with the next stream; whether there is one."""
        data = self._input
        while len(data) < SNIFF and (more := self._read()):
            data += more
            if self._streams:
                data = data.lstrip(b"\0")  # what tapes and block devices are filled up with
        if self._streams:
            data = data.lstrip(b"\0")
        self._input = data
        if not data:
            return False
        if not self._packed.magic.match(data):
            raise Damaged(f"after its {self._packed.name} data stands something else")
        self._decoder = self._new()
        self._streams += 1
        return True


def _packing(head: bytes, name: str, reads: Callable[[Packing], bool]) -> Packing | None:
    """How a log that begins so is compressed; None: it is plain.

    Raises:
        LogError: in a way of which ``reads`` says that it is not read here, or it is no ASCII.
    """
    check_begun(head, name)
    packed = packing(head)
    if packed is not None and not reads(packed):
        raise LogError(
            f"{name} is compressed by {packed.name}, which is not read here: unpack it first"
            f" ({packed.tool})"
        )
    if packed is None and (reason := wide_text(head, name, "tail")):
        raise LogError(reason)
    return packed


class LogFile:
    """An open log. Offsets are in uncompressed bytes.

    Attributes:
        path: the name it was opened by.
        device, inode: which file that was.
        compressed: whether it is, told by its first bytes and not by its name.

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
            self._packed = _packing(self._pread(LOOKED_AT, 0), path, is_read)
        except LogError:
            os.close(self._fd)
            raise
        self.compressed = self._packed is not None
        self._unpacker: Unpacker | None = None
        self._block, self._block_at, self._raw_at = b"", 0, 0
        self._rewind()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; empty at the end.

        Raises:
            LogError: the file cannot be read, or its compression is damaged.
        """
        if self._unpacker is None:
            return self._pread(size, offset)
        if offset < self._block_at:
            self._rewind()
        while offset >= self._block_at + len(self._block):
            self._block_at += len(self._block)
            self._block = b""
            try:
                self._block = self._unpacker.next()
            except Damaged as error:
                raise LogError(
                    f"{self.path} is damaged or not complete: {error}. What stands before is"
                    " counted; put a whole copy in its place, or move it away"
                ) from error
            if not self._block:
                return b""
        begin = offset - self._block_at
        return self._block[begin : begin + size]

    def holds(self, offset: int) -> bool:
        """Whether it is at least ``offset`` bytes long."""
        if not self.compressed:
            return os.fstat(self._fd).st_size >= offset
        return offset == 0 or len(self.read(1, offset - 1)) == 1

    @property
    def linked(self) -> bool:
        """Whether it has a name still."""
        return os.fstat(self._fd).st_nlink > 0

    def changed_ns(self) -> int:
        """When it was last written to, in Unix nanoseconds."""
        return os.fstat(self._fd).st_mtime_ns

    def close(self) -> None:
        """Close it; once more does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rewind(self) -> None:
        """Unpack it from its beginning."""
        self._block, self._block_at, self._raw_at = b"", 0, 0
        self._unpacker = Unpacker(self._packed, self._raw) if self._packed else None

    def _raw(self) -> bytes:
        """The next bytes of the file as it is."""
        data = self._pread(BLOCK, self._raw_at)
        self._raw_at += len(data)
        return data

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
        packed = _packing(head, "it", lambda packed: packed.name == "gzip")
        self._compressed = packed is not None
        # Not Unpacker: it waits for the rest of a block.
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
