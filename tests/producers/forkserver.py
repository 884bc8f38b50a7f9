"""Processes that run a script, forked from one that has imported the producers already: a start of
Python takes a hundred times as long.

A script runs as the main program of its process, which ends as any other does.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache

from tests.support.processes import PROJECT, Child, child_environment


class Forked:
    """What of ``subprocess.Popen`` a ``Child`` uses, for a process that another has forked."""

    stdin = None

    def __init__(self, script: str, arguments: tuple[str, ...], output: int) -> None:
        self._told, write = os.pipe()
        request = {"script": script, "arguments": arguments, "environment": child_environment()}
        socket.send_fds(server()[1], [json.dumps(request).encode()], [output, write])
        os.close(write)
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        """The next line that is told: the process's id, then how it ended."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._told, 1)
            assert byte, "the fork server has ended"
            line += byte
        return int(line)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if (status := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired("a script", timeout or 0)
        return status

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = self._number()
            os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Scripted(Child):
    """A child that runs a script."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.name = "script"
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by reap)
        self._process = Forked(script, arguments, self._output.fileno())  # type: ignore[assignment]


@cache
def server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """This process's fork server, which ends with it, and the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.producers.forkserver_main", str(number)],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=PROJECT,
            env=child_environment(),
            start_new_session=True,
        )
    return process, ours
