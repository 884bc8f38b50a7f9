"""Signals that end the process: everything is flushed before they do.

SIGTERM flushes beside the app's own handler, if it has one. It, SIGHUP, SIGQUIT and SIGINT flush
before their default action ends the process. An ignored signal stays so.
"""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from countersink.producers import process_end
from countersink.producers.bell import Bell
from countersink.producers.journal import logger
from countersink.producers.primitives import in_main_thread, sleep, start_thread

Handler = Callable[[int, FrameType | None], Any]

NUMBERS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
CLOSING_SECONDS: Final = 5.0
"""How long closing may take beyond the exit timeout, before the process ends all the same."""

_kill = os.kill  # as it was before exit_hooks
_exit = os._exit


class _State:
    """What was installed in this process, and what has come."""

    def __init__(self) -> None:
        self.previous: dict[int, Any] = {}
        self.begin()

    def begin(self) -> None:
        """No signal has come in this process."""
        self.flushing = False
        self.ending = False
        self.ended = False


_state = _State()


def in_child() -> None:
    """This is a forked child."""
    _state.begin()


def install() -> None:
    """Put our handler where the app has none, and before the app's for SIGTERM."""
    for number in NUMBERS:
        previous = _handler(number)
        if previous is signal.SIG_DFL or (number == signal.SIGTERM and callable(previous)):
            _put(number, previous)


def install_anew() -> None:
    """Put our handler where a default came back, as in children of servers that reset them."""
    for number in NUMBERS:
        if _handler(number) is signal.SIG_DFL:
            _put(number, signal.SIG_DFL)


def uninstall() -> None:
    """Put back what was there, unless something else was installed since."""
    if _state.flushing or _state.ending:
        return
    for number in NUMBERS:
        if _handler(number) is _on_signal:
            signal.signal(number, _state.previous.pop(number))


def ends(number: int) -> bool:
    """Whether this signal, raised now by the process itself, ends it without any Python code."""
    if number not in NUMBERS or number in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return False
    handler = signal.getsignal(number)
    if handler is _on_signal:
        return not callable(_state.previous.get(number))
    return handler is signal.SIG_DFL and not _caught_in_c(number)


def shield() -> None:
    """Let no signal cut the last flush short; from now on they do nothing."""
    _state.ending = True
    for number in NUMBERS:
        if _handler(number) not in (signal.SIG_IGN, None):
            _put(number, signal.SIG_DFL)


def give_back(number: int) -> None:
    """Let this signal have its default action, now that everything is stored."""
    _state.ended = True
    if _handler(number) is not None:
        signal.signal(number, signal.SIG_DFL)


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
    _state.previous[number] = previous  # first: the signal may come at once
    try:
        signal.signal(number, _on_signal)
    except ValueError:  # a subinterpreter's main thread
        pass


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Runs in the main thread, between any two of its instructions: so it takes no lock."""
    previous = _state.previous.get(number)
    if _state.ended:
        _default(number)
    elif callable(previous) and not _state.ending:
        if not _state.flushing:
            _state.flushing = True
            if not _started(_flush_beside, number):
                _state.flushing = False
        previous(number, frame)
    elif not _state.ending:
        _state.ending = True
        if not _started(_end_by, number):
            _default(number)


def _started(target: Callable[[int], None], number: int) -> bool:
    """Start a thread; False: there is none to be had."""
    try:
        start_thread(target, (number,))
    except RuntimeError:
        return False
    return True


def _default(number: int) -> None:
    """The default action, so that the parent sees a process ended by this signal."""
    signal.signal(number, signal.SIG_DFL)
    _kill(os.getpid(), number)


def _flush_beside(number: int) -> None:
    try:
        process_end.flush_used()
        _say(number)
    finally:
        _state.flushing = False


def _end_by(number: int) -> None:
    bell = Bell()
    seconds = process_end.longest_timeout(list(process_end.producers.values()))
    try:
        try:
            # In a thread of its own, since it logs: a log may block for ever.
            start_thread(_close, (number, bell))
        except RuntimeError:  # there is none to be had
            _close(number, bell)
        bell.wait(seconds + CLOSING_SECONDS)
    finally:
        _state.ended = True
    _kill(os.getpid(), number)
    sleep(process_end.GRACE_SECONDS)
    # The main thread is deep in C: the status that a shell shows for this signal.
    _exit(128 + number)


def _close(number: int, bell: Bell) -> None:
    try:
        process_end.close_used()
        _say(number)
    finally:
        bell.ring()


def _say(number: int) -> None:
    logger.info("flushed because of %s", signal.Signals(number).name, extra={"action": "sigterm"})
