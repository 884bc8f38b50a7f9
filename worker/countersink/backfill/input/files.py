"""Which files the names, patterns and directories on the command line stand for, their order, what
is left out, and the texts for names that give none; and unpacking gzip, bzip2 and zstd block by
block, with the errors for data that is corrupt or cut off (how a compression is recognized:
``PACKINGS`` in ``producers/access_log/file.py``).

All three may be several streams one after the other (``cat a.gz b.gz``); gzip's may be padded with
zeros. Memory stays flat whatever they unpack to. Formats: RFC 1952, RFC 8878, and bzip2's as its
library writes it.
"""

import bz2
import glob
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zstandard

from countersink.backfill.errors import Damaged
from countersink.backfill.options import SourceReport
from countersink.producers.access_log.file import Packing

STDIN: Final = "-"

_OWN: Final = re.compile(r"backfill-[0-9]+-rejects(?:-[0-9]+)?\.ndjson")
"""What backfills have written themselves."""

_ADVICE: Final = {
    PermissionError: "no permission to read it; run this as a user who may, or change its mode",
    FileNotFoundError: "there is no such file or directory",
    NotADirectoryError: "there is no such file or directory",
    IsADirectoryError: "it is a directory",
}


def trouble(error: OSError) -> str:
    """What went wrong, as a phrase."""
    return _ADVICE.get(type(error)) or error.strerror or type(error).__name__


@dataclass(frozen=True, slots=True)
class Input:
    """A file, or standard input, that is a source.

    Attributes:
        name: as people know it; printable.
        path: absolute; None: standard input.
        size: bytes on disk; None: not known (a pipe).
    """

    name: str
    path: Path | None
    size: int | None


class _Refused(Exception):
    """A source cannot be; the message says why."""


def expand(sources: Sequence[str]) -> tuple[list[Input], list[SourceReport]]:
    """The files that ``sources`` name, and a report for each name that gives none.

    A source is a file, a FIFO, ``-`` (standard input), a shell pattern (``**`` matches
    directories), or a directory: then all files in it and below, without hidden ones and the
    rejected lines of earlier backfills. A name that is there is never taken for a pattern. The same
    file twice, by whatever name, is there once.
    """
    search = _Search()
    for source in sources:
        search.add(source)
    return search.found, search.failed


class _Search:
    def __init__(self) -> None:
        self.found: list[Input] = []
        self.failed: list[SourceReport] = []
        self._seen: set[tuple[int, int]] = set()
        self._stdin = False

    def add(self, source: str) -> None:
        try:
            if source == STDIN:
                if not self._stdin:
                    self.found.append(Input(STDIN, None, None))
                self._stdin = True
            elif os.path.lexists(source) or not glob.has_magic(source):
                self._add(source)
            else:
                self._add_matches(source)
        except (_Refused, OSError, ValueError) as error:
            self._fail(source, error)

    def _add_matches(self, pattern: str) -> None:
        matches = sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise _Refused("no file matches the pattern")
        for match in matches:
            try:
                # ``**`` gives the directories and all that is in them.
                if not ("**" in pattern and os.path.isdir(match)):
                    self._add(match)
            except (_Refused, OSError) as error:
                self._fail(match, error)

    def _add(self, name: str) -> None:
        try:
            status = os.stat(name)
        except FileNotFoundError:
            if os.path.islink(name):
                raise _Refused(
                    f"it is a link to {_shown(os.readlink(name))}, which is not there"
                ) from None
            raise
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            self._add_directory(name)
        elif kind == stat.S_IFREG or kind == stat.S_IFIFO:
            self._add_file(name, status)
        elif kind == stat.S_IFSOCK:
            raise _Refused("it is a socket, not a file")
        else:
            raise _Refused("it is a device, not a file; standard input is named -")

    def _add_file(self, name: str, status: os.stat_result) -> None:
        if not os.access(name, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError
        if (status.st_dev, status.st_ino) in self._seen:
            return
        self._seen.add((status.st_dev, status.st_ino))
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
        self.found.append(Input(_shown(name), Path(os.path.abspath(name)), size))

    def _add_directory(self, top: str) -> None:
        errors: list[OSError] = []
        empty = True
        for name in _files_below(top, errors):
            empty = False
            try:
                self._add_file(name, os.stat(name))
            except OSError as error:
                self._fail(name, error)
        for problem in errors:
            self._fail(problem.filename or top, problem)
        if empty and not errors:
            raise _Refused("there is no file in this directory (hidden ones are left out)")

    def _fail(self, name: str, error: Exception) -> None:
        if isinstance(error, OSError):
            detail = trouble(error)
        elif isinstance(error, _Refused):
            detail = str(error)
        else:
            detail = f"this is no name of a file: {error}"
        self.failed.append(SourceReport(source=_shown(str(name)), outcome="failed", detail=detail))


def _files_below(top: str, errors: list[OSError]) -> Iterator[str]:
    """Regular files, directory by directory, by name; links to directories are not followed."""
    for folder, folders, files in os.walk(top, onerror=errors.append):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for file in sorted(files):
            path = os.path.join(folder, file)
            left_out = file.startswith(".") or _OWN.fullmatch(file) is not None
            if not left_out and os.path.isfile(path):
                yield path


def _shown(name: str) -> str:
    """A name that can be printed and stored: bytes that are no UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace").replace("\0", "\\0")


BLOCK: Final = 256 * 1024
"""Uncompressed bytes that are handed out at once, about."""
SNIFF: Final = 16
"""First bytes of a file that tell how it is compressed."""

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
        self._frame = zstandard.ZstdDecompressor().decompressobj()
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
            part = self._frame.decompress(self._waiting[:_SLICE])
            self._waiting = self._waiting[_SLICE:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


_Decoder = _Gzip | _Zstd | bz2.BZ2Decompressor
_DECODERS: Final[Mapping[str, Callable[[], _Decoder]]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "zstd": _Zstd,
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
        except (zlib.error, zstandard.ZstdError, OSError, ValueError, EOFError) as error:
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
