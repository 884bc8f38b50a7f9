"""Names of processes (host, pid, random digits), and their stop by SIGTERM or SIGINT. After the
signal, a process ends when its work is finished. A second signal or a time limit forces the end,
with exit status 1. The module also finds the host in a ``Host`` header, recognizes loopback hosts,
and has a base class of objects that are closed.

A Python signal handler runs between two instructions of the main thread. It runs late if that
thread hangs in a call, and the thread may hold a lock that the handler needs. So the handlers here
are empty. CPython's C handler writes the signal's number to a pipe (:func:`signal.set_wakeup_fd`),
and any thread can read the pipe.
"""

import ipaddress
import logging
import os
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Self

from countersink.runtime.log import Log


class Closable:
    """A context manager that calls ``close()`` at the end of its block."""

    close: Callable[[], object]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
FORCED: Final = 1
"""The exit status of a process that ended before its work was finished."""
STOPPING: Final = "stopping"
"""The action of the log record which says that a signal came."""
STOP_FORCED: Final = "stop_forced"
"""The action of the log record which says that the process ends before its work is finished."""
_PATIENCE_S: Final = 1.0
"""Most seconds that a stop waits for one log record, or for one callback."""


def host_name() -> str:
    """Return this host's name, cut to 150 characters for the columns with names of processes."""
    return socket.gethostname()[:150]


def process_name(purpose: str = "") -> str:
    """Return a name that no other process ever has: ``purpose`` unless it is ``''``, host, pid and
    random hex digits. Each call returns another name.
    """
    name = f"{host_name()}-{os.getpid()}-{os.urandom(4).hex()}"
    return f"{purpose}-{name}" if purpose else name


class Stop:
    """A request to stop, which is made once. Safe in any thread and in a signal handler.

    It is not a :class:`threading.Event`, because ``Event.set`` takes a lock. A signal handler would
    wait for it for ever if the interrupted thread held the lock.
    """

    def __init__(self) -> None:
        self._requested = False
        self._closed = threading.Lock()  # released by the request
        self._closed.acquire()

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self._requested

    def request(self) -> None:
        """Request the stop; a second call does nothing."""
        if not self._requested:
            self._requested = True
            with suppress(RuntimeError):  # another thread requests it at the same moment
                self._closed.release()

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until a stop is requested. Return whether it was requested."""
        if not self._requested and self._closed.acquire(timeout=max(0.0, seconds)):
            self._closed.release()  # for other waiting threads
        return self._requested


class SignalQueue:
    """Queue of the signals that this process got, in order.

    Args:
        reader: the read end of the pipe to which CPython writes the numbers of signals.
        numbers: the signals that count; other numbers in the pipe are skipped.
    """

    def __init__(self, reader: int, numbers: Sequence[signal.Signals]) -> None:
        self._reader = reader
        self._numbers = numbers

    def next(self, seconds: float | None) -> signal.Signals | None:
        """Take and return the next signal; return ``None`` if none came within ``seconds``, or if
        the pipe is closed. ``seconds`` is ``None`` to wait without a limit.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._reader], [], [], left)
            written = os.read(self._reader, 1) if ready else b""
            if not written:
                return None
            if written[0] in self._numbers:  # signals of other handlers are written, too
                return signal.Signals(written[0])


@contextmanager
def signal_queue(numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[SignalQueue]:
    """Give the block a queue that gets the signals ``numbers``. Inside the block their former
    handlers are not called; its end restores these handlers. Only for the main thread.
    """
    reader, writer = _pipe()
    try:
        with _written_to(writer, numbers):
            yield SignalQueue(reader, numbers)
    finally:
        os.close(reader)


@contextmanager
def stop_by_signals(
    stop: Stop,
    log: Log,
    within_s: float,
    *,
    doing: str,
    left: str = "",
    asked: Callable[[], object] = lambda: None,
    forced: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Inside the block, SIGTERM and SIGINT request a stop. The process is forced to end, with the
    exit status :data:`FORCED`, by a second signal, or if the block has not ended ``within_s``
    seconds after the first signal. Outside the main thread this context manager does nothing.

    Args:
        stop: the stop to request.
        log: the log that gets a record of the signal, and a record of a forced end.
        within_s: seconds from the signal to the forced end.
        doing: the log's text for the work that follows the request.
        left: the end of the log's text about a forced end, which says what work is unfinished, such
            as ``: the batch stays pending``.
        asked: a function to call on a thread after the request; at most a second is waited for it.
        forced: a function to call on a thread right before a forced end; at most a second is waited
            for it, too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def watch() -> None:
        queue = SignalQueue(reader, SIGNALS)
        first = queue.next(None)
        if first is None:
            return
        deadline = time.monotonic() + within_s
        stop.request()
        _briefly(lambda: log(STOPPING, f"{first.name}: {doing}"))
        _briefly(asked)
        second = queue.next(max(0.0, deadline - time.monotonic()))
        if second is None and ended.is_set():
            return
        why = "a second signal came" if second else f"the stop took more than {within_s:g} s"
        _briefly(lambda: log(STOP_FORCED, why + left, level=logging.ERROR))
        _briefly(forced)
        os._exit(FORCED)

    reader, writer = _pipe()
    ended = threading.Event()
    watching = threading.Thread(target=watch, name="stop", daemon=True)
    watching.start()
    try:
        with _written_to(writer, SIGNALS):
            try:
                yield
            finally:
                ended.set()
    finally:
        watching.join()
        os.close(reader)


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    return reader, writer


@contextmanager
def _written_to(writer: int, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Inside the block, the signals ``numbers`` are only written to the descriptor ``writer``. The
    end of the block restores their handlers and closes the descriptor, so that the pipe's reader
    gets end of file.
    """
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        os.close(writer)


def _briefly(work: Callable[[], object]) -> None:
    # On a thread: the log itself may hang (a full pipe on stderr).
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)


_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?")
_LOCAL: Final = frozenset(("localhost", "ip6-localhost", "localhost.localdomain"))


def header_host(header: str) -> str:
    """Return the name or address in a ``Host`` header, in lower case, without port, brackets and
    the dots at its end; return ``''`` if the header is malformed.
    """
    match = _HOST.fullmatch(header)
    if match is None or int(match[2] or 0) > 65_535:
        return ""
    return match[1].lower().rstrip(".").strip("[]")


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address of loopback (``::ffff:127.0.0.1``, too; without
    brackets) or a name of it: ``localhost`` and the like. For other names, which are not
    resolved, return False.
    """
    name = host.lower()
    if name in _LOCAL or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
