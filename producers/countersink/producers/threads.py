"""Threads, locks and waits (``Thread``, ``WorkThread``, ``Bell``) that are those of the operating
system even where gevent or eventlet has patched Python; and waits in threads of the application,
during which other greenlets run (``pause``, ``Bell.wait_in_app``).

gevent and eventlet replace names in ``threading``, ``_thread`` and ``time``, in some applications
before this package is imported, in others after. A greenlet that waits for a real lock blocks all
greenlets of its thread. A greenlet used instead of a thread makes no progress while the application
computes. So a producer's threads are real threads, with locks from private copies of the built-in
modules. A socket of gevent or eventlet that is created in such a thread gets an event loop of its
own there.
"""

import os
import signal
import sys
import threading
import time
from _queue import Empty as Empty  # not from `queue`, whose names can be replaced
from _queue import SimpleQueue as SimpleQueue
from collections.abc import Callable
from importlib.util import module_from_spec
from types import BuiltinFunctionType
from typing import Any, Final


def _copy(name: str) -> Any:
    spec = sys.modules[name].__spec__
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_threads: Final = _copy("_thread")

Lock: Final[Callable[[], threading.Lock]] = _threads.allocate_lock
RLock: Final[Callable[[], threading.RLock]] = _threads.RLock
get_ident: Final[Callable[[], int]] = _threads.get_ident
sleep: Final[Callable[[float], None]] = _copy("time").sleep

_APPS_SIGNALS: Final = signal.valid_signals() - {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}
"""All signals except those that report a fault of the thread itself: a producer's threads block
these signals, so that the application's threads receive them."""


def start_thread(target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Call ``target(*arguments)`` in a new thread of the operating system. The thread receives no
    signals of the application and does not appear in ``threading.enumerate()``. No lock of Python's
    ``threading`` is taken, so that a signal handler may call this.

    Raises:
        RuntimeError: the limit on threads is reached, or the interpreter is ending.
    """
    _threads.start_new_thread(_run, (target, arguments))


def _run(target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    # Else this thread would receive signals that all threads of the application block.
    signal.pthread_sigmask(signal.SIG_BLOCK, _APPS_SIGNALS)
    target(*arguments)


def is_monkeypatched() -> bool:
    """Return whether ``time.sleep`` is no longer the built-in function: gevent or eventlet has
    replaced it, and most likely the names in ``threading`` and ``_thread``, too.
    """
    return not isinstance(time.sleep, BuiltinFunctionType)


LET_RUN_SECONDS: Final = 0.0001
"""Seconds of a pause in which other threads run. Only releasing the interpreter lock is not enough:
this thread would take it again before a waiting thread has woken up."""

_ending = False


def block_greenlets() -> None:
    """Make each later :func:`pause` and :meth:`Bell.wait_in_app` block all greenlets of the thread
    that calls it. This cannot be undone. Called before the last flush of the process.
    Otherwise a greenlet that runs during such a wait could count an event and confirm it to a
    client, and the event would be lost.
    """
    global _ending
    _ending = True


def greenlets_may_run() -> bool:
    """Whether a wait in a thread of the application lets other greenlets run: gevent or eventlet is
    in use, and :func:`block_greenlets` was not called.
    """
    return is_monkeypatched() and not _ending


def pause(seconds: float) -> None:
    """Sleep for ``seconds`` in a thread of the application. Other greenlets run meanwhile if
    :func:`greenlets_may_run` returns True and the caller is not the event loop itself;
    otherwise the whole thread sleeps.
    """
    if greenlets_may_run():
        try:
            time.sleep(seconds)
            return
        except Exception:
            pass  # raised in the event loop itself, where signal handlers may run
    sleep(seconds)


def let_app_run() -> None:
    """Sleep for :data:`LET_RUN_SECONDS` (0.1 ms), to give other threads the interpreter lock."""
    sleep(LET_RUN_SECONDS)


def in_main_thread() -> bool:
    """Whether the current thread is the one in which Python runs signal handlers. False if this is
    unknown: with gevent or eventlet on another system than Linux.
    """
    if is_monkeypatched():
        # The patched get_ident() identifies the greenlet. The ids are equal on Linux only.
        return threading.get_native_id() == os.getpid()
    return get_ident() == threading.main_thread().ident


_thread_state: Final = _threads._local()  # as threading.local


def in_producer_thread() -> bool:
    """Whether the current thread is a :class:`Thread` of a producer: the one that folds events,
    the one that sends rows to Redis, or the one that writes the spool.
    """
    return getattr(_thread_state, "is_producer", False)


def _load_hub() -> None:
    """Make gevent import all modules of its hub (its event loop) before a second thread creates a
    hub. Otherwise two threads that import the same module could deadlock, because gevent replaces
    the import locks, too.

    Does nothing if gevent is not imported: eventlet creates its hub when it patches Python.
    """
    gevent = sys.modules.get("gevent")
    if gevent is not None:
        hub = gevent.get_hub()
        _ = hub.threadpool, hub.resolver  # created at the first access


class Thread:
    """A daemon thread of the operating system that runs :meth:`run`.

    Args:
        name: the thread's name, for debuggers; it has no effect under gevent and eventlet.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._running = Lock()  # held while a thread that ``threading`` does not list runs

    def run(self) -> None:
        """Do the work of the thread; called in the new thread. Subclasses override it."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread, which calls :meth:`run`.

        Raises:
            RuntimeError: the limit on threads is reached, or the interpreter is ending.
        """
        if not is_monkeypatched():
            self._thread = threading.Thread(
                target=_run, args=(self._run, ()), name=self._name, daemon=True
            )
            self._thread.start()
            return
        _load_hub()
        self._running.acquire()
        try:
            start_thread(self._run_unknown, ())
        except RuntimeError:
            self._running.release()
            raise

    def is_alive(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._running.locked() if self._thread is None else self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, but at most ``timeout`` seconds; None sets no limit.
        Does not wait for a thread that was not started.
        """
        if self._thread is not None:
            self._thread.join(timeout)
        elif self._running.acquire(timeout=-1 if timeout is None else timeout):
            self._running.release()

    def _run(self) -> None:
        _thread_state.is_producer = True
        self.run()

    def _run_unknown(self) -> None:
        try:
            self._run()
        finally:
            self._running.release()


PAUSE_SECONDS: Final = 0.001
"""Seconds between checks in which a waiting greenlet looks whether the bell has rung."""


class Bell:
    """A flag that any thread sets (rings) and that one thread waits for; the wait resets it.

    It is not a ``Condition``: a signal handler that rings would deadlock if it interrupts a thread
    that holds the condition's lock. It is not a ``SimpleQueue``: in Python 3.11 its
    ``get(timeout)`` waits for ever after a signal handler that took longer than the time-out.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Set the flag. The thread that waits for it continues immediately; if no thread waits, the
        next wait ends immediately.
        """
        try:
            self._lock.release()
        except RuntimeError:
            pass  # rung already

    def wait(self, seconds: float | None) -> bool:
        """Wait until the bell rings, but at most ``seconds``; None sets no limit. Return True if it
        rang, False if the time passed. If the bell has rung since the last wait, return True
        immediately.
        """
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))

    def wait_in_app(self, seconds: float) -> bool:
        """Wait in a thread of the application until the bell rings, but at most ``seconds``. Return
        True if it rang, False if the time passed. Other greenlets run meanwhile if
        :func:`greenlets_may_run` returns True and the caller is not the event loop itself.
        """
        if not greenlets_may_run():
            return self.wait(seconds)
        deadline = time.monotonic() + seconds
        while not self.wait(0):
            if time.monotonic() >= deadline:
                return False
            pause(PAUSE_SECONDS)
        return True


class WorkThread(Thread):
    """The base class of a producer's send thread and spool thread. Until ``stopping``, their
    ``run`` repeats two steps: it waits until the bell rings, or for a time, and then calls
    :meth:`work` if work is due. If the threads cannot be started, a flush calls :meth:`work`
    itself.

    Attributes:
        stopping: whether :meth:`stop` was called.
        bell: rung to make the thread work.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.stopping = False
        self.bell = Bell()
        # `_busy` is set for a signal handler that interrupts a caller during the work.
        self._working = RLock()
        self._busy = False

    def stop(self) -> None:
        """Set ``stopping`` and ring the bell, so that the thread ends after its current round."""
        self.stopping = True
        self.bell.ring()

    def work(self) -> None:
        """Call :meth:`work_once` in the caller's thread. If another thread is inside it, first wait
        until that call ends. If this thread is inside it already, because a signal handler has
        interrupted the work and calls this, do nothing.
        """
        with self._working:
            if self._busy:
                return
            self._busy = True
            try:
                self.work_once()
            finally:
                self._busy = False

    def work_once(self) -> None:
        """Do one round of the work, such as sending rows to Redis. Subclasses override it."""
        raise NotImplementedError
