"""The log of all processes and of producers: classes that format and write its lines, as text or
JSON; records of unexpected exceptions without event data; and the positions of passwords in a URL
(``passwords``).

A process that writes its log to a full pipe, to a terminal stopped with Ctrl-S or to a journal that
hangs would block for good. So :class:`LineHandler` does not wait to write a record. A line that
cannot be written at once is kept until it can, up to :data:`KEPT_BYTES` in all. Further lines are
dropped, and a line in the log says how many.

The message of an unexpected exception could quote an event or a password, so its record has only
the exception's type and the lines of code.
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

from countersink.runtime.texts import plural

MAX_ERROR: Final = 300
"""Most characters of an error's message in a log record."""
OTHER: Final = "other"
"""The action written for a log record that has none, such as a record of a library."""
QUIET_S: Final = 60.0
"""Seconds for which :meth:`Log.seldom` does not repeat an action for the same item."""
KEPT_BYTES: Final = 1024 * 1024
"""Most bytes of lines that wait to be written."""
PATIENCE_S: Final = 1.0
"""Most seconds that the end of a process waits until the kept lines of the log are written."""
_PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe takes without blocking whenever poll(2) says that it can be written to."""
_ROOT: Final = "countersink"


class Log:
    """Writes log records. Each has an action: a fixed name of the event, by which programs can
    recognize it. Thread-safe.

    Args:
        logger: the logger that gets the records.
        always: fields of every record, such as the name of the process.
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
        """Write one record. ``action`` is the event's fixed name, ``message`` is for people,
        ``fields`` are further values. ``bug`` is an unexpected exception, whose type and lines of
        code are added."""
        extra = {"action": str(action), "fields": self._always | fields}
        self._logger.log(level, message, extra=extra, exc_info=bug)

    def seldom(
        self, action: str, text: str, *, level: int = logging.WARNING, item: str = "", **fields: Any
    ) -> bool:
        """Write a record and return True; but if this method has written one with the same
        ``action`` and ``item`` less than :data:`QUIET_S` ago, write nothing and return False.
        ``item`` names the thing that the record is about; it is not written."""
        now = time.monotonic()
        last = self._last.get((action, item))
        due = last is None or now - last >= QUIET_S
        if due:
            self._last[action, item] = now
            self(action, text, level=level, **fields)
        return due

    def bug(self, where: str) -> None:
        """Log the exception that is being handled, by :meth:`seldom`: at most once a minute for
        all exceptions of this ``Log``. ``where`` names the part of the program that continues."""
        text, error = f"{where} continues after an unexpected error", sys.exception()
        self.seldom("internal_error", text, level=logging.ERROR, bug=error)


def code_lines(error: BaseException) -> str:
    """Return the traceback of ``error`` and of its causes, eight errors at most: types and lines of
    code, no messages."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(parts) < 8:
        lines = traceback.format_tb(current.__traceback__)
        parts.append("".join(lines) + type(current).__qualname__)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return "\nwhile handling\n".join(parts)


def error_text(error: BaseException) -> str:
    """Return an error's message as one line of at most :data:`MAX_ERROR` characters, or the name
    of its class if there is no message."""
    return " ".join(str(error).split())[:MAX_ERROR] or type(error).__qualname__


def passwords(url: str) -> list[tuple[int, int]]:
    """Return the positions of all passwords in ``url``, also in its query parameters such as
    ``password=``, in order, each as the begin and end of a slice.

    The URL may have several hosts and may be malformed: a password may stand where a port belongs,
    or may have a ``/``, ``?`` or ``#`` that is not quoted."""
    start = url.find("://") + 3 if "://" in url else 0
    found = [
        pair.span(2)
        for pair in re.finditer(r"[?&]([^=&]+)=([^&]+)", url)
        if "password" in unquote_plus(pair[1]).lower()
    ]
    rest = url
    for begin, end in found:
        rest = f"{rest[:begin]}{'*' * (end - begin)}{rest[end:]}"  # an @ there ends no credentials
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
    """Formats a record as a line of JSON, an object with time, level, action, message and each
    field; if the record has an exception, also with its type and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        time, level, action, fields = _parts(record)
        head = {"time": time, "level": level, "action": action, "message": record.getMessage()}
        return json.dumps(head | fields, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text: time, level, action, message, and ``name=value`` for
    each field. If the record has an exception, its type is a field, and its traceback follows on
    further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of text; any traceback follows on further lines."""
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
    """Writes each record as a line to ``stream``. A line that the stream does not take immediately
    is kept, up to :data:`KEPT_BYTES` in all; further lines are dropped. Only :meth:`flush` and
    :meth:`close` wait. A stream without a descriptor, such as :class:`io.StringIO`, gets lines
    directly."""

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
        """Write the record as a line, or keep it, or drop it; see :meth:`write`."""
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        self.write(line)

    def write(self, text: str) -> None:
        """Write ``text``, which consists of whole lines, or keep it until the stream can be written
        to. Drop it if it and the kept lines together have more than :data:`KEPT_BYTES` bytes. A
        stream without a descriptor gets it directly."""
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
        """Write the kept lines; wait up to :data:`PATIENCE_S` (1 s) until the stream takes them."""
        if self._output is None:
            return
        deadline = time.monotonic() + PATIENCE_S
        while self._lines and (left := deadline - time.monotonic()) > 0:
            self._output.wait(left)
            with self._guard:
                self._write()

    def close(self) -> None:
        """Flush; then close the descriptor if this handler opened it, unless a thread still waits
        to write kept lines."""
        self.flush()
        super().close()
        with self._guard:
            if self._output is not None and not self._waiting:
                self._output.close()
                self._output = None
                self._lines.clear()

    def reset_in_child(self) -> None:
        """Drop the kept lines in a forked child process, because the parent process writes them."""
        self._guard = threading.RLock()
        self._lines.clear()
        self._size = self._dropped = 0
        self._waiting = False

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)

    def _write(self) -> None:
        """Write the kept lines that the stream takes without blocking; start a thread for the
        others. A line whose write fails is lost: the reader is gone, or the disk is full."""
        assert self._output is not None
        while self._lines:
            line = self._lines[0]
            try:
                written = self._output.write(line[:_PIECE])
            except BlockingIOError:
                self._wait_for_room()
                return
            except OSError:
                written = len(line)  # the reader is gone, or the disk is full
            self._size -= written
            if written == len(line):
                self._lines.popleft()
            else:
                self._lines[0] = line[written:]
            if not self._lines and self._dropped:
                dropped, self._dropped = self._dropped, 0
                text = f"{plural(dropped, 'log line')} dropped: the reader was too slow"
                note = {"msg": text, "levelname": "WARNING", "action": "lines_dropped"}
                self._keep(f"{self.format(logging.makeLogRecord(note))}\n".encode())

    def _wait_for_room(self) -> None:
        if not self._waiting:
            waiting = threading.Thread(target=self._write_later, name="log", daemon=True)
            try:
                waiting.start()
            except RuntimeError:
                return  # no thread can be started: the next line tries again
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
    """The file, pipe, terminal or socket (to journald) that gets the log. It is written to only if
    poll(2) says that this does not block. ``owned``: whether :meth:`close` closes the
    descriptor."""

    def __init__(self, descriptor: int, *, owned: bool) -> None:
        self._descriptor = descriptor
        self._owned = owned

    def write(self, piece: bytes) -> int:
        # Not needed for an owned descriptor, which does not block; it costs 1 µs.
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
        if self._owned:
            os.close(self._descriptor)


def _output(stream: TextIO) -> _File | None:
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):
        return None
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        # Opened again, as O_NONBLOCK on the given descriptor would change it for other processes,
        # too. Where that is not allowed, another writer can fill the pipe between poll and write.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            return _File(os.open(f"/proc/self/fd/{descriptor}", flags), owned=True)
    return _File(descriptor, owned=False)


_HANDLERS: Final["weakref.WeakSet[LineHandler]"] = weakref.WeakSet()


def _in_child() -> None:
    for handler in list(_HANDLERS):
        handler.reset_in_child()


os.register_at_fork(after_in_child=_in_child)


def set_up(log_format: str, stream: TextIO | None = None) -> LineHandler:
    """Send to ``stream`` (default: stderr) countersink's log records (INFO and above, unless its
    logger has a level already) and warnings of libraries whose loggers have no handler. Return the
    handler. ``log_format``: ``json`` or ``text``."""
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger(_ROOT)
    root.addHandler(handler)
    if root.level == logging.NOTSET:
        root.setLevel(logging.INFO)
    # The default last resort prints a library's warnings itself, and may block for good.
    logging.lastResort = _LastResort(handler)
    return handler


@contextlib.contextmanager
def logged(log_format: str, stream: TextIO | None = None) -> Iterator[LineHandler]:
    """Run the block with a log handler that :func:`set_up` makes of the same arguments. At the end
    of the block remove the handler, and wait up to 1 s until its kept lines are written."""
    handler = set_up(log_format, stream)
    try:
        yield handler
    finally:
        logging.getLogger(_ROOT).removeHandler(handler)
        if isinstance(logging.lastResort, _LastResort) and logging.lastResort.handler is handler:
            logging.lastResort = logging.lastResort.before
        handler.close()


class _LastResort(logging.Handler):
    """Passes to ``handler`` the warnings and errors of loggers that have no handler."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__(logging.WARNING)
        self.handler = handler
        self.before = logging.lastResort

    def emit(self, record: logging.LogRecord) -> None:
        self.handler.handle(record)
