"""Log files, plain or compressed (``LogFile``), and plain pipes (``Pipe``). Files of gzip, bzip2,
zstd and xz are unpacked block by block. Other compressions (see ``PACKINGS``), compressed data in
pipes, and UTF-16/32 are recognized by the first bytes and refused; the message says what to do.

All offsets count uncompressed bytes. Compressed data may consist of several streams
(``cat a.gz b.gz``) with NUL bytes after each. Memory is bounded, however large the unpacked data
is. Formats: RFC 1952 (gzip), RFC 8878 (zstd), the libraries of bzip2 and xz.
"""

import bz2
import lzma
import os
import re
import select
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from countersink.logs.errors import Damaged, LogError
from countersink.runtime.process import Closable

BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark that some programs put before UTF-8."""
HEAD_BYTES: Final = 256
"""Number of first bytes of a file that are read to recognize its compression and encoding."""

_MARKS: Final = {
    # The marks of UTF-32 come first: one of them begins as one of UTF-16 does.
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_GZIP: Final = 16 + zlib.MAX_WBITS
_SNIFFED: Final = 8
"""First bytes of a pipe that are needed to recognize a compression; any line of a log is longer."""
_PIPE_WAIT: Final = 0.2
"""Seconds that one read of a pipe waits for data."""


@dataclass(frozen=True, slots=True)
class Packing:
    """A compression: its name, the program that unpacks it, and how its data begins.

    Attributes:
        name: the name of the compression in messages.
        tool: the command that unpacks a file to standard output.
        magic: the pattern of the first bytes of compressed data.
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
    """Return the compression of data by its first bytes (16 are enough); None if none is found."""
    return next((one for one in PACKINGS if one.magic.match(first)), None)


EXTENSIONS: Final = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".Z", ".zip", ".7z")
"""The file name extensions of compressed files."""


def check_begun(first: bytes, name: str) -> None:
    """Refuse an empty file whose name is that of a compressed file: its copy is not complete.

    Raises:
        LogError: ``first`` (first bytes) is empty, and ``name`` ends with one of ``EXTENSIONS``.
    """
    if not first and name.endswith(EXTENSIONS):
        raise LogError(
            f"{name} is damaged or not complete: it has 0 bytes. Put a whole copy in its place,"
            " or move it away"
        )


BLOCK: Final = 256 * 1024
"""Bytes that are read from a compressed file at once. Also the number of uncompressed bytes, from
the offset of a call of ``read`` on, after which it stops unpacking.
"""
SNIFF: Final = 16
"""Number of first bytes of data that tell how it is compressed."""

_XZ_BYTES: Final = 256 * 1024 * 1024
"""Bytes of memory that unpacking an xz file may need; a file that ``xz -9`` made needs 65 MiB."""
_SLICE: Final = 256
"""Compressed bytes passed to a decoder at once. They are few, because zlib, zstd and lzma return
everything that these bytes unpack to (zstd at worst 8 MiB).
"""
_KEPT: Final = 2 * 1024 * 1024
"""Uncompressed bytes kept before the offset that was read last, for readers that go back. A reader
of lines goes back by less: by the longest line and a block of lines.
"""


class _Decoder(Protocol):
    """Interface of the decoders in the libraries, each for one compressed stream. ``eof`` is true
    after the end of the stream. Then ``unused_data`` is the input that follows the stream."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _zstd() -> tuple[_Decoder, type[Exception]]:
    # Not in the base install: its applications read no logs.
    import zstandard  # noqa: PLC0415 (few read .zst)

    # Not its stream_reader: it does not say whether the input ends with a complete frame.
    return zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError


_DECODERS: Final[Mapping[str, Callable[[], tuple[_Decoder, type[Exception]]]]] = {
    "gzip": lambda: (zlib.decompressobj(_GZIP), zlib.error),
    "bzip2": lambda: (bz2.BZ2Decompressor(), OSError),
    "zstd": _zstd,
    "xz": lambda: (lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES), lzma.LZMAError),
}
"""Functions by the name of a compression. Each makes a decoder, and returns it with the class of
the error that its library raises for corrupt data.

The file classes of ``bz2`` and ``lzma`` are not used: they ignore data that follows a stream,
damaged or not.
"""


def can_unpack(packed: Packing) -> bool:
    """Return whether :class:`Unpacker` can unpack the compression: gzip, bzip2, zstd or xz."""
    return packed.name in _DECODERS


def _unpacked(packed: Packing, read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield the uncompressed bytes of a compressed file block by block; some blocks are empty.

    Args:
        packed: the compression.
        read: returns the next bytes of the compressed file, b"" at its end.

    Raises:
        Damaged: the rest of the data is corrupt, cut off, or not of this compression.
        Exception: any error that ``read`` raises.
    """
    data = b""
    while True:
        while len(data) < SNIFF and (more := read()):
            data = (data + more).lstrip(b"\0")  # tapes and block devices are padded with NULs
        if not data:
            return
        if not packed.magic.match(data):
            raise Damaged(f"other data follows its {packed.name} data")
        (decoder, corrupt), rest = _DECODERS[packed.name](), memoryview(data)
        while not decoder.eof:
            rest = rest or memoryview(read())
            if not rest:
                raise Damaged(f"its {packed.name} data is cut off")
            part, rest = bytes(rest[:_SLICE]), rest[_SLICE:]
            try:
                if not isinstance(decoder, bz2.BZ2Decompressor):
                    yield decoder.decompress(part)
                    continue
                yield decoder.decompress(part, BLOCK)  # 45 bytes may unpack to 45 MB
                while not (decoder.needs_input or decoder.eof):
                    yield decoder.decompress(b"", BLOCK)
            except corrupt as error:
                raise Damaged(f"its {packed.name} data is corrupt ({error})") from error
        data = (decoder.unused_data + rest).lstrip(b"\0")


class Unpacker:
    """Reader of a compressed file by uncompressed offsets. A read more than 2 MiB before an earlier
    read may unpack the file from its beginning again.

    Args:
        packed: the compression.
        read: takes (size, offset); reads up to so many bytes of the file there, b"" at its end.

    Attributes:
        end: the uncompressed offset up to which the file was unpacked.
        position: the offset in the compressed file up to which the file was read.
    """

    def __init__(self, packed: Packing, read: Callable[[int, int], bytes]) -> None:
        self._packed = packed
        self._file = read
        self._restart()

    def _restart(self) -> None:
        self._blocks = _unpacked(self._packed, self._next)
        self._recent = bytearray()
        self._start = self.end = self.position = 0
        self._error: Exception | None = None

    def read(self, size: int, offset: int) -> bytes:
        """Return up to ``size`` uncompressed bytes from ``offset`` on, often fewer; b"" at the end.

        Raises:
            Damaged: no byte can be unpacked at ``offset``, because the compressed data is corrupt,
                cut off, or followed by other data. The bytes before the damage can still be read.
            Exception: any error of reading the file.
        """
        if offset < self._start:
            self._restart()
        try:
            while self.end < offset + min(size, BLOCK):
                if self._error is not None:
                    raise self._error
                block = next(self._blocks, None)
                if block is None:
                    break
                self._recent += block
                self.end += len(block)
                if len(self._recent) > 3 * _KEPT:
                    self._forget(offset)
        except Exception as error:
            self._error = error  # no blocks come after an error, and that is not the end
            if self.end <= offset:
                raise
        begin = offset - self._start
        return bytes(self._recent[begin : begin + size])

    def _forget(self, offset: int) -> None:
        """Drop bytes more than ``_KEPT`` bytes before ``offset`` or, if smaller, ``end``."""
        forgotten = max(0, min(offset, self.end) - _KEPT - self._start)
        del self._recent[:forgotten]
        self._start += forgotten

    def _next(self) -> bytes:
        """Return the next bytes of the compressed file, up to ``BLOCK`` of them; b"" at its end."""
        data = self._file(BLOCK, self.position)
        self.position += len(data)
        return data


def _packing(head: bytes, name: str, *, piped: bool = False) -> Packing | None:
    """Return the compression of a log that begins with ``head``; None if the log is plain.

    Raises:
        LogError: the compression is not supported (in a pipe, ``piped``, none is), the text is
            UTF-16/32, or the log is empty although ``name`` is that of a compressed file.
    """
    check_begun(head, name)
    packed = packing(head)
    if packed is not None and (piped or not can_unpack(packed)):
        raise LogError(
            f"{name} is compressed by {packed.name}, which is not supported: unpack it first"
            f" ({packed.tool})"
        )
    if packed is None and (reason := wide_text(head, name, "tail")):
        raise LogError(reason)
    return packed


class LogFile(Closable):
    """A log file, open for reading. All offsets count uncompressed bytes.

    Attributes:
        path: the name by which the file was opened.
        device, inode: the numbers that identify the file to the operating system.
        compressed: whether the file's first bytes show a compression; its name does not matter.

    Raises:
        LogError: the file cannot be opened or read, is no regular file, has an unsupported
            compression or encoding, or is empty although its name is that of a compressed file.
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
            packed = _packing(self._pread(HEAD_BYTES, 0), path)
        except LogError:
            os.close(self._fd)
            raise
        self.compressed = packed is not None
        self._unpacker = None if packed is None else Unpacker(packed, self._pread)

    def read(self, size: int, offset: int) -> bytes:
        """Return up to ``size`` uncompressed bytes from ``offset`` on; b"" at the end.

        Raises:
            LogError: the file cannot be read, or its data is damaged at or before ``offset``.
        """
        if self._unpacker is None:
            return self._pread(size, offset)
        try:
            return self._unpacker.read(size, offset)
        except Damaged as error:
            raise LogError(
                f"{self.path} is damaged or not complete: {error}. Lines before the damage are"
                " counted; put a whole copy in its place, or move it away"
            ) from error

    def holds(self, offset: int) -> bool:
        """Return whether the file has ``offset`` uncompressed bytes or more. Raises LogError if a
        compressed file cannot be read up to there."""
        if not self.compressed:
            return os.fstat(self._fd).st_size >= offset
        return offset == 0 or len(self.read(1, offset - 1)) == 1

    def changed_ns(self) -> int:
        """Return the time of the last write to the file, in Unix nanoseconds."""
        return os.fstat(self._fd).st_mtime_ns

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise LogError(f"cannot read {self.path}: {error.strerror}") from error


class Pipe:
    """Reader of a pipe, terminal or socket. One read waits 0.2 s at most.

    Args:
        fd: the file descriptor to read from; this class does not close it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._head = b""
        self._recognized = False

    def take(self, size: int) -> bytes | None:
        """Return the next bytes, about ``size`` at most; b"" at the end of the data. Return None if
        no data came within 0.2 s, or if fewer than 8 bytes have come in all. A later call returns
        these bytes, at the latest at the end of the data.

        Raises:
            LogError: the data is compressed, or UTF-16 or UTF-32.
        """
        ready, _, _ = select.select([self._fd], [], [], _PIPE_WAIT)
        if not ready:
            return None
        data = os.read(self._fd, size)
        if self._recognized:
            return data
        self._head += data
        if data and len(self._head) < _SNIFFED:
            return None
        self._recognized = True
        _packing(self._head, "it", piped=True)
        return self._head


def wide_text(head: bytes, name: str, command: str) -> str:
    """Return the error message for a file in UTF-16 or UTF-32 (which has a byte order mark, then
    NULs between characters), with the command that converts the file; '' for any other file.

    Args:
        head: the first bytes of the file.
        name: the name of the file in the message.
        command: the countersink command that is to read the converted file.
    """
    for mark, encoding in _MARKS.items():
        # The two bytes of a mark without NULs behind them are no evidence.
        if head.startswith(mark) and b"\0" in head[2:HEAD_BYTES]:
            return (
                f"{name} is {encoding}; convert it first: iconv -f {encoding} -t UTF-8 FILE |"
                f" countersink {command} -"
            )
    return ""
