"""Threads, locks and waiting (``Thread``, ``WorkThread``, ``Bell``, ``pause``) that are the
operating system's even where gevent or eventlet has patched Python.

Both put their own into ``threading``, ``_thread`` and ``time``, some apps before they import this
package and some after. Greenlets that wait for real locks freeze each other, and a "thread" that is
a greenlet stands still while the app computes. So the threads of a producer are real ones, which
use the locks below: taken from copies of the built-in modules that nobody else can reach. A socket
of gevent or eventlet that is made in such a thread gets an event loop of its own there.
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
"""All but those of a thread's own faults."""


def start_thread(target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Start a thread that ``threading`` knows nothing of.

    Raises:
        RuntimeError: there is none to be had.
    """
    _threads.start_new_thread(_run, (target, arguments))


def _run(target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    # They are the app's threads' to take: this one would take those that all of them block.
    signal.pthread_sigmask(signal.SIG_BLOCK, _APPS_SIGNALS)
    target(*arguments)


def greened() -> bool:
    """Whether gevent or eventlet has replaced ``time.sleep``, and so most likely all the rest."""
    return not isinstance(time.sleep, BuiltinFunctionType)


BREATH_SECONDS: Final = 0.0001
"""A real pause: releasing the interpreter lock alone would win it back before a waiting thread has
woken up.
"""

_ending = False


def stop_switching() -> None:
    """The process ends: from now on its threads wait as a whole, so that no greenlet counts, and
    answers, what nobody will store.
    """
    global _ending
    _ending = True


def switches() -> bool:
    """Whether who waits in a thread of the app's lets other greenlets go on."""
    return greened() and not _ending


def pause(seconds: float) -> None:
    """Sleep in a thread of the app's: other greenlets go on."""
    if switches():
        try:
            time.sleep(seconds)
            return
        except Exception:
            pass  # not to be had in the event loop itself, where signal handlers may run
    sleep(seconds)


def breathe() -> None:
    """Let the app's threads run."""
    sleep(BREATH_SECONDS)


def in_main_thread() -> bool:
    """Whether signal handlers run in this thread; false where that cannot be told."""
    if greened():
        # gevent and eventlet say which greenlet this is. On Linux:
        return threading.get_native_id() == os.getpid()
    return get_ident() == threading.main_thread().ident


_here: Final = _threads._local()  # each thread has its own attributes, as of threading.local


def in_own_thread() -> bool:
    """Whether this is a :class:`Thread`."""
    return getattr(_here, "own", False)


def _load_hub() -> None:
    """Have gevent import all that a hub consists of, before a second thread makes one.

    The locks that guard imports are gevent's then, too: two threads that import the same would lock
    each other up. eventlet has its hub when it patches.
    """
    gevent = sys.modules.get("gevent")
    if gevent is not None:
        hub = gevent.get_hub()
        _ = hub.threadpool, hub.resolver  # made when they are asked for


class Thread:
    """A daemon thread of the operating system, which does :meth:`run`.

    Args:
        name: for debuggers; lost where ``threading`` has no real threads to offer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._running = Lock()  # held by a thread that ``threading`` knows nothing of

    def run(self) -> None:
        """What it does."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: there is no thread to be had.
        """
        if not greened():
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
        """Whether it has begun and not ended."""
        return self._running.locked() if self._thread is None else self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most ``timeout`` seconds unless that is None."""
        if self._thread is not None:
            self._thread.join(timeout)
        elif self._running.acquire(timeout=-1 if timeout is None else timeout):
            self._running.release()

    def _run(self) -> None:
        _here.own = True
        self.run()

    def _run_unknown(self) -> None:
        try:
            self._run()
        finally:
            self._running.release()


PAUSE_SECONDS: Final = 0.001
"""Between two looks of a greenlet."""


class Bell:
    """An event that one thread waits for and any thread sets.

    Neither a ``Condition``, whose lock a signal handler could meet again in the thread that it
    interrupts, nor a ``SimpleQueue``, whose ``get(timeout)`` of Python 3.11 waits for ever after a
    handler that took longer than the time-out.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the wait that is under way, or the next one."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # rung already

    def wait(self, seconds: float | None) -> bool:
        """Wait until it rings, at most ``seconds`` unless that is None; whether it has."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))

    def wait_in_app(self, seconds: float) -> bool:
        """The same in a thread of the app's: under gevent and eventlet other greenlets go on."""
        if not switches():
            return self.wait(seconds)
        deadline = time.monotonic() + seconds
        while not self.wait(0):
            if time.monotonic() >= deadline:
                return False
            pause(PAUSE_SECONDS)
        return True


class WorkThread(Thread):
    """A thread that does its work when it is rung for.

    Callers do it themselves when no thread is to be had.

    Attributes:
        stopping: it is to end soon.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.stopping = False
        self.bell = Bell()
        # A signal handler that interrupts a caller who works finds `_busy` set.
        self._working = RLock()
        self._busy = False

    def stop(self) -> None:
        """End as soon as what is under way has ended."""
        self.stopping = True
        self.bell.ring()

    def work(self) -> None:
        """Do what there is to do, unless this thread is doing so already."""
        with self._working:
            if self._busy:
                return
            self._busy = True
            try:
                self.work_once()
            finally:
                self._busy = False

    def work_once(self) -> None:
        """The work."""
        raise NotImplementedError
