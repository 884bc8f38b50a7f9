"""``ReaderPool``: the thread and the child processes (``--jobs``) that read the chunks of a run.

Children have no connection to anything but a pipe to this process, and end with it, however that
ends. Each gets a task when its turn comes, and gives the result back before it gets the next one:
so results are taken in the order in which tasks were given. A pool of the standard library would
wait for ever for one that is killed while it writes its result.
"""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Final, Self

from countersink.backfill.errors import BackfillError
from countersink.runtime.process import SIGNALS

_SPAWN: Final = multiprocessing.get_context("spawn")
_LOOK_S: Final = 0.1
"""Seconds between two looks whether to stop."""


class Handed:
    """A task that a child process was given.

    Args:
        pipe: to it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def result(self, stop: Callable[[], bool]) -> Any:
        """What the task returned, or None once ``stop`` says so.

        Raises:
            BackfillError: the child has ended.
            Exception: as the task.
        """
        try:
            while not self._pipe.poll(_LOOK_S):
                if stop():
                    return None
            found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise BackfillError(
                "a child process was killed, maybe for want of memory: run it again, with fewer"
                " --jobs, and it goes on"
            ) from error
        if isinstance(found, Exception):
            raise found
        return found


class ReaderPool:
    """The thread, and the child processes, that read the chunks of a run; a context manager.

    Args:
        jobs: how many processes read big sources.

    Attributes:
        jobs: how many there are.
        thread: the thread.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.thread: Executor = ThreadPoolExecutor(1)
        self._children: list[tuple[Connection, SpawnProcess]] = []
        self._turn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.shutdown()
        self.end_processes()

    def start(self) -> None:
        """Start the processes, unless they are there."""
        if not self._children:
            self._children = [_started() for _ in range(self.jobs)]

    def hand(self, task: Callable[[], object]) -> Handed:
        """Give a task, which can be pickled, to the child whose turn it is. At most one task of
        each child may be without its result.
        """
        self.start()
        pipe, _ = self._children[self._turn % self.jobs]
        self._turn += 1
        with contextlib.suppress(OSError):  # one that was killed gives no result
            pipe.send(task)
        return Handed(pipe)

    def end_processes(self) -> None:
        """End them at once, whatever they are doing; they are started again for the next task."""
        for pipe, process in self._children:
            pipe.close()
            process.kill()
            process.join()
        self._children = []


def _started() -> tuple[Connection, SpawnProcess]:
    ours, theirs = _SPAWN.Pipe()
    with theirs:
        process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
        resource_tracker.ensure_running()  # here: it changes what is blocked
        # For good in the child: what a group is sent is for this process, which ends it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ours, process


def _serve(pipe: Connection) -> None:
    """Do tasks until the other end of the pipe is closed, by the parent or by its death."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                found = task()
            except Exception as error:
                found = error
            pipe.send(found)
