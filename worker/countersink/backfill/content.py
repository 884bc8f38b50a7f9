"""Files of a backfill. ``expand`` turns names, patterns and directories of the command line into a
list of files. ``open_content`` opens a file, compressed file or pipe for reading.

All offsets are in uncompressed bytes. The compression of a file is detected by its first bytes,
whatever its name is. A pipe (a FIFO or standard input) is first copied to TMPDIR, where at least
``RESERVE`` bytes must stay free.
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


def os_error_text(error: OSError) -> str:
    """Return an error of the operating system as a phrase, such as ``Permission denied``."""
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class Input:
    """A file, a FIFO or standard input, which can be opened as a source.

    Attributes:
        name: printable name, as given on the command line or found by a pattern or in a directory.
        path: absolute path; None for standard input.
        size: bytes on disk; None for a FIFO or standard input, whose size is unknown.
    """

    name: str
    path: Path | None
    size: int | None


def expand(sources: Sequence[str]) -> tuple[list[Input], list[SourceReport]]:
    """Return the files that ``sources`` stand for, and a report with the outcome ``failed`` for
    each source that stands for no file, and for each directory that cannot be read.

    Each of ``sources`` is a file, a FIFO, ``-`` (standard input), a shell pattern (``**`` matches
    directories), or a directory, which stands for all regular files in and below it, except those
    that are hidden or in hidden directories. The name of an existing file is never taken for a
    pattern. A file that is named twice, even by different names, is listed once."""
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
    """The files found so far, by device and inode, and a report of each failure."""

    def __init__(self) -> None:
        self.found: dict[object, Input] = {}
        self.failed: list[SourceReport] = []

    def add(self, name: str) -> None:
        """Add the file ``name``, or the files below the directory ``name``. If there are none, add
        a report that says why. Also add a report for each unreadable directory."""
        try:
            status = os.stat(name)
            if stat.S_ISDIR(status.st_mode):
                self._add_directory(name)
                return
            regular = stat.S_ISREG(status.st_mode)
            if not (regular or stat.S_ISFIFO(status.st_mode)):
                raise OSError(0, "it is a device or a socket, not a file; use - for standard input")
            size = status.st_size if regular else None
            file = Input(_printable(name), Path(os.path.abspath(name)), size)
            self.found.setdefault((status.st_dev, status.st_ino), file)
        except OSError as error:
            self._fail(name, error)

    def add_matches(self, pattern: str) -> None:
        """Add the files that ``pattern`` matches; without ``**``, also all files below directories
        that it matches. If there are none, add a report."""
        matches = sorted(glob.glob(pattern, recursive=True))
        if "**" in pattern:  # it matches the directories and also the files in them
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
            raise OSError(0, "the directory has no files (hidden files are left out)")

    def _fail(self, name: str, error: OSError) -> None:
        detail = os_error_text(error)
        self.failed.append(SourceReport(source=_printable(name), outcome="failed", detail=detail))


def _files_below(top: str, fail: Callable[[OSError], None]) -> Iterator[str]:
    """Iterate over regular files below ``top``, by directory and name. Leave out hidden files, and
    hidden or linked directories. Call ``fail`` with the error of an unreadable directory."""
    for folder, folders, files in os.walk(top, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in sorted(files):
            path = os.path.join(folder, file)
            if not file.startswith(".") and os.path.isfile(path):
                yield path


def _printable(name: str) -> str:
    """Return ``name`` with escapes for bytes that are not UTF-8, to print and store it."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


RESERVE: Final = 64 * 1024 * 1024
"""Number of bytes that must stay free in TMPDIR when a pipe is copied there."""
GROWS_S: Final = 3600.0
"""Seconds after the last write to a file during which it may grow: it may be a log in use."""
_READ_BYTES: Final = 256 * 1024
"""Number of bytes that one read of a pipe asks for."""
_POLL_MS: Final = 200
"""Milliseconds between two checks for a stop while a pipe sends nothing."""
HEAD_BYTES: Final = 64 * 1024
"""Maximum length in bytes of a content's head, its first bytes."""


class Content:
    """The uncompressed bytes of a source that is open; a context manager. Not thread-safe. A seek
    back by more than 2 MiB may read a compressed file from its beginning again.

    Args:
        fd: descriptor of the file; closed with the content.
        packed: compression of the file; None if it is not compressed.
        name, size, may_grow: see the attributes.

    Attributes:
        name: name of the source, for messages.
        size: bytes that the file (of a pipe: its copy) had on disk when it was opened; of an
            uncompressed file no more are read, even if it has grown since.
        may_grow: True for an uncompressed file (no pipe) that was written to in the hour before
            :func:`open_content` opened it: its last line may be unfinished.
        cr_ends: True if lines end in a carriage return alone, for which :meth:`read` then returns a
            newline. Set by :func:`head_of`.
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
        """Return a :class:`PlainFile`, by which a child process can open the file; None if the file
        is compressed, or if there is no ``/proc``."""
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
        """Uncompressed offset at which the next read begins."""
        return self._offset

    @property
    def position(self) -> int:
        """Offset in the file on disk, for reports of progress: :attr:`offset`, or of a compressed
        file the offset up to which its compressed bytes were read."""
        return self._offset if self._unpacker is None else self._unpacker.position

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes; fewer before the end or a damaged byte; b'' at the end.

        Raises:
            Unreadable: not even the next byte can be read: compressed data is cut off or corrupt,
                the device has an error, or the file became shorter."""
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
        """Move to ``offset``, forward or back, or to the end if the content is shorter.

        Raises:
            Unreadable: compressed bytes before ``offset`` cannot be read."""
        end = self.size
        if self._unpacker is not None:
            self._read(0, offset)
            end = self._unpacker.end
        self._offset = min(offset, end)

    def read_at(self, size: int, offset: int) -> bytes:
        """Move to ``offset``, and return the next ``size`` bytes, as :meth:`read` does."""
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
                f"{self.name} cannot be read from byte {self._unpacker.end:,} (uncompressed) on:"
                f" {error}. The lines before that byte are read; give an undamaged copy to"
                " continue there"
            ) from error
        except OSError as error:
            raise Unreadable(
                f"{self.name} cannot be read from byte {offset:,} on: {os_error_text(error)}"
            ) from error
        if wanted and not data:
            raise Unreadable(
                f"{self.name} became shorter while it was read: it ends before byte"
                f" {offset + 1:,} of {self.size:,}. The lines before that byte are read; if the"
                f" file was renamed or copied, give the new file as well"
            )
        return data


@dataclass(frozen=True, slots=True)
class PlainFile:
    """An uncompressed file that another process can open, as long as this process has it open.

    Attributes:
        name, size, cr_ends: as in :class:`Content`.
        path: this process's descriptor in ``/proc``: it leads to the same file even if renamed."""

    name: str
    path: str
    size: int
    cr_ends: bool

    def open(self) -> Content:
        """Open the file, and return its content.

        Raises:
            Unreadable: it cannot be opened."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreadable(f"{self.name} cannot be opened: {os_error_text(error)}") from error
        content = Content(self.name, fd, self.size)
        content.cr_ends = self.cr_ends
        return content


def open_content(source: Input, stop: Callable[[], bool] = lambda: False) -> Content:
    """Open a source. A FIFO or standard input is first copied to a temporary file, up to its end.
    With a FIFO, this waits for its first writer.

    Args:
        source: the file, FIFO or standard input.
        stop: called during the wait and the copy; Unreadable is raised once it returns true.

    Raises:
        Unreadable: the source cannot be opened or copied, is a directory or a device, has an
            unsupported compression, or is empty although its name is that of a compressed file."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.dup(0) if source.path is None else os.open(source.path, flags)
    except OSError as error:
        raise Unreadable(f"{source.name} cannot be opened: {os_error_text(error)}") from error
    try:
        return _content(source, fd, stop)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise Unreadable(f"{source.name} cannot be read: {os_error_text(error)}") from error
        raise


def _content(source: Input, fd: int, stop: Callable[[], bool]) -> Content:
    name = source.name if source.path is not None else "standard input"
    status = os.fstat(fd)
    mode = status.st_mode
    if source.path is not None and not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise Unreadable(f"{name} cannot be read: it is a directory or a device, not a file")
    regular = source.path is not None and stat.S_ISREG(mode)
    if not regular:
        _copy_pipe(name, fd, stop)
        status = os.fstat(fd)
    first = os.pread(fd, SNIFF, 0)
    try:
        check_begun(first, name)
    except LogError as error:
        raise Unreadable(str(error)) from None
    packed = packing(first)
    if packed is not None and not can_unpack(packed):
        raise Unreadable(
            f"{name} is compressed with {packed.name}, which backfill cannot read: use"
            f" `{packed.tool} {source.name} | countersink backfill - …`"
        )
    fresh = time.time() - status.st_mtime < GROWS_S
    return Content(name, fd, status.st_size, packed, may_grow=regular and packed is None and fresh)


def _copy_pipe(name: str, fd: int, stop: Callable[[], bool]) -> None:
    """Copy the pipe ``fd``, up to its end, to a temporary file; then make ``fd`` a descriptor of
    that file. Raises Unreadable if that fails, or once ``stop`` returns true."""
    try:
        with tempfile.TemporaryFile(prefix="countersink-") as copy:
            for data in _pipe_data(name, fd, stop):
                disk = os.fstatvfs(copy.fileno())
                if disk.f_bavail * disk.f_frsize < RESERVE + len(data):
                    raise OSError(errno.ENOSPC, f"less than {RESERVE >> 20} MiB would stay free")
                copy.write(data)
            copy.flush()
            os.dup2(copy.fileno(), fd, inheritable=False)
    except OSError as error:
        raise Unreadable(
            f"{name} cannot be copied to {tempfile.gettempdir()}: {os_error_text(error)}. Set"
            " TMPDIR to a directory with more free space, or save the data to a file and give that"
        ) from error


def _pipe_data(name: str, fd: int, stop: Callable[[], bool]) -> Iterator[bytes]:
    """Iterate over the bytes of a pipe, as they arrive, up to its end. Raises Unreadable if a read
    fails, or once ``stop`` returns true."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not stop():
        # A FIFO that was not opened for writing yet is silent, too, and not at its end.
        if not poll.poll(_POLL_MS):
            continue
        try:
            data = os.read(fd, _READ_BYTES)
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {os_error_text(error)}") from error
        if not data:
            return
        yield data
    raise Unreadable(f"{name} was not read: the backfill was stopped")


def head_of(content: Content) -> bytes:
    """Return the head of a content, its first 64 KiB at most, b'' if it is empty. Move the offset
    behind the head. If a byte of the head is damaged, the head ends before it, and a later read
    reports the damage. If lines end in a carriage return alone, the head has newlines instead of
    these, and ``cr_ends`` is set.

    Raises:
        Unreadable: not even the first byte can be read."""
    data = content.read_at(HEAD_BYTES, 0)
    # More than one: a single one at the end may be waiting for its newline.
    if b"\n" not in data and data.count(b"\r") > 1:
        content.cr_ends = True
        data = data.replace(b"\r", b"\n")
    return data
