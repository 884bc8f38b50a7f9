"""The log of all processes and of producers: text and JSON lines, longest error, how often the same
action is logged at most (``QUIET_S``), what is dropped when nobody reads, no event data in
tracebacks, and where passwords stand in a URL (``passwords``).

A pipe that is full, a terminal that was stopped with Ctrl-S or a journal that hangs would hold up
whoever writes to it, for good. So :class:`LineHandler` never waits: a line is written at once where
that is possible, and else kept, up to :data:`KEPT_BYTES`, until it is. What does not fit is
dropped, and counted in a line of its own.

No record holds event data or a password. Of an unexpected exception only the type and the lines of
code are shown, since its text could quote an event.
"""

import contextlib
import json
import logging
import os
import re
import select
import stat
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, TextIO
from urllib.parse import unquote_plus

MAX_ERROR: Final = 300
"""Characters of an error in a record."""
OTHER: Final = "other"
"""The action of a record that has none."""
QUIET_S: Final = 60.0
"""Seconds between two records of one action that are said seldom."""
KEPT_BYTES: Final = 1024 * 1024
"""Bytes of lines that are kept at most."""
PATIENCE_S: Final = 1.0
"""Seconds for which a process that ends waits for who reads its log."""
_PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe takes at once if it takes any."""
_ROOT: Final = "countersink"


class Log:
    """Writes records with an action. From any thread.

    Args:
        logger: where to.
        always: fields that every record carries, such as the name of the process.
    """

    def __init__(self, logger: logging.Logger, **always: object) -> None:
        self._logger = logger
        self._always = always
        self._last: dict[tuple[str, str], float] = {}

    def __call__(
        self,
        action: str,
        message: str,
        *,
        level: int = logging.INFO,
        bug: BaseException | None = None,
        **fields: object,
    ) -> None:
        """Log ``message`` with its fields, and an unexpected exception."""
        extra = {"action": str(action), "fields": self._always | fields}
        self._logger.log(level, message, extra=extra, exc_info=bug)

    def seldom(
        self, action: str, text: str, *, level: int = logging.WARNING, of: str = "", **fields: Any
    ) -> bool:
        """Log, unless the same action, of the same thing, was logged so less than :data:`QUIET_S`
        ago; whether it was logged."""
        now = time.monotonic()
        last = self._last.get((action, of))
        due = last is None or now - last >= QUIET_S
        if due:
            self._last[action, of] = now
            self(action, text, level=level, **fields)
        return due

    def bug(self, where: str) -> None:
        """Log seldom the exception that is being handled, after which ``where`` goes on."""
        self.seldom(
            "internal_error", f"{where} goes on after:", level=logging.ERROR, bug=sys.exception()
        )


def code_lines(error: BaseException) -> str:
    """The lines of code that ``error``, and what caused it, came through: without their texts."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(parts) < 8:
        lines = traceback.format_tb(current.__traceback__)
        parts.append("".join(lines) + type(current).__qualname__)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return "\nwhile handling\n".join(parts)


def error_text(error: BaseException) -> str:
    """An error of ours as one line of bounded length."""
    return " ".join(str(error).split())[:MAX_ERROR] or type(error).__qualname__


def passwords(url: str) -> list[tuple[int, int]]:
    """Where in ``url`` passwords stand, from first to last: begin and end, as of a slice.

    It may be a list of hosts and need not be well-formed: what was meant to be a password may stand
    where a port does, or have a ``/``, ``?`` or ``#`` in it that should have been quoted.
    """
    start = url.find("://") + 3 if "://" in url else 0
    found = [
        pair.span(2)
        for pair in re.finditer(r"[?&]([^=&]+)=([^&]+)", url)
        if "password" in unquote_plus(pair[1]).lower()
    ]
    rest = url
    for begin, end in found:
        rest = f"{rest[:begin]}{'*' * (end - begin)}{rest[end:]}"  # an @ there ends no user's name
    end = rest.rfind("@", start)
    inside: list[tuple[int, int]] = []
    if end >= 0:
        colon = rest.find(":", start, end)
        if colon >= 0 or re.search(r"[/?#]", rest[start:end]):
            inside.append((max(colon + 1, start), end))
        start = end + 1
    for host in re.split(r"[/?#]", rest[start:], maxsplit=1)[0].split(","):
        name, mark, port = re.sub(r"^\[[^]]*\]", lambda ip: "-" * len(ip[0]), host).partition(":")
        if port and not (name and port.isdecimal() and int(port[:6]) < 65_536):
            inside.append((start + len(name + mark), start + len(host)))
        start += len(host) + 1
    return [*inside, *(span for span in found if span[0] > end)]


def _parts(record: logging.LogRecord) -> tuple[str, str, str, dict[str, Any]]:
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    action = getattr(record, "action", OTHER)
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        fields["exception"] = type(record.exc_info[1]).__qualname__
        fields["traceback"] = code_lines(record.exc_info[1])
    return time.replace("+00:00", "Z"), record.levelname.lower(), action, fields


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, action, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
        time, level, action, fields = _parts(record)
        head = {"time": time, "level": level, "action": action, "message": record.getMessage()}
        return json.dumps(head | fields, default=str)


class TextFormatter(logging.Formatter):
    """One line for people: time, level, action, message, then ``name=value`` for the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of text; only a traceback adds lines."""
        time, level, action, fields = _parts(record)
        lines = fields.pop("traceback", None)
        pairs = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        line = f"{time} {level:<7} {action:<16} {record.getMessage()}{pairs}"
        return f"{line}\n{lines}" if lines else line


def _shown(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and " " not in text and '"' not in text
    return text if plain else json.dumps(text)


class LineHandler(logging.Handler):
    """Writes records as lines to ``stream``, and never waits for it.

    A stream without a file descriptor, such as :class:`io.StringIO`, is written to as it is.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._output = _output(stream)
        self._guard = threading.RLock()
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
        with self._guard:
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
            with self._guard:
                self._write()

    def close(self) -> None:
        """Flush, and let go of the stream."""
        self.flush()
        super().close()
        with self._guard:
            if self._output is not None and not self._waiting:
                self._output.close()
                self._output = None
                self._lines.clear()

    def begin_anew(self) -> None:
        """In a forked child: what is kept is its parent's to write."""
        self._guard = threading.RLock()
        self._lines.clear()
        self._size = self._dropped = 0
        self._waiting = False

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
            with self._guard:
                self._write()
                if not self._lines:
                    self._waiting = False
                    return


class _File:
    """A file, pipe, terminal, or a socket as a journal's: one that can be written to takes a piece
    without waiting.
    """

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


def _output(stream: TextIO) -> _File | None:
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):
        return None
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


def set_up(log_format: str, stream: TextIO | None = None) -> LineHandler:
    """Send everything countersink logs, from level info on, to ``stream`` (default: stderr), and
    the warnings of libraries that nobody else handles; returns the handler.
    """
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger(_ROOT)
    root.addHandler(handler)
    if root.level == logging.NOTSET:
        root.setLevel(logging.INFO)
    # What a library warns of would be printed by logging itself, which may wait for ever.
    logging.lastResort = _LastResort(handler)
    return handler


@contextlib.contextmanager
def logged(log_format: str, stream: TextIO | None = None) -> Iterator[LineHandler]:
    """:func:`set_up` inside the block; what is not written at its end has a second to be."""
    handler = set_up(log_format, stream)
    try:
        yield handler
    finally:
        logging.getLogger(_ROOT).removeHandler(handler)
        if isinstance(logging.lastResort, _LastResort) and logging.lastResort.handler is handler:
            logging.lastResort = logging.lastResort.before
        handler.close()


class _LastResort(logging.Handler):
    """Passes on warnings that no handler of their own takes."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__(logging.WARNING)
        self.handler = handler
        self.before = logging.lastResort

    def emit(self, record: logging.LogRecord) -> None:
        self.handler.handle(record)
