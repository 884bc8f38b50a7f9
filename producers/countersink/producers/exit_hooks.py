"""Functions of the standard library that end the process without ``atexit``: flushed before.

``os._exit``, which the work horses of RQ, the pools of Celery and many forked children end by;
``os.execv`` and ``os.execve``, which all of ``os.exec…`` use; ``signal.raise_signal`` and
``os.kill`` of the process's own id, by which servers such as uvicorn let a signal have its default
action once they have shut down. Each is replaced as long as a producer is open, by a function that
flushes and then calls the original. A process that has counted nothing notices nothing.
"""

import os
import signal
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, Final

from countersink.producers import end_signals, process_end
from countersink.producers.journal import logger


class _Hook:
    """One function, and what is done before it."""

    def __init__(self, module: ModuleType, name: str, before: Callable[..., None]) -> None:
        self._module = module
        self._name = name
        self._before = before
        self._original: Any = None
        self._function: Any = None

    def install(self) -> None:
        """Put ours before the function that is there now, unless it is before one already."""
        if self._function is not None:
            return
        original = getattr(self._module, self._name)
        before = self._before

        @wraps(original)
        def hooked(*args: Any, **named: Any) -> Any:
            try:
                before(*args, **named)
            except Exception:
                logger.exception("at the end of the process:", extra={"action": "internal_error"})
            return original(*args, **named)

        hooked.__module__ = self._module.__name__  # where pickle finds it, as it does the original
        self._original, self._function = original, hooked
        setattr(self._module, self._name, hooked)

    def uninstall(self) -> None:
        """Put the original back, unless somebody else has replaced ours."""
        if self._function is not None and getattr(self._module, self._name) is self._function:
            setattr(self._module, self._name, self._original)
            self._function = None


def _close(*ignored: object, **named: object) -> None:
    if not process_end.any_used():
        return
    try:
        end_signals.shield()
        process_end.close_used()
    except BaseException:  # of a signal handler that raises: the process ends all the same
        pass


def _flush(*ignored: object, **named: object) -> None:
    process_end.flush_before_exec()


def _raise(*numbers: int) -> None:
    if len(numbers) == 1 and end_signals.ends(numbers[0]):
        _close()
        end_signals.give_back(numbers[0])


def _kill(*target: int) -> None:
    if target[:1] == (os.getpid(),):
        _raise(*target[1:])


EXITS: Final = (
    _Hook(os, "_exit", _close),
    _Hook(os, "execv", _flush),
    _Hook(os, "execve", _flush),
)
SIGNALS: Final = (_Hook(signal, "raise_signal", _raise), _Hook(os, "kill", _kill))


def install(hooks: tuple[_Hook, ...]) -> None:
    """Flush before these functions."""
    for hook in hooks:
        hook.install()


def uninstall() -> None:
    """Put all of them back."""
    for hook in EXITS + SIGNALS:
        hook.uninstall()
