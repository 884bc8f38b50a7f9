"""Processes of the product that are forked off one which has imported it: each begins in 20 ms
instead of a third of a second. Otherwise they are like those of `tests.support.processes`.
"""

import ctypes
import faulthandler
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.support.processes import COUNTERSINK, PROJECT, Child, Children, child_environment

PRELOADED: Final = [
    *(f"tests.support.{name}" for name in ("run_worker", "run_moves", "run_chunks", "run_seller")),
    *("tests.support.run_table_writer", "tests.support.scheduled"),
    *(f"countersink.cli.commands.{name}" for name in ("count.backfill", "count.backfills")),
    *(f"countersink.cli.commands.{name}" for name in ("run.schedules", "run.worker")),
]
_PDEATHSIG: Final = 1


class _Process:
    """A forked process with the methods of `subprocess.Popen` that a `Child` uses."""

    stdin = None

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self._reading = threading.Lock()  # the status can be read once; proxies kill from threads
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        with self._reading:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedChild(Child):
    """A `Child` that runs the ``main`` of a module."""

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], name: str
    ) -> None:
        self.name = name
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by reap)
        output = f"/proc/{os.getpid()}/fd/{self._output.fileno()}"
        variables = {**child_environment(), **environment}
        process = _context().Process(
            target=_main, args=(module, list(arguments), variables, output), daemon=True
        )
        process.start()
        made: Any = _Process(process)
        self._process = made


class ForkedChildren(Children):
    """Starts Python modules and the `countersink` command forked, and anything else as ever."""

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        name: str = "child",
        directory: Path = PROJECT,
        lines_in: bool = False,
        stderr: int | None = None,
    ) -> Child:
        """Start a process; `main` of a module is called as ``python -m`` does it."""
        if tuple(arguments[:3]) == COUNTERSINK:
            module = "countersink.cli.entry"
        elif arguments[1] == "-m":
            module = arguments[2]
        else:
            module = ""
        if not module or lines_in or stderr is not None or directory != PROJECT:
            return super().start(
                arguments,
                environment=environment,
                name=name,
                directory=directory,
                lines_in=lines_in,
                stderr=stderr,
            )
        child = ForkedChild(module, arguments[3:], environment or {}, name)
        self._children.append(child)
        return child


@cache
def _context() -> ForkServerContext:
    """The server that processes are forked off; one for each test process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with patch.dict(os.environ, child_environment(), clear=True):
        forkserver.ensure_running()
    return context


def _main(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], output: str
) -> None:
    """Call `main` of a module in a process of its own."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.chdir(PROJECT)
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.enable()
    sys.argv = [module, *arguments]
    sys.exit(importlib.import_module(module).main())
