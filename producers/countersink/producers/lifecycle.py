"""Flushing all producers when a process exits, calls ``os._exit`` or ``exec``, or gets a signal
(SIGTERM, SIGHUP, SIGQUIT, SIGINT), and emptying them in a forked child; how long an end may take.

Every end of the process that Python sees flushes every open producer:

- an exit, by ``atexit``, and, since children of ``multiprocessing`` skip that, by a finalizer of
  ``multiprocessing`` where that module is in use;
- SIGTERM, beside the app's own handler, if it has one; SIGTERM, SIGHUP, SIGQUIT and SIGINT, before
  their default action ends the process. An ignored signal stays so;
- functions of the standard library that end the process without ``atexit``: ``os._exit``, which the
  work horses of RQ, the pools of Celery and many forked children end by; ``os.execv`` and
  ``os.execve``, which all of ``os.exec…`` use; ``signal.raise_signal`` and ``os.kill`` of the
  process's own id, by which servers such as uvicorn let a signal have its default action once they
  have shut down. Each is replaced, once a producer wants that, by a function that flushes the open
  ones and then calls the original. A process that has counted nothing notices nothing.

A forked child begins with empty producers.
"""

import atexit
import encodings.idna  # noqa: F401  (see the end of this module)
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
    get_ident,
    in_main_thread,
    in_own_thread,
    pause,
    sleep,
    start_thread,
    stop_switching,
)
from countersink.runtime.log import Log

_log = Log(logging.getLogger("countersink.producers"))

NUMBERS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
"""The signals that are flushed at."""
GRACE_SECONDS: Final = 2.0
"""How long after a last flush a process may take to be gone."""
POLL_SECONDS: Final = 0.005
"""Between two looks whether the producers are flushed."""
CLOSING_SECONDS: Final = 5.0
"""How long closing at a signal may take beyond the exit timeout, before the process ends all the
same.
"""

_kill = os.kill  # as they were before they were replaced
_exit = os._exit


class Flushable(Protocol):
    """A producer, as the end of its process and a fork see it."""

    @property
    def exit_timeout(self) -> float:
        """Seconds that a flush at the end of the process may take."""

    @property
    def unused(self) -> bool:
        """Whether nothing was counted in this process."""

    def begin_flush(self, deadline: float) -> Callable[[], bool]:
        """Begin a flush; what is returned is called until it says that the flush is over, done or
        not, which is so from the monotonic time ``deadline`` on.
        """

    def stop_counting(self) -> None:
        """Accept no more: later increments are dropped instead of raising, and do not return if the
        process is about to end.
        """

    def close_at_exit(self, deadline: float) -> None:
        """Close until the monotonic time ``deadline``."""

    def tell_of_loss(self) -> None:
        """Say, if it is so, that what was not stored is lost as the process ends now."""

    def start_over(self) -> None:
        """Begin empty: the parent of a forked child sends what it had accepted."""


class _End:
    """How far this process is with its end.

    Attributes:
        thread: which thread is about to end it; ``until``: how long others wait for that.
        flushing: a signal's flush beside the app's own handler is under way.
        closing: the last flush is under way, and signals no longer do anything.
        closed: it is over: signals have their default action.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.until = 0.0
        self.flushing = self.closing = self.closed = False


_end = _End()
_producers: Final[dict[int, Flushable]] = {}  # the open ones
_handlers: Final[dict[int, Any]] = {}  # signal → what was there before ours
_finalized = False
_hooked: Final[set[str]] = set()  # the functions that have a hook


def register(producer: Flushable, *, handle_sigterm: bool, handle_os_exit: bool) -> None:
    """Flush ``producer`` when the process ends, and empty it in forked children."""
    _producers[id(producer)] = producer
    if handle_sigterm:
        for number in NUMBERS:
            previous = _handler(number)
            if previous is signal.SIG_DFL or (number == signal.SIGTERM and callable(previous)):
                _put(number, previous)
        _hook(signal, "raise_signal", _before_raise)
        _hook(os, "kill", _before_kill)
    if handle_os_exit:
        _hook(os, "_exit", _before_exit)
        _hook(os, "execv", _before_exec)
        _hook(os, "execve", _before_exec)


def forget(producer: Flushable) -> None:
    """``producer`` is closed."""
    _producers.pop(id(producer), None)
    if _producers:
        return
    if not (_end.flushing or _end.closing):
        for number in NUMBERS:
            if _handler(number) is _on_signal:  # else something else was installed since
                signal.signal(number, _handlers.pop(number))


def use_multiprocessing() -> None:
    """Have ``multiprocessing``, if it is in use, flush at the end of this process."""
    global _finalized
    # Not imported here: it is slow, and an app that does not use it has no children that skip
    # atexit.
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _finalized:
        _finalized = True
        util.Finalize(None, close_all, exitpriority=0)


def handle_signals_anew() -> None:
    """Flush at signals whose default action came back since a producer was made, as in children of
    servers and of job queues, which reset them; or that could not be had in the thread that made
    it.
    """
    for number in NUMBERS:
        if _handler(number) is signal.SIG_DFL:
            _put(number, signal.SIG_DFL)


def close_all() -> None:
    """Store everything, all within the longest of the exit timeouts: the process ends.

    Meanwhile calls of ``increment()`` by other threads wait for the end, so that none returns that
    is not stored.
    """
    _close(list(_producers.values()))


def wait_for_end() -> None:
    """For a call that came too late to be stored: it does not return if the process is ending."""
    if (
        _end.thread is None
        or _end.thread == get_ident()
        # The end waits for our own threads, which may get here by a log handler that counts.
        or in_own_thread()
    ):
        return
    while time.monotonic() < _end.until:
        pause(POLL_SECONDS)


# --- flushing and closing --------------------------------------------------------------------


def _used() -> list[Flushable]:
    """Those that have counted in this process."""
    return [each for each in list(_producers.values()) if not each.unused]


def _longest_timeout(everyone: list[Flushable]) -> float:
    """Seconds that a flush of them may take."""
    return max((each.exit_timeout for each in everyone), default=0.0)


def _flush(everyone: list[Flushable]) -> float:
    """Flush the producers, all at once: none waits for another's Redis. Until when, on the
    monotonic clock, that took at most.
    """
    deadline = time.monotonic() + _longest_timeout(everyone)
    waiting = []
    for producer in everyone:
        with _complaining():
            waiting.append(producer.begin_flush(deadline))
    while waiting:
        left = []
        for over in waiting:
            with _complaining():
                if not over():
                    left.append(over)
        waiting = left
        if waiting:
            sleep(POLL_SECONDS)
    return deadline


def _close(everyone: list[Flushable]) -> None:
    stop_switching()
    _end.until = time.monotonic() + _longest_timeout(everyone) + GRACE_SECONDS
    _end.thread = get_ident()
    for producer in everyone:
        producer.stop_counting()
    deadline = _flush(everyone)
    for producer in everyone:
        with _complaining():
            producer.close_at_exit(deadline)
    _end.until = time.monotonic() + GRACE_SECONDS


@contextmanager
def _complaining() -> Iterator[None]:
    """Log an exception of the block instead of raising it."""
    try:
        yield
    except Exception as error:
        _log("internal_error", "at the end of the process:", level=logging.ERROR, bug=error)


# --- signals ---------------------------------------------------------------------------------


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Runs in the main thread, between any two of its instructions: so it takes no lock."""
    previous = _handlers.get(number)
    if _end.closed:
        _default(number)
    elif callable(previous) and not _end.closing:
        if not _end.flushing:
            _end.flushing = True
            if not _started(_flush_beside, number):
                _end.flushing = False
        previous(number, frame)
    elif not _end.closing:
        _end.closing = True
        if not _started(_end_by, number):
            _default(number)


def _started(target: Callable[..., None], *arguments: Any) -> bool:
    """Start a thread; False: there is none to be had."""
    try:
        start_thread(target, arguments)
    except RuntimeError:
        return False
    return True


def _default(number: int) -> None:
    """The default action, so that the parent sees a process ended by this signal."""
    signal.signal(number, signal.SIG_DFL)
    _kill(os.getpid(), number)


def _flush_beside(number: int) -> None:
    try:
        _flush(_used())
        _say(number)
    finally:
        _end.flushing = False


def _end_by(number: int) -> None:
    bell = Bell()
    seconds = _longest_timeout(list(_producers.values()))
    try:
        # In a thread of its own, since it logs: a log may block for ever.
        if not _started(_close_for, number, bell):
            _close_for(number, bell)
        bell.wait(seconds + CLOSING_SECONDS)
    finally:
        _end.closed = True
    _kill(os.getpid(), number)
    sleep(GRACE_SECONDS)
    # The main thread is deep in C: the status that a shell shows for this signal.
    _exit(128 + number)


def _close_for(number: int, bell: Bell) -> None:
    try:
        _close(_used())
        _say(number)
    finally:
        bell.ring()


def _say(number: int) -> None:
    _log("sigterm", f"flushed because of {signal.Signals(number).name}")


def _handler(number: int) -> Any:
    """The handler; None: it was not installed from Python, or this thread cannot change it."""
    if not in_main_thread():
        return None
    handler = signal.getsignal(number)
    return None if handler is signal.SIG_DFL and _caught_in_c(number) else handler


def _caught_in_c(number: int) -> bool:
    """Whether a handler is there that Python knows nothing of: of faulthandler, uWSGI, a server in
    Rust. Only Linux tells.
    """
    try:
        with open("/proc/self/status", "rb") as status:
            caught = next(line for line in status if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _put(number: int, previous: Any) -> None:
    if previous is _on_signal:
        return
    _handlers[number] = previous  # first: the signal may come at once
    with suppress(ValueError):  # a subinterpreter's main thread
        signal.signal(number, _on_signal)


# --- functions that end the process ----------------------------------------------------------


def _hook(module: ModuleType, name: str, before: Callable[..., None]) -> None:
    """Put ours before the function that is there now, for good."""
    if name in _hooked:
        return
    _hooked.add(name)
    original = getattr(module, name)

    @wraps(original)
    def hooked(*args: Any, **named: Any) -> Any:
        with _complaining():
            before(*args, **named)
        return original(*args, **named)

    hooked.__module__ = module.__name__  # where pickle finds it, as it does the original
    setattr(module, name, hooked)


def _before_exit(*ignored: object, **named: object) -> None:
    if not _used():
        return
    try:
        _end.closing = True  # no signal cuts the last flush short; from now on they do nothing
        for number in NUMBERS:
            if _handler(number) not in (signal.SIG_IGN, None):
                _put(number, signal.SIG_DFL)
        _close(_used())
    except BaseException:  # of a signal handler that raises: the process ends all the same
        pass


def _before_exec(*ignored: object, **named: object) -> None:
    _flush(_used())
    for producer in _used():  # unless the process goes on, for there is no such program
        producer.tell_of_loss()


def _before_raise(*numbers: int) -> None:
    if len(numbers) == 1 and _ends_by(numbers[0]):
        _before_exit()
        _end.closed = True
        if _handler(numbers[0]) is not None:
            signal.signal(numbers[0], signal.SIG_DFL)


def _ends_by(number: int) -> bool:
    """Whether this signal, raised now by the process itself, ends it without any Python code."""
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

# Why this module imports encodings.idna: looking up a host's name does so, the first time, in the
# send thread. A child forked at that moment could never look up a host's name again.
