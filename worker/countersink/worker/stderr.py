"""Log lines on a stream that may not take them: a process whose log nobody reads goes on working.

A pipe that is full, a terminal that was stopped with Ctrl-S or a journal that hangs would hold up
whoever writes to it, for good. So nothing here waits: a line is written at once where that is
possible, and else kept, up to :data:`KEPT_BYTES`, until it is. What does not fit is dropped, and
counted in a line of its own.
"""

import contextlib
import logging
import os
import select
import socket
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Final, TextIO

KEPT_BYTES: Final = 1024 * 1024
"""Bytes of lines that are kept at most."""
PATIENCE_S: Final = 1.0
"""Seconds for which a process that ends waits for who reads its log."""
_PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe takes at once if it takes any."""


class LineHandler(logging.Handler):
    """Writes records as lines to ``stream``, and never waits for it.

    A stream without a file descriptor, such as :class:`io.StringIO`, is written to as it is.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._output = _output(stream)
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._waiting = False
        _HANDLERS.add(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or keep it."""
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        self.write(line)

    def write(self, text: str) -> None:
        """Write whole lines, or keep them."""
        if self._output is None:
            self._stream.write(text)
            self._stream.flush()
            return
        with self._held():
            line = text.encode("utf-8", "backslashreplace")
            if self._size + len(line) > KEPT_BYTES:
                self._dropped += 1
                return
            self._keep(line)
            self._write()

    def flush(self) -> None:
        """Wait a second at most for who reads."""
        if self._output is None:
            return
        deadline = time.monotonic() + PATIENCE_S
        while self._lines and (left := deadline - time.monotonic()) > 0:
            self._output.wait(left)
            with self._held():
                self._write()

    def close(self) -> None:
        """Flush, and let go of the stream."""
        self.flush()
        super().close()
        with self._held():
            if self._output is not None and not self._waiting:
                self._output.close()
                self._output = None
                self._lines.clear()

    def begin_anew(self) -> None:
        """In a forked child: what is kept is its parent's to write."""
        self._lines.clear()
        self._size = self._dropped = 0
        self._waiting = False

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)

    def _write(self) -> None:
        """Write what is kept, as far as the stream takes it; the rest on a thread."""
        assert self._output is not None
        while self._lines:
            line = self._lines[0]
            try:
                written = self._output.write(line[:_PIECE])
            except BlockingIOError:
                self._wait_for_room()
                return
            except OSError:
                written = len(line)  # nobody reads any more, or the disk is full
            self._size -= written
            if written == len(line):
                self._lines.popleft()
            else:
                self._lines[0] = line[written:]
            if not self._lines and self._dropped:
                dropped, self._dropped = self._dropped, 0
                self._keep(f"{dropped} log lines were dropped: nobody read them\n".encode())

    def _wait_for_room(self) -> None:
        if not self._waiting:
            waiting = threading.Thread(target=self._write_later, name="log", daemon=True)
            try:
                waiting.start()
            except RuntimeError:
                return  # no thread to be had: with the next line
            self._waiting = True

    def _write_later(self) -> None:
        assert self._output is not None
        while True:
            self._output.wait(None)
            with self._held():
                self._write()
                if not self._lines:
                    self._waiting = False
                    return


class _File:
    """A file, pipe or terminal."""

    def __init__(self, descriptor: int, *, own: bool) -> None:
        self._descriptor = descriptor
        self._own = own

    def write(self, piece: bytes) -> int:
        # For one of our own that does not block this is one call too many; it costs 1 µs.
        if not self._poll(0):
            raise BlockingIOError
        return os.write(self._descriptor, piece)

    def wait(self, seconds: float | None) -> None:
        self._poll(seconds)

    def _poll(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def close(self) -> None:
        if self._own:
            os.close(self._descriptor)


class _Socket(_File):
    """A socket, as a journal's."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        super().__init__(self._socket.fileno(), own=False)

    def write(self, piece: bytes) -> int:
        return self._socket.send(piece, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._socket.close()


def _output(stream: TextIO) -> _File | None:
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):
        return None
    if stat.S_ISSOCK(mode):
        return _Socket(descriptor)
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        # Opened anew, so that it does not block for us alone: others share the descriptor that we
        # were given. Where that is not allowed, another writer can fill the pipe between our look
        # and our write.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            return _File(os.open(f"/proc/self/fd/{descriptor}", flags), own=True)
    return _File(descriptor, own=False)


_HANDLERS: Final["weakref.WeakSet[LineHandler]"] = weakref.WeakSet()


def _in_child() -> None:
    for handler in list(_HANDLERS):
        handler.begin_anew()


os.register_at_fork(after_in_child=_in_child)
