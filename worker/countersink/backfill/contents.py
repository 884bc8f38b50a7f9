"""The uncompressed bytes of a source, wherever they come from.

Offsets are in uncompressed bytes everywhere. What a file is, is told by its first bytes and not by
its name.
"""

import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Final, NoReturn, Self

from countersink.backfill.arriving import Arriving, Stopped
from countersink.backfill.inputs import Input, trouble
from countersink.backfill.lookback import Lookback
from countersink.backfill.options import Unreadable
from countersink.backfill.unpacking import SNIFF, Damaged, Packing, Unpacker, packing

_MOST: Final = 1024 * 1024
"""Bytes handed out at once, whatever is asked for."""


class Content(ABC):
    """An open source; a context manager. Not for two threads at once.

    Attributes:
        name: of the source, as people know it.
        plain: a file as it is: one can go anywhere in it, and other processes can open it.
        size: uncompressed bytes that will be read at most, where that is known.
    """

    plain = False

    def __init__(self, name: str, fd: int, size: int | None = None) -> None:
        self.name = name
        self.size = size
        self._fd = fd
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    def keep(self, on: bool) -> None:  # noqa: B027 (nothing to do is right for files)
        """Pipes: from now on nothing that is read is forgotten, so that one can go back.

        24 MiB are never forgotten; more goes to a temporary file. ``False``: no longer.
        """

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
        return data

    def seek(self, offset: int) -> None:
        self._offset = min(offset, self._size)


class _Stream(Content):
    """A pipe, or a compressed file: read from its beginning on.

    A compressed file is read from its beginning again to go further back than the lookback
    reaches; a pipe cannot be.
    """

    def __init__(
        self, name: str, read: Arriving, packed: Packing | None, first: bytes, *, again: bool
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

    def keep(self, on: bool) -> None:
        self._recent.keeping = on and not self._again

    def read(self, size: int) -> bytes:
        try:
            if self._offset == self._recent.end:
                self._advance()
            data = self._recent.get(self._offset, size)
        except OSError as error:
            self._failed(error)
        except Stopped as stopped:
            raise Unreadable(f"{self.name} was not read to its end: asked to stop") from stopped
        self._offset += len(data)
        return data

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


def _never() -> bool:
    return False


def open_content(source: Input, stop: Callable[[], bool] = _never) -> Content:
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
        if isinstance(error, Stopped):
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
    read = Arriving(fd, stop)
    first = os.pread(fd, SNIFF, 0) if regular else read.first(SNIFF)
    packed = packing(first)
    if packed is not None and packed.new is None:
        raise Unreadable(
            f"{name} is compressed by {packed.name}, which is not read here:"
            f" {packed.tool} {source.name} | countersink backfill - …"
        )
    if regular and packed is None:
        return _Plain(name, fd, status.st_size)
    return _Stream(name, read, packed, b"" if regular else first, again=regular)
