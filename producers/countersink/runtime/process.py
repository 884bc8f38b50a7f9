"""The name of a process (host, pid, random), and its stop on SIGTERM or SIGINT: in order, or forced
with exit status 1 at a second signal or after the time limit. Names of hosts: the host in a
``Host`` header, and whether a host is loopback.

A Python signal handler runs between two instructions of the main thread: late if that thread hangs
in a call, and maybe while it holds a lock that the handler needs. So the handlers here are empty,
and CPython's C handler writes the signal's number to a pipe (:func:`signal.set_wakeup_fd`) that any
thread can read.
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
from typing import Final

from countersink.runtime.log import Log

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
FORCED: Final = 1
"""Exit status after a forced stop."""
STOPPING: Final = "stopping"
"""The action of the log record that a signal came."""
STOP_FORCED: Final = "stop_forced"
"""The action of the log record that the process ends before its work is finished."""
_PATIENCE_S: Final = 1.0
"""Seconds that one log record, or one callback, may take during a stop."""


def host_name() -> str:
    """This host's name, cut to 150 characters, which the columns of the tables hold."""
    return socket.gethostname()[:150]


def process_name(purpose: str = "") -> str:
    """A name that no other process ever has: ``purpose``, host, pid, random."""
    name = f"{host_name()}-{os.getpid()}-{os.urandom(4).hex()}"
    return f"{purpose}-{name}" if purpose else name


class Stop:
    """A request to stop, made once. Safe in any thread and in a signal handler.

    Not a :class:`threading.Event`: its ``set`` takes a lock that the interrupted thread may hold.
    """

    def __init__(self) -> None:
        self._requested = False
        self._closed = threading.Lock()  # released by the request
        self._closed.acquire()

    @property
    def requested(self) -> bool:
        """Whether the stop was requested."""
        return self._requested

    def request(self) -> None:
        """Request the stop."""
        if not self._requested:
            self._requested = True
            with suppress(RuntimeError):  # another thread requests it at the same moment
                self._closed.release()

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds`` or until the request; return whether it was made."""
        if not self._requested and self._closed.acquire(timeout=max(0.0, seconds)):
            self._closed.release()  # for other waiting threads
        return self._requested


class SignalQueue:
    """The signals that came, in order."""

    def __init__(self, reader: int, numbers: Sequence[signal.Signals]) -> None:
        self._reader = reader
        self._numbers = numbers

    def next(self, seconds: float | None) -> signal.Signals | None:
        """The next signal; ``None``: none came within ``seconds``, or the queue is closed."""
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
    """Queue these signals inside the block, instead of their handlers. For the main thread."""
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
    """Inside the block SIGTERM and SIGINT request a stop, and end the process ``within_s`` seconds
    later at the latest; a second signal ends it at once. Outside the main thread: does nothing.

    Args:
        stop: the stop to request.
        log: the log of the signal and of a forced end.
        within_s: seconds from the signal to the forced end.
        doing: the log's text for the work after the request.
        left: the log's text for unfinished work at a forced end.
        asked: called after the request, on a thread.
        forced: called right before a forced end, on a thread.
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
    """Inside the block these signals are only written to ``writer``, which is closed at its end:
    the reader gets end of file.
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
    """The name or address in a ``Host`` header, in lower case, without port and brackets; ``''`` if
    the header is malformed.
    """
    match = _HOST.fullmatch(header)
    if match is None or int(match[2] or 0) > 65_535:
        return ""
    return match[1].lower().rstrip(".").strip("[]")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to ``host``, a name or an address."""
    name = host.lower()
    if name in _LOCAL or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
