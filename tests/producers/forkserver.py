"""Processes that run a script, forked from one that has imported the producers already: a start of
Python takes a hundred times as long.

A script runs as the main program of its process, which ends as any other does.
"""

import builtins
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache

import countersink.producers.spool  # noqa: F401
from tests.support.processes import PROJECT, Child, child_environment

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Scripted(Child):
    """A child that runs a script."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.name = "script"
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by reap)
        self._told, write = os.pipe()
        request = {"script": script, "arguments": arguments, "environment": child_environment()}
        message = json.dumps(request).encode()
        socket.send_fds(server()[1], [message], [self._output.fileno(), write])
        os.close(write)
        self._pid = self._number()
        self._status: int | None = None

    def _number(self) -> int:
        """The next line that is told: the process's id, then how it ended."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._told, 1)
            assert byte, "the fork server has ended"
            line += byte
        return int(line)

    def _ended(self, timeout: float) -> int | None:
        if self._status is None and select.select([self._told], [], [], timeout)[0]:
            self._status = self._number()
            os.close(self._told)
        return self._status

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        return self._ended(0) is None

    def send(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    def wait(self, timeout: float = 60.0) -> int:
        status = self._ended(timeout)
        assert status is not None, f"it did not end within {timeout} s\n{self.output()}"
        return status

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def reap(self) -> None:
        self.kill()
        self._output.close()


@cache
def server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """This process's fork server, which ends with it, and the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.producers.forkserver", str(number)],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=PROJECT,
            env=child_environment(),
            start_new_session=True,
        )
    return process, ours


def process_told() -> str:
    """The script of the next request, in a process of its own whose end is told by another one."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not message:
            sys.exit()
        if not os.fork():
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    output, told = descriptors
    prctl = ctypes.CDLL(None).prctl
    prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        os.write(told, b"%d\n" % child)
        os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    prctl(DIE_WITH_PARENT, signal.SIGKILL)
    os.close(told)
    os.setsid()
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    request = json.loads(message)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    return str(request["script"])


def run(script: str) -> None:
    """Run it in place of this module."""
    names, fresh = globals(), {"__name__": "__main__", "__builtins__": builtins}
    names.clear()
    names.update(fresh)
    exec(compile(script, "<script>", "exec"), names)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    gc.freeze()
    run(process_told())
