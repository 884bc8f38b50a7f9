"""``ReaderPool``: one thread, which reads the first chunks of each source, and the child processes
(``--jobs``), which read the further chunks of big sources; see ``read_ahead.py``.

A child's only connection to its parent is a pipe. The child ends when its parent ends, even if the
parent is killed. Tasks go to the children in turn, and the result of a child's task must be taken
before it gets its next task. So callers take results in the order of the tasks. If a child is
killed, :meth:`ChildTask.result` raises BackfillError; the pools of the standard library would wait
forever for a child that is killed while it writes its result.
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
_POLL_S: Final = 0.1
"""Seconds between two checks for a stop."""


class ChildTask:
    """A task that was given to a child process: the handle by which its result is taken, once.

    Args:
        pipe: connection to the child.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def result(self, stop: Callable[[], bool]) -> Any:
        """Wait for the result of the task, and return it. Return None if ``stop`` returns true
        before the result is there: then the child may still be working.

        Raises:
            BackfillError: the child process has ended before it sent a result.
            Exception: the task has raised this exception.
        """
        try:
            while not self._pipe.poll(_POLL_S):
                if stop():
                    return None
            found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise BackfillError(
                "a child process was killed, maybe for lack of memory: run this again with fewer"
                " --jobs to continue"
            ) from error
        if isinstance(found, Exception):
            raise found
        return found


class ReaderPool:
    """The thread and the child processes that read the chunks of a run. A context manager: at its
    end, it waits for the thread and kills the child processes.

    Args:
        jobs: number of child processes that read big sources.

    Attributes:
        jobs: number of child processes.
        thread: executor of the one thread.
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
        """Start the child processes, unless they are running. :meth:`submit` does so, too; an early
        start only saves time.
        """
        if not self._children:
            self._children = [_start_child() for _ in range(self.jobs)]

    def submit(self, task: Callable[[], object]) -> ChildTask:
        """Give a task to the next child, in turn, and return a handle that gives its result. Start
        the children if they are not running. The task must be picklable. The result of this child's
        previous task must have been taken before. If the child was killed, only the handle raises
        an error.
        """
        self.start()
        pipe, _ = self._children[self._turn % self.jobs]
        self._turn += 1
        with contextlib.suppress(OSError):  # the child was killed: ``result`` raises
            pipe.send(task)
        return ChildTask(pipe)

    def end_processes(self) -> None:
        """Kill the child processes. :meth:`submit` and :meth:`start` start new ones."""
        for pipe, process in self._children:
            pipe.close()
            process.kill()
            process.join()
        self._children = []


def _start_child() -> tuple[Connection, SpawnProcess]:
    ours, theirs = _SPAWN.Pipe()
    with theirs:
        process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
        resource_tracker.ensure_running()  # before the block: it changes blocked signals itself
        # The child keeps them blocked: a signal to the process group is handled by the parent,
        # which ends the child.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ours, process


def _serve(pipe: Connection) -> None:
    """Execute the tasks that come through ``pipe``, in a child process, and send back the result or
    the exception of each, until the parent closes its end of the pipe or dies.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                found = task()
            except Exception as error:
                found = error
            pipe.send(found)
