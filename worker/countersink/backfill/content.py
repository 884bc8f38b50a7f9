"""Opens and reads a file, compressed file or pipe: what may not be read, the copy of a pipe in
TMPDIR and the room that is left there (``RESERVE``), which files may grow (``GROWS_S``), and the
errors about all of it. Which files the names, patterns and directories on the command line stand
for, their order, what is left out, and the texts for names that give none.

Offsets are in uncompressed bytes everywhere. What a file is, is told by its first bytes and not by
its name.
"""

import errno
import glob
import os
import select
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from countersink.backfill.errors import Unreadable
from countersink.backfill.options import SourceReport
from countersink.logs.errors import Damaged, LogError
from countersink.logs.file import (
    SNIFF,
    Packing,
    Unpacker,
    can_unpack,
    check_begun,
    packing,
)

STDIN: Final = "-"


def trouble(error: OSError) -> str:
    """What went wrong, as a phrase."""
    return error.strerror or str(error)


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


def expand(sources: Sequence[str]) -> tuple[list[Input], list[SourceReport]]:
    """The files that ``sources`` name, and a report for each name that gives none.

    A source is a file, a FIFO, ``-`` (standard input), a shell pattern (``**`` matches
    directories), or a directory: then all files in it and below, without hidden ones. A name that
    is there is never taken for a pattern. The same file twice, by whatever name, is there once.
    """
    search = _Search()
    for source in sources:
        if source == STDIN:
            search.found.setdefault(STDIN, Input(STDIN, None, None))
        elif os.path.lexists(source) or not glob.has_magic(source):
            search.add(source)
        else:
            search.add_matches(source)
    return list(search.found.values()), search.failed


class _Search:
    """Files by their device and inode, and reports of names that give none."""

    def __init__(self) -> None:
        self.found: dict[object, Input] = {}
        self.failed: list[SourceReport] = []

    def add(self, name: str) -> None:
        """Add a file, or those of a directory."""
        try:
            status = os.stat(name)
            if stat.S_ISDIR(status.st_mode):
                self._add_directory(name)
                return
            regular = stat.S_ISREG(status.st_mode)
            if not (regular or stat.S_ISFIFO(status.st_mode)):
                raise OSError(0, "it is a device or a socket, no file; standard input is named -")
            size = status.st_size if regular else None
            file = Input(_shown(name), Path(os.path.abspath(name)), size)
            self.found.setdefault((status.st_dev, status.st_ino), file)
        except OSError as error:
            self._fail(name, error)

    def add_matches(self, pattern: str) -> None:
        """Add the files, and those of directories, that a pattern matches."""
        matches = sorted(glob.glob(pattern, recursive=True))
        if "**" in pattern:  # which gives the directories and all that is in them
            matches = [match for match in matches if not os.path.isdir(match)]
        if not matches:
            self._fail(pattern, OSError(0, "no file matches the pattern"))
        for match in matches:
            self.add(match)

    def _add_directory(self, top: str) -> None:
        failed = len(self.failed)
        names = list(_files_below(top, lambda error: self._fail(error.filename, error)))
        for name in names:
            self.add(name)
        if not names and len(self.failed) == failed:
            raise OSError(0, "there is no file in this directory (hidden ones are left out)")

    def _fail(self, name: str, error: OSError) -> None:
        report = SourceReport(source=_shown(name), outcome="failed", detail=trouble(error))
        self.failed.append(report)


def _files_below(top: str, fail: Callable[[OSError], None]) -> Iterator[str]:
    """Regular files, directory by directory, by name; links to directories are not followed."""
    for folder, folders, files in os.walk(top, onerror=fail):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for file in sorted(files):
            path = os.path.join(folder, file)
            if not file.startswith(".") and os.path.isfile(path):
                yield path


def _shown(name: str) -> str:
    """A name that can be printed and stored: bytes that are no UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


RESERVE: Final = 64 * 1024 * 1024
"""Free bytes that the copy of a pipe leaves in TMPDIR."""
GROWS_S: Final = 3600.0
"""Seconds after the last write to a file during which it may grow: it may be a log in use."""
_READ: Final = 256 * 1024
"""Bytes asked of a pipe at once."""
_PATIENCE_MS: Final = 200
"""How often one looks up from a silent pipe."""
HEAD_BYTES: Final = 64 * 1024


class Content:
    """An open source; a context manager. Not for two threads at once.

    A compressed file is read from its beginning again to go back by more than 2 MiB.

    Args:
        name: of the source, as people know it.
        fd: the file; closed with the content.
        size: its bytes that are read at most.
        packed: how it is compressed; None: it is not.
        may_grow: see the attribute.

    Attributes:
        name: of the source, as people know it.
        size: bytes on disk.
        may_grow: a plain file, given by its path, that was written to within the last hour.
        cr_ends: its lines end in a carriage return alone, and are read with newlines instead, byte
            for byte: told by :func:`head_of`.
    """

    cr_ends = False

    def __init__(
        self,
        name: str,
        fd: int,
        size: int,
        packed: Packing | None = None,
        *,
        may_grow: bool = False,
    ) -> None:
        self.name = name
        self.size = size
        self.may_grow = may_grow
        self._fd = fd
        self._unpacker = None if packed is None else Unpacker(packed, partial(os.pread, fd))
        self._offset = 0

    def plain_file(self) -> "PlainFile | None":
        """What another process opens it by; None: it is compressed, or there is no ``/proc``."""
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        if self._unpacker is not None or not os.path.exists(path):
            return None
        return PlainFile(self.name, path, self.size, self.cr_ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def offset(self) -> int:
        """Where the next read begins, in uncompressed bytes."""
        return self._offset

    @property
    def position(self) -> int:
        """Bytes of the file as it lies on disk that were read so far; for showing progress."""
        return self._offset if self._unpacker is None else self._unpacker.position

    def read(self, size: int) -> bytes:
        """``size`` bytes; fewer at the end, and before what cannot be read.

        Raises:
            Unreadable: what follows cannot be read: compressed data that is cut off or corrupt, an
                error of the device, a file that became shorter. What stands before was delivered.
        """
        data = b""
        try:
            while len(data) < size and (more := self._read(size - len(data), self._offset)):
                data += more
                self._offset += len(more)
        except Unreadable:
            if not data:
                raise
        return data.replace(b"\r", b"\n") if self.cr_ends else data

    def seek(self, offset: int) -> None:
        """Go to ``offset``, or to the end if that comes before.

        Raises:
            Unreadable: what lies between cannot be read.
        """
        end = self.size
        if self._unpacker is not None:
            self._read(0, offset)
            end = self._unpacker.end
        self._offset = min(offset, end)

    def read_at(self, size: int, offset: int) -> bytes:
        """Go there and read: see :meth:`seek` and :meth:`read`."""
        self.seek(offset)
        return self.read(size)

    def _read(self, size: int, offset: int) -> bytes:
        try:
            if self._unpacker is not None:
                return self._unpacker.read(size, offset)
            wanted = min(size, self.size - offset)
            data = os.pread(self._fd, wanted, offset)
        except Damaged as error:
            assert self._unpacker is not None
            raise Unreadable(
                f"{self.name} cannot be read on from byte {self._unpacker.end:,} (uncompressed):"
                f" {error}. What stands before is read; give a whole copy, and it goes on from"
                " there"
            ) from error
        except OSError as error:
            raise Unreadable(
                f"{self.name} cannot be read on from byte {offset:,}: {trouble(error)}"
            ) from error
        if wanted and not data:
            raise Unreadable(
                f"{self.name} became shorter while it was read: it ends before byte"
                f" {offset + 1:,} of {self.size:,}. What stands before is read; give what it was"
                f" renamed or copied to as well"
            )
        return data


@dataclass(frozen=True, slots=True)
class PlainFile:
    """A file that is not compressed, as another process opens it.

    Attributes:
        name, size, cr_ends: as of :class:`Content`.
        path: of the descriptor: so it is the same file, whatever has its name by now.
    """

    name: str
    path: str
    size: int
    cr_ends: bool

    def open(self) -> Content:
        """Open it.

        Raises:
            Unreadable: it cannot be.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreadable(f"{self.name} cannot be opened: {trouble(error)}") from error
        content = Content(self.name, fd, self.size)
        content.cr_ends = self.cr_ends
        return content


def open_content(source: Input, stop: Callable[[], bool] = lambda: False) -> Content:
    """Open a source. A pipe is copied to its end first; a FIFO waits until somebody writes to it.

    Args:
        stop: asked while a pipe is copied; True: the source is not read.

    Raises:
        Unreadable: it cannot be opened or copied, is no file, or is compressed in a way that is not
            read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.dup(0) if source.path is None else os.open(source.path, flags)
    except OSError as error:
        raise Unreadable(f"{source.name} cannot be opened: {trouble(error)}") from error
    try:
        return _content(source, fd, stop)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise Unreadable(f"{source.name} cannot be read: {trouble(error)}") from error
        raise


def _content(source: Input, fd: int, stop: Callable[[], bool]) -> Content:
    name = source.name if source.path is not None else "standard input"
    status = os.fstat(fd)
    mode = status.st_mode
    if source.path is not None and not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise Unreadable(f"{name} cannot be read: it is a directory or a device, not a file")
    regular = source.path is not None and stat.S_ISREG(mode)
    if not regular:
        _spool(name, fd, stop)
        status = os.fstat(fd)
    first = os.pread(fd, SNIFF, 0)
    try:
        check_begun(first, name)
    except LogError as error:
        raise Unreadable(str(error)) from None
    packed = packing(first)
    if packed is not None and not can_unpack(packed):
        raise Unreadable(
            f"{name} is compressed by {packed.name}, which is not read here:"
            f" {packed.tool} {source.name} | countersink backfill - …"
        )
    fresh = time.time() - status.st_mtime < GROWS_S
    return Content(name, fd, status.st_size, packed, may_grow=regular and packed is None and fresh)


def _spool(name: str, fd: int, stop: Callable[[], bool]) -> None:
    """Copy a pipe to its end into a temporary file, whose descriptor ``fd`` becomes."""
    try:
        with tempfile.TemporaryFile(prefix="countersink-") as spool:
            for data in _arriving(name, fd, stop):
                room = os.fstatvfs(spool.fileno())
                if room.f_bavail * room.f_frsize < RESERVE + len(data):
                    raise OSError(errno.ENOSPC, f"less than {RESERVE >> 20} MiB would be left")
                spool.write(data)
            spool.flush()
            os.dup2(spool.fileno(), fd, inheritable=False)
    except OSError as error:
        raise Unreadable(
            f"what is read of {name} cannot be kept in {tempfile.gettempdir()}: {trouble(error)}."
            " Set TMPDIR to a directory with room, or write it to a file and give that"
        ) from error


def _arriving(name: str, fd: int, stop: Callable[[], bool]) -> Iterator[bytes]:
    """Bytes of a pipe, as they come, up to its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not stop():
        # A FIFO that nobody has opened for writing yet is silent, too, and not at its end.
        if not poll.poll(_PATIENCE_MS):
            continue
        try:
            data = os.read(fd, _READ)
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {trouble(error)}") from error
        if not data:
            return
        yield data
    raise Unreadable(f"{name} was not read: asked to stop")


def head_of(content: Content) -> bytes:
    """Read how a content begins, 64 KiB at most; it stands somewhere after that then. One that is
    damaged ends where the damage is: that it does is found when it is read on.

    Raises:
        Unreadable: nothing of it can be read.
    """
    data = content.read_at(HEAD_BYTES, 0)
    # Not one alone: the newline behind it may not be written yet.
    if b"\n" not in data and data.count(b"\r") > 1:
        content.cr_ends = True
        data = data.replace(b"\r", b"\n")
    return data
