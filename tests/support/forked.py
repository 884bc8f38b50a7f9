"""Processes of Python that are forked off one which has imported what they use: each begins in
20 ms instead of a third of a second.

Otherwise they are like those of `tests.support.processes`: the main program is run as `python -c`
runs it, and the process ends as any other does.
"""

import builtins
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from tests.support.processes import COUNTERSINK, MAIN, PROJECT, Child, Children, child_environment

PRELOADED: Final = (
    *(f"tests.support.{name}" for name in ("run_worker", "run_moves", "run_chunks", "run_seller")),
    *("tests.support.run_table_writer", "tests.support.scheduled"),
    *(f"countersink.cli.commands.{name}" for name in ("backfill", "backfills", "processes")),
)
MODULE: Final = "import sys; from {} import main; sys.exit(main())"
_PDEATHSIG: Final = 1


class _Process:
    """A forked process with the methods of `subprocess.Popen` that a `Child` uses."""

    def __init__(self, told: int, stdin: IO[bytes] | None) -> None:
        self.told = os.fdopen(told)
        self.stdin = stdin
        self.pid = int(self.told.readline())
        self._status: int | None = None
        self._reading = threading.Lock()  # the status can be read once; proxies kill from threads

    def poll(self) -> int | None:
        with self._reading:
            if self._status is None and self._is_told(0):
                self._status = int(self.told.readline())
            return self._status

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            self._is_told(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return status

    def _is_told(self, timeout: float | None) -> bool:
        return bool(select.select([self.told], [], [], timeout)[0])

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedChild(Child):
    """A `Child` that runs a script, which finds `arguments` in `sys.argv[1:]`."""

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        *,
        preloaded: tuple[str, ...] = PRELOADED,
        environment: Mapping[str, str] | None = None,
        name: str = "child",
        directory: Path = PROJECT,
        lines_in: bool = False,
        stderr: int | None = None,
    ) -> None:
        self.name = name
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by reap)
        variables = {**child_environment(), **(environment or {})}
        request = (script, ["-c", *arguments], variables, str(directory))
        output = self._output.fileno()
        theirs, stdin = os.pipe()
        told, tell = os.pipe()
        descriptors = [theirs, output, output if stderr is None else stderr, tell]
        socket.send_fds(_server(preloaded)[1], [json.dumps(request).encode()], descriptors)
        os.close(theirs)
        os.close(tell)
        writing = os.fdopen(stdin, "wb")
        if not lines_in:
            writing.close()
        made: Any = _Process(told, writing if lines_in else None)
        self._process = made

    def reap(self) -> None:
        super().reap()
        self._process.told.close()  # type: ignore[attr-defined]


class ForkedChildren(Children):
    """Starts Python modules and the `countersink` command forked, and anything else as ever."""

    def start(self, arguments: Sequence[str], **options: Any) -> Child:
        """Start a process; `main` of a module is called as ``python -m`` does it."""
        if arguments[1] == "-m":
            script = MODULE.format(arguments[2])
        elif arguments[2] == COUNTERSINK[2] or arguments[2].startswith(MAIN.split("{")[0]):
            script = arguments[2]
        else:
            return super().start(arguments, **options)
        child = ForkedChild(script, arguments[3:], **options)
        self._children.append(child)
        return child


@cache
def _server(preloaded: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """This process's fork server, which ends with it, and the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(number), *preloaded],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=PROJECT,
            env=child_environment(),
            start_new_session=True,
        )
    return process, ours


def _script_told() -> str:
    """The script of the next request, in a process of its own whose end is told by another one."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            sys.exit()
        if not os.fork():
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    *standard, tell = descriptors
    prctl = ctypes.CDLL(None).prctl
    prctl(_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        os.write(tell, b"%d\n" % child)
        os.write(tell, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    prctl(_PDEATHSIG, signal.SIGKILL)
    os.close(tell)
    os.setsid()
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    script, sys.argv, environment, directory = json.loads(message)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(directory)
    return str(script)


def _run(script: str) -> None:
    """Run it in place of this module."""
    names, fresh = globals(), {"__name__": "__main__", "__builtins__": builtins, "__spec__": None}
    names.clear()
    names.update(fresh)
    exec(compile(script, "<script>", "exec"), names)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()
    _run(_script_told())
