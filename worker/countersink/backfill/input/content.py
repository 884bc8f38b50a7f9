"""Opens and reads a file, compressed file or pipe: what may not be read, how much of a pipe is kept
in memory (``MEMORY``) or TMPDIR, and the errors about it.

Offsets are in uncompressed bytes everywhere. What a file is, is told by its first bytes and not by
its name.
"""

import os
import select
import stat
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import IO, Final, NoReturn, Self

from countersink.backfill.errors import Unreadable
from countersink.backfill.input.files import Input, trouble
from countersink.producers.access_log.file import (
    SNIFF,
    Packing,
    Unpacker,
    check_begun,
    is_read,
    packing,
)
from countersink.producers.errors import Damaged, LogError

_MOST: Final = 1024 * 1024
"""Bytes handed out at once, whatever is asked for."""
_READ: Final = 256 * 1024
"""Bytes asked of the system at once."""
_PATIENCE_MS: Final = 200
"""How often one looks up from a silent pipe."""
MEMORY: Final = 24 * 1024 * 1024
"""Bytes kept in memory: above what a span holds, so that one can be read again."""
_JOINED: Final = 64 * 1024
"""Blocks are joined up to this size: a writer may write byte by byte."""
HEAD_BYTES: Final = 64 * 1024
_NULS: Final = b"\0\0\0\0"
"""More than UTF-16 or UTF-32 begin with."""


class _Stopped(Exception):
    """Asked to stop while waiting for a pipe."""


class _Arriving:
    """Reads from where the file stands: each call gives what comes next; b"" is the end.

    Args:
        fd: the file; a FIFO may be open without blocking before anybody writes to it.
        stop: asked while nothing comes.

    Raises:
        _Stopped: ``stop`` said so; nothing is lost.
        OSError: it cannot be read.
    """

    def __init__(self, fd: int, stop: Callable[[], bool]) -> None:
        self.fd = fd
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def __call__(self) -> bytes:
        while True:
            # A FIFO that nobody has opened for writing yet is silent, too, and not at its end.
            while not self._poll.poll(_PATIENCE_MS):
                if self._stop():
                    raise _Stopped
            try:
                return os.read(self.fd, _READ)
            except BlockingIOError:
                pass  # somebody else took it

    def first(self, size: int) -> bytes:
        """At least ``size`` bytes, unless the end comes before."""
        found = b""
        while len(found) < size and (more := self()):
            found += more
        return found


class Content(ABC):
    """An open source; a context manager. Not for two threads at once.

    Attributes:
        name: of the source, as people know it.
        plain: a file as it is: one can go anywhere in it, and other processes can open it.
        size: uncompressed bytes that will be read at most, where that is known.
        cr_ends: its lines end in a carriage return alone, and are read with newlines instead, byte
            for byte: told by :func:`head_of`.
    """

    plain = False
    cr_ends = False

    def __init__(self, name: str, fd: int, size: int | None = None) -> None:
        self.name = name
        self.size = size
        self._fd = fd
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; again is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def offset(self) -> int:
        """Where the next read begins, in uncompressed bytes."""
        return self._offset

    @property
    @abstractmethod
    def position(self) -> int:
        """Bytes of the file as it lies on disk that were read so far; for showing progress."""

    @abstractmethod
    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, often fewer (1 MiB at most); b"" at the end.

        Raises:
            Unreadable: what follows cannot be read: compressed data that is cut off or corrupt, an
                error of the device, a file that became shorter, a pipe that says nothing when one
                was asked to stop. What stands before was delivered.
        """

    @abstractmethod
    def seek(self, offset: int) -> None:
        """Go to ``offset``, or to the end if that comes before.

        Raises:
            Unreadable: what lies between cannot be read; or a pipe does not go back so far.
        """

    def read_at(self, size: int, offset: int) -> bytes:
        """Go there and read: see :meth:`seek` and :meth:`read`."""
        self.seek(offset)
        return self.read(size)

    def keep(self, on: bool) -> None:  # noqa: B027 (nothing to do is right for files)
        """Pipes: from now on nothing that is read is forgotten, so that one can go back.

        24 MiB are never forgotten; more goes to a temporary file. ``False``: no longer.
        """

    def _ended(self, data: bytes) -> bytes:
        return data.replace(b"\r", b"\n") if self.cr_ends else data

    def _failed(self, error: OSError) -> NoReturn:
        raise Unreadable(
            f"{self.name} cannot be read on from byte {self._offset:,}: {trouble(error)}"
        ) from error


class _Plain(Content):
    """A file as it is, up to the size that it had when it was opened."""

    plain = True

    def __init__(self, name: str, fd: int, size: int) -> None:
        super().__init__(name, fd, size)
        self._size = size

    @property
    def position(self) -> int:
        return self._offset

    def read(self, size: int) -> bytes:
        wanted = min(size, self._size - self._offset, _MOST)
        if wanted <= 0:
            return b""
        try:
            data = os.pread(self._fd, wanted, self._offset)
        except OSError as error:
            self._failed(error)
        if not data:
            raise Unreadable(
                f"{self.name} became shorter while it was read: it ends before byte"
                f" {self._offset + 1:,} of {self._size:,}. What stands before is read; give what"
                f" it was renamed or copied to as well"
            )
        self._offset += len(data)
        return self._ended(data)

    def seek(self, offset: int) -> None:
        self._offset = min(offset, self._size)


class Lookback:
    """The last :data:`MEMORY` bytes of a stream; while ``keeping``, all from then on, on disk.

    Attributes:
        end: offset after the last byte.
        keeping: what leaves memory goes to a temporary file instead of being forgotten.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.keeping = False
        self.end = 0
        self._limit = memory
        self._memory: deque[bytes] = deque()
        self._memory_at = 0
        self._file: IO[bytes] | None = None
        self._file_at = 0

    @property
    def start(self) -> int:
        """Offset of the first byte that is still there."""
        return self._memory_at if self._file is None else self._file_at

    def append(self, block: bytes) -> None:
        """Add what was read.

        Raises:
            OSError: the temporary file cannot be written; nothing was added.
        """
        while self._memory and self._forgettable(len(block)):
            self._evict()
        if self._memory and len(self._memory[-1]) + len(block) <= _JOINED:
            self._memory[-1] += block
        else:
            self._memory.append(block)
        self.end += len(block)

    def get(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; b"" at the end.

        Raises:
            OSError: the temporary file cannot be read.
        """
        if offset >= self._memory_at:
            at = self.end
            for block in reversed(self._memory):
                at -= len(block)
                if offset >= at:
                    return block[offset - at : offset - at + size]
            return b""
        assert self._file is not None
        self._file.seek(offset - self._file_at)
        return self._file.read(min(size, self._memory_at - offset))

    def clear(self) -> None:
        """Begin anew at offset 0."""
        self.close()
        self._memory.clear()
        self._memory_at = self.end = 0

    def close(self) -> None:
        """Forget the temporary file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forgettable(self, more: int) -> bool:
        """Whether enough stays in memory without its first block, when ``more`` bytes come."""
        return self.end + more - self._memory_at - len(self._memory[0]) >= self._limit

    def _evict(self) -> None:
        block = self._memory[0]
        if self.keeping:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="countersink-")  # noqa: SIM115
                self._file_at = self._memory_at
            self._file.seek(self._memory_at - self._file_at)
            self._file.write(block)
            self._file.flush()
        else:
            self.close()
        self._memory.popleft()
        self._memory_at += len(block)


class _Stream(Content):
    """A pipe, or a compressed file: read from its beginning on.

    A compressed file is read from its beginning again to go further back than the lookback
    reaches; a pipe cannot be.
    """

    def __init__(
        self, name: str, read: _Arriving, packed: Packing | None, first: bytes, *, again: bool
    ) -> None:
        super().__init__(name, read.fd)
        self._read = read
        self._packed = packed
        self._first = first
        self._again = again
        self._recent = Lookback()
        self._position = 0
        self._error: Unreadable | None = None
        self._unpacker = Unpacker(packed, self._raw) if packed is not None else None

    def close(self) -> None:
        self._recent.clear()
        super().close()

    @property
    def position(self) -> int:
        return self._position

    def read_at(self, size: int, offset: int) -> bytes:
        """Go there and read: see :meth:`seek` and :meth:`read`."""
        self.seek(offset)
        return self.read(size)

    def keep(self, on: bool) -> None:
        self._recent.keeping = on and not self._again

    def read(self, size: int) -> bytes:
        try:
            if self._offset == self._recent.end:
                self._advance()
            data = self._recent.get(self._offset, size)
        except OSError as error:
            self._failed(error)
        except _Stopped as stopped:
            raise Unreadable(f"{self.name} was not read to its end: asked to stop") from stopped
        self._offset += len(data)
        return self._ended(data)

    def seek(self, offset: int) -> None:
        if offset < self._recent.start:
            if not self._again:
                raise self._error or Unreadable(
                    f"{self.name} cannot be read again from byte {offset:,}: it is a pipe. Write"
                    f" it to a file and give that"
                )
            self._restart()
        self._offset = min(offset, self._recent.end)
        while self._offset < offset and self.read(offset - self._offset):
            pass

    def _restart(self) -> None:
        try:
            os.lseek(self._fd, 0, os.SEEK_SET)
        except OSError as error:
            self._failed(error)
        assert self._packed is not None
        self._recent.clear()
        self._first, self._position, self._offset, self._error = b"", 0, 0, None
        self._unpacker = Unpacker(self._packed, self._raw)

    def _advance(self) -> None:
        """Read the next block, if there is one."""
        if self._error is not None:
            raise self._error
        try:
            block = self._raw() if self._unpacker is None else self._unpacker.next()
        except Damaged as error:
            self._error = Unreadable(
                f"{self.name} cannot be read on from byte {self._offset:,} (uncompressed): {error}."
                f" What stands before is read; give a whole copy, and it goes on from there"
            )
            raise self._error from error
        if not block:
            return
        try:
            self._recent.append(block)
        except OSError as error:
            self._error = Unreadable(
                f"what is read of {self.name} cannot be kept in {tempfile.gettempdir()}:"
                f" {trouble(error)}. Set TMPDIR to a directory with room, or write it to a file"
                f" and give that"
            )
            raise self._error from error

    def _raw(self) -> bytes:
        """The next bytes of the file as it is."""
        data, self._first = self._first, b""
        if not data:
            data = self._read()
        self._position += len(data)
        return data


def open_content(source: Input, stop: Callable[[], bool] = lambda: False) -> Content:
    """Open a source. A FIFO waits until somebody writes to it.

    Args:
        stop: asked while a pipe is silent; True: what was read of it is all.

    Raises:
        Unreadable: it cannot be opened, is no file, or is compressed in a way that is not read.
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
        if isinstance(error, _Stopped):
            raise Unreadable(f"{source.name} was not read: asked to stop") from error
        raise


def _content(source: Input, fd: int, stop: Callable[[], bool]) -> Content:
    name = source.name if source.path is not None else "standard input"
    status = os.fstat(fd)
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise Unreadable(f"{name} cannot be read: it is a directory")
    if source.path is not None and not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise Unreadable(f"{name} cannot be read: it is a device, not a file")
    regular = source.path is not None and stat.S_ISREG(mode)
    read = _Arriving(fd, stop)
    first = os.pread(fd, SNIFF, 0) if regular else read.first(SNIFF)
    try:
        check_begun(first, name)
    except LogError as error:
        raise Unreadable(str(error)) from None
    packed = packing(first)
    if packed is not None and not is_read(packed):
        raise Unreadable(
            f"{name} is compressed by {packed.name}, which is not read here:"
            f" {packed.tool} {source.name} | countersink backfill - …"
        )
    if regular and packed is None:
        return _Plain(name, fd, status.st_size)
    return _Stream(name, read, packed, b"" if regular else first, again=regular)


def head_of(content: Content) -> bytes:
    """Read how a content begins, 64 KiB at most; it stands somewhere after that then. One that is
    damaged ends where the damage is: that it does is found when it is read on.

    Raises:
        Unreadable: nothing of it can be read.
    """
    content.seek(0)
    data = b""
    try:
        while len(data) < HEAD_BYTES and (more := content.read(HEAD_BYTES - len(data))):
            data += more
    except Unreadable as error:
        if not data or isinstance(error.__cause__, _Stopped):
            raise
    # Not one alone: the newline behind it may not be written yet.
    if b"\n" not in data and data.count(b"\r") > 1:
        content.cr_ends = True
        data = data.replace(b"\r", b"\n")
    return data


def telling(content: Content, head: bytes) -> bytes:
    """The first bytes that tell a format, 64 KiB at most: behind the NULs that a log begins with
    which was truncated under its writer.

    Args:
        content: it, of which ``head`` was read and nothing else.

    Raises:
        Unreadable: it was asked to stop.
    """
    if len(head) < HEAD_BYTES or not head.startswith(_NULS):
        return head
    data = head.lstrip(b"\0")
    try:
        while len(data) < HEAD_BYTES and (more := content.read(HEAD_BYTES - len(data))):
            data = (data + more).lstrip(b"\0")
    except Unreadable as error:
        if isinstance(error.__cause__, _Stopped):
            raise
    return data
