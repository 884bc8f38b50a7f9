"""Hooks that flush all open producers when the process ends, with time limits, and a hook that
empties the producers in forked children. The producers are flushed at these ends of a process:

- a normal exit: by ``atexit``; in children of ``multiprocessing``, which skip ``atexit``, by a
  finalizer of ``multiprocessing``;
- SIGTERM: while a handler of the application runs that was set before a producer was made. SIGTERM,
  SIGHUP, SIGQUIT, SIGINT: before their default action ends the process. Ignored ones stay ignored;
- functions that end the process without ``atexit``: ``os._exit`` (work horses of RQ, pools of
  Celery, many forked children); ``os.execv`` and ``os.execve``, which all ``os.exec…`` call;
  ``signal.raise_signal`` and ``os.kill`` with the process's own id, by which servers such as
  uvicorn end after their shutdown. The first producer replaces each of these functions by one that
  flushes, if the process has counted anything, and then calls the original.
"""

import atexit
import encodings.idna  # noqa: F401  (see below)
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType, ModuleType
from typing import Any, Final, Protocol

from countersink.producers.threads import (
    Bell,
    block_greenlets,
    get_ident,
    in_main_thread,
    in_producer_thread,
    pause,
    sleep,
    start_thread,
)
from countersink.runtime.log import Log

# encodings.idna is imported here because the first look-up of a host's name imports it, in the send
# thread: a child forked at that moment could never look up a host's name.

_log = Log(logging.getLogger("countersink.producers"))

NUMBERS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
"""Numbers of the signals at which producers are flushed."""
GRACE_SECONDS: Final = 2.0
"""Seconds that a process may take to end after its last flush."""
POLL_SECONDS: Final = 0.005
"""Seconds between checks whether the producers are flushed."""
CLOSING_SECONDS: Final = 5.0
"""Seconds beyond the exit timeout that closing at a signal may take; then the process ends."""

_kill = os.kill  # the originals
_exit = os._exit


class Flushable(Protocol):
    """The methods of a producer that this module uses."""

    @property
    def exit_timeout(self) -> float:
        """Most seconds that a flush at the end of the process may take."""

    @property
    def unused(self) -> bool:
        """True if this process has counted nothing with the producer."""

    def begin_flush(self, deadline: float) -> Callable[[], bool]:
        """Begin a flush until ``deadline``; return a function that returns True once it is over."""

    def stop_counting(self) -> None:
        """From now on, drop increments, without the RuntimeError of a closed producer."""

    def close_at_exit(self, deadline: float) -> None:
        """Flush and close the producer, until the monotonic time ``deadline``."""

    def log_loss(self) -> None:
        """Log the number of increments that are lost with the process, if there are any."""

    def start_over(self) -> None:
        """Begin again without increments, in a forked child: the parent stores them."""


class _End:
    """The state of the end of this process.

    Attributes:
        thread: id of the thread that ends the process; None while the process is not ending.
        until: monotonic time until which calls such as ``increment()`` block, as the process ends.
        flushing: True while a thread flushes because of a signal that the application handles.
        closing: whether a signal that the application does not handle, or a hook such as that of
            ``os._exit()``, has begun the last flush. Then signals do nothing, until ``closed``.
        closed: whether a signal's last flush is over. Then signals have their default action."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.until = 0.0
        self.flushing = self.closing = self.closed = False


_end = _End()
_producers: Final[dict[int, Flushable]] = {}  # all open producers, by id()
_handlers: Final[dict[int, Any]] = {}  # signal → the handler before ours
_finalized = False
_hooked: Final[set[str]] = set()  # names of the functions that have a hook


def register(producer: Flushable, *, handle_sigterm: bool, handle_os_exit: bool) -> None:
    """Have ``producer`` flushed when the process ends, and emptied in forked children. With
    ``handle_sigterm``, also at signals (handlers are installed only in the main thread); with
    ``handle_os_exit``, also at ``os._exit()`` and ``os.exec…()``."""
    _producers[id(producer)] = producer
    if handle_sigterm:
        for number in NUMBERS:
            previous = _handler(number)
            if previous is signal.SIG_DFL or (number == signal.SIGTERM and callable(previous)):
                _install(number, previous)
        _hook(signal, "raise_signal", _before_raise)
        _hook(os, "kill", _before_kill)
    if handle_os_exit:
        _hook(os, "_exit", _before_exit)
        _hook(os, "execv", _before_exec)
        _hook(os, "execve", _before_exec)


def unregister(producer: Flushable) -> None:
    """Forget a closed producer; after the last, restore signal handlers (in the main thread)."""
    _producers.pop(id(producer), None)
    if not (_producers or _end.flushing or _end.closing):
        for number in NUMBERS:
            if _handler(number) is _on_signal:  # else the application has installed another
                signal.signal(number, _handlers.pop(number))


def hook_multiprocessing() -> None:
    """Register :func:`close_all` as a finalizer of ``multiprocessing``, once, if that module is
    imported; else do nothing. Each child has to call this again: it has cleared the finalizers."""
    global _finalized
    # Not imported here: that takes long, and only its children skip atexit.
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _finalized:
        _finalized = True
        util.Finalize(None, close_all, exitpriority=0)


def reinstall_handlers() -> None:
    """Install our handlers again for signals that have their default action, because servers and
    job queues reset the handlers in forked children. Has no effect outside the main thread."""
    for number in NUMBERS:
        if _handler(number) is signal.SIG_DFL:
            _install(number, signal.SIG_DFL)


def close_all() -> None:
    """Flush all producers at the process's end, for the longest exit timeout at most; close them.
    Calls of ``increment()`` in other threads block until ``_End.until``: too late to be stored."""
    _close(list(_producers.values()))


def wait_for_end() -> None:
    """Block the caller until ``_End.until`` if the process is ending: the caller's event came too
    late to be stored. Not blocked: threads of producers, and the thread that flushes at the end."""
    if (
        _end.thread is None
        or _end.thread == get_ident()
        # The end waits for the producer's threads, which get here by a log handler that counts.
        or in_producer_thread()
    ):
        return
    while time.monotonic() < _end.until:
        pause(POLL_SECONDS)


# --- flushing and closing --------------------------------------------------------------------


def _used() -> list[Flushable]:
    """Return the producers with which this process has counted."""
    return [each for each in list(_producers.values()) if not each.unused]


def _longest_timeout(producers: list[Flushable]) -> float:
    """Return the maximum of seconds that a flush of these producers may take."""
    return max((each.exit_timeout for each in producers), default=0.0)


def _flush(producers: list[Flushable]) -> float:
    """Flush all at once, for the longest exit timeout at most; return this deadline (monotonic)."""
    deadline = time.monotonic() + _longest_timeout(producers)
    waiting = []
    for producer in producers:
        with _logging_errors():
            waiting.append(producer.begin_flush(deadline))
    while waiting:
        unfinished = []
        for is_over in waiting:
            with _logging_errors():
                if not is_over():
                    unfinished.append(is_over)
        waiting = unfinished
        if waiting:
            sleep(POLL_SECONDS)
    return deadline


def _close(producers: list[Flushable]) -> None:
    block_greenlets()
    _end.until = time.monotonic() + _longest_timeout(producers) + GRACE_SECONDS
    _end.thread = get_ident()
    for producer in producers:
        producer.stop_counting()
    deadline = _flush(producers)
    for producer in producers:
        with _logging_errors():
            producer.close_at_exit(deadline)
    _end.until = time.monotonic() + GRACE_SECONDS


@contextmanager
def _logging_errors() -> Iterator[None]:
    """Log an exception that the ``with`` block raises, and suppress it."""
    try:
        yield
    except Exception as error:
        _log("internal_error", "at the end of the process:", level=logging.ERROR, bug=error)


# --- signals ---------------------------------------------------------------------------------


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Handle a signal. If the application has a handler, call it while a thread flushes; else a
    thread flushes and then ends the process. During the last flush, do nothing; after it, take the
    default action. Takes no lock: the main thread may hold it."""
    previous = _handlers.get(number)
    if _end.closed:
        _take_default_action(number)
    elif callable(previous) and not _end.closing:
        if not _end.flushing:
            _end.flushing = True
            if not _try_start(_flush_alongside, number):
                _end.flushing = False
        previous(number, frame)
    elif not _end.closing:
        _end.closing = True
        if not _try_start(_end_by_signal, number):
            _take_default_action(number)


def _try_start(target: Callable[..., None], *arguments: Any) -> bool:
    """Call ``target(*arguments)`` in a new thread. Return False if no thread can be started."""
    try:
        start_thread(target, arguments)
    except RuntimeError:
        return False
    return True


def _take_default_action(number: int) -> None:
    """End this process by the signal's default action, so that its parent sees the signal."""
    signal.signal(number, signal.SIG_DFL)
    _kill(os.getpid(), number)


def _flush_alongside(number: int) -> None:
    try:
        _flush(_used())
        _log_flushed(number)
    finally:
        _end.flushing = False


def _end_by_signal(number: int) -> None:
    bell = Bell()
    seconds = _longest_timeout(list(_producers.values()))
    try:
        # In another thread, since it logs: a log handler may block for ever.
        if not _try_start(_close_and_log, number, bell):
            _close_and_log(number, bell)
        bell.wait(seconds + CLOSING_SECONDS)
    finally:
        _end.closed = True
    _kill(os.getpid(), number)
    sleep(GRACE_SECONDS)
    # The main thread is busy in C code. A shell shows this status for the signal:
    _exit(128 + number)


def _close_and_log(number: int, bell: Bell) -> None:
    try:
        _close(_used())
        _log_flushed(number)
    finally:
        bell.ring()


def _log_flushed(number: int) -> None:
    _log("sigterm", f"flushed because of {signal.Signals(number).name}")


def _handler(number: int) -> Any:
    """Return a signal's handler, SIG_DFL or SIG_IGN; None for C code or outside the main thread."""
    if not in_main_thread():
        return None
    handler = signal.getsignal(number)
    return None if handler is signal.SIG_DFL and _caught_in_c(number) else handler


def _caught_in_c(number: int) -> bool:
    """Whether the process has a handler for a signal, Python's or of C code; False if unknown."""
    try:
        with open("/proc/self/status", "rb") as status:
            caught = next(line for line in status if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _install(number: int, previous: Any) -> None:
    if previous is _on_signal:
        return
    _handlers[number] = previous  # set first: the signal may arrive at once
    with suppress(ValueError):  # raised in the main thread of a subinterpreter
        signal.signal(number, _on_signal)


# --- functions that end the process ----------------------------------------------------------


def _hook(module: ModuleType, name: str, before: Callable[..., None]) -> None:
    """Replace ``module.name``, once, by one that first calls ``before`` with its own arguments."""
    if name in _hooked:
        return
    _hooked.add(name)
    original = getattr(module, name)

    @wraps(original)
    def hooked(*args: Any, **named: Any) -> Any:
        with _logging_errors():
            before(*args, **named)
        return original(*args, **named)

    hooked.__module__ = module.__name__  # for pickle
    setattr(module, name, hooked)


def _before_exit(*ignored: object, **named: object) -> None:
    if not _used():
        return
    try:
        _end.closing = True  # signals have no effect from now on: they must not cut the flush short
        for number in NUMBERS:
            if _handler(number) not in (signal.SIG_IGN, None):
                _install(number, signal.SIG_DFL)
        _close(_used())
    except BaseException:  # raised by a signal handler: the process ends nevertheless
        pass


def _before_exec(*ignored: object, **named: object) -> None:
    _flush(_used())
    for producer in _used():  # not closed: without such a program the process continues
        producer.log_loss()


def _before_raise(*numbers: int) -> None:
    if len(numbers) == 1 and _ends_by(numbers[0]):
        _before_exit()
        _end.closed = True
        if _handler(numbers[0]) is not None:
            signal.signal(numbers[0], signal.SIG_DFL)


def _ends_by(number: int) -> bool:
    """Whether the signal is in ``NUMBERS`` and would end the process: no handler but ours."""
    if number not in NUMBERS or number in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return False
    handler = signal.getsignal(number)
    if handler is _on_signal:
        return not callable(_handlers.get(number))
    return handler is signal.SIG_DFL and not _caught_in_c(number)


def _before_kill(*target: int) -> None:
    if target[:1] == (os.getpid(),):
        _before_raise(*target[1:])


def _in_child() -> None:
    global _finalized
    _finalized = False  # a child of multiprocessing clears its finalizers
    _end.thread = None
    _end.flushing = _end.closing = _end.closed = False
    for producer in list(_producers.values()):
        producer.start_over()


atexit.register(close_all)
os.register_at_fork(after_in_child=_in_child)
