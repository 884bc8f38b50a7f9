"""Private servers: MariaDB or Redis servers that ``countersink up`` or a test starts for itself.
The data, port, password and log of such a server are in one directory. This module has what all of
them share: child processes, start, stop and ports. See ``servers.py`` for MariaDB and Redis."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Self

from countersink.cli.errors import ServerFailed

READY_POLL_SECONDS: Final = 0.02
LOG_TAIL_BYTES: Final = 2000
"""Number of bytes, from the end of a failed server's log, that its error quotes."""
SOCKET_PATH_BYTES: Final = 100
"""Most bytes in the path of a unix socket; Linux allows 107."""


def _make_launcher() -> None:
    """Make the thread that starts all child processes: on import, and in the child after a fork.
    The thread must live as long as this process: Linux sends a child its parent-death signal when
    the *thread* that started the child ends."""
    global _launcher
    _launcher = ThreadPoolExecutor(1, "server-launcher")


_launcher: ThreadPoolExecutor
_make_launcher()
os.register_at_fork(after_in_child=_make_launcher)  # a fork does not copy threads


class ChildProcess:
    """A child process that runs a program, in its own session. Creating the object starts it.

    Args:
        command: the program and its arguments.
        log, output: where the output of the child goes: to the end of the file ``log``, else to the
            open descriptor ``output``; with None for both, to the output of this process.
        death_signal: the signal that the kernel sends to the child if this process dies first. It
            needs the program setpriv; where that is missing, the child gets no signal.
        environment: the child's environment variables; None if they are those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,
        output: int | None = None,
        death_signal: signal.Signals,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        wrapper: list[str] = []
        if setpriv := shutil.which("setpriv"):
            wrapper = [setpriv, "--pdeathsig", death_signal.name.removeprefix("SIG"), "--"]
        self._log_start = log.stat().st_size if log is not None and log.exists() else 0
        with nullcontext(output) if log is None else log.open("ab") as stdout:
            self._popen = _launcher.submit(
                subprocess.Popen[bytes],
                [*wrapper, *command],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stdout,
                env=environment,
                # its own session: Ctrl-C in the terminal reaches this process only
                start_new_session=True,
            ).result()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def alive(self) -> bool:
        """Return True until the process has ended, also while it is stopped by SIGSTOP."""
        return self._popen.poll() is None

    def how_it_ended(self) -> str:
        """Return how the process ended, as text: "ended with status 1", "was killed by SIGKILL";
        "runs" if it has not ended."""
        status = self._popen.poll()
        if status is None:
            return "runs"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children. Does nothing if the process has ended,
        even if children still run."""
        if self.alive():
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass  # it ended after the check

    def stop(self, number: signal.Signals, timeout: float) -> None:
        """Send the signal ``number``, and wait until the process ends. After ``timeout`` seconds,
        kill it and its children. Does nothing if it has ended.

        Raises:
            ServerFailed: the process had to be killed.
        """
        if not self.alive():
            return
        self.send(signal.SIGCONT)  # a process in SIGSTOP handles no other signal
        self.send(number)
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(
                f"killed after {timeout:g} s: it did not stop by itself\n{self.log_tail()}"
            ) from None

    def kill(self) -> None:
        """Send SIGKILL to the process and its children, and wait until the process has ended."""
        self.send(signal.SIGKILL)
        self._popen.wait()

    def log_text(self) -> str:
        """Return the text that the file ``log`` got since the child began; empty without one."""
        if self._log is None:
            return ""
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")

    def log_tail(self) -> str:
        return self.log_text()[-LOG_TAIL_BYTES:].strip()


class Restartable(ABC):
    """A server or another process that `up` starts, and starts again after it has died."""

    name: str
    _process: ChildProcess | None = None

    @property
    def running(self) -> bool:
        """Whether the process that this object started last is alive; False if there is none."""
        return self._process is not None and self._process.alive()

    def how_it_ended(self) -> str:
        """Return as text how the process that this object started last has ended; "runs" if it has
        not ended, and "was stopped" after `stop`, or if nothing was started."""
        return self._process.how_it_ended() if self._process is not None else "was stopped"

    @abstractmethod
    def start(self) -> object:
        """Start the server or process."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server or process; ServerFailed if it had to be killed."""


class PrivateServer(Restartable):
    """A server on 127.0.0.1 with its data, sockets, log and password in ``directory``.

    Without ``port``, the first start in a directory draws a free port at random. Later starts in it
    use the same port, so that clients find the server again. If another program has that port, the
    first start by an object draws a new one; a restart by the same object, or a start with
    ``port``, fails. Not thread-safe. If this process dies before it calls `stop`, the server gets
    ``death_signal`` (see :class:`ChildProcess`). ``extra`` are further arguments of its program."""

    death_signal: signal.Signals = signal.SIGTERM

    start_timeout: float = 60.0
    """Seconds within which a started server has to answer; then the start has failed."""
    stop_timeout: float = 60.0
    port_taken: tuple[str, ...]
    """Texts that the server writes to its log if its port is in use."""

    def __init__(
        self, directory: Path | str, *, port: int | None = None, extra: Sequence[str] = ()
    ) -> None:
        self.directory = Path(directory).resolve()
        self.extra = tuple(extra)
        self._port = port
        self._socket_directory: Path | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The TCP port. ServerFailed if no port was given and no start has succeeded yet."""
        if self._port is None:
            raise ServerFailed(f"{self.name} has no port before its first start")
        return self._port

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def socket(self) -> Path:
        """The path of the server's unix socket. It is in the server's directory or, if that path
        would be too long, in a new directory in /tmp, which `stop` deletes."""
        wanted = self.directory / f"{self.name}.sock"
        if len(os.fsencode(wanted)) <= SOCKET_PATH_BYTES:
            return wanted
        if self._socket_directory is None:
            self._socket_directory = Path(tempfile.mkdtemp(prefix="countersink-", dir="/tmp"))
        return self._socket_directory / f"{self.name}.sock"

    @property
    def password(self) -> str:
        """The server's password. It is drawn at random once for each directory, and kept there in a
        file that only its owner can read."""
        file = self.directory / f"{self.name}.password"
        try:
            return file.read_text().strip()
        except FileNotFoundError:
            self._make_directory()
            drawn = secrets.token_urlsafe(18)
            write_private(file, drawn + "\n")
            return drawn

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for clients. It contains the password, so it must not be logged."""

    def start(self) -> Self:
        """Create the files that the server lacks, start it, wait until it answers, and return this
        object. If the server runs already, only return this object.

        Raises:
            ServerMissing: its program is not installed.
            ServerFailed: it ended, or did not answer in ``start_timeout`` seconds and was killed;
                its files cannot be made; or an earlier server still runs in the directory.
        """
        if self.running:
            return self
        self._make_directory()
        self._wait_for_predecessor()
        self._prepare()
        while True:
            drawn = self._port is None
            self._port = self._port or self._last_port() or free_port()
            self.socket.unlink(missing_ok=True)
            process = ChildProcess(self._command(), log=self.log, death_signal=self.death_signal)
            self._process = process
            try:
                write_private(self._start_file, f"{process.pid} {self._port}\n")
                self._wait_until_ready(process)
            except BaseException as failure:
                process.kill()
                self._process = None
                if drawn:
                    self._port = None
                lost_race = any(text in process.log_text() for text in self.port_taken)
                if not (drawn and lost_race and isinstance(failure, ServerFailed)):
                    raise
            else:
                return self

    def stop(self) -> None:
        """Send SIGTERM, and wait until the server has ended; ServerFailed if it had to be killed
        after ``stop_timeout`` seconds. Does nothing if the server does not run."""
        try:
            if self._process is not None:
                self._process.stop(signal.SIGTERM, self.stop_timeout)
        finally:
            self._process = None
            if self._socket_directory is not None:
                shutil.rmtree(self._socket_directory, ignore_errors=True)
                self._socket_directory = None

    @property
    def _start_file(self) -> Path:
        """The path of the file that has the process id and port of the last start."""
        return self.directory / f"{self.name}.started"

    def _read_start_file(self) -> tuple[int, int] | None:
        try:
            pid, port = self._start_file.read_text().split()
            return int(pid), int(port)
        except (OSError, ValueError):
            return None

    def _last_port(self) -> int | None:
        """Return the port of the last start, if it is free now, else None."""
        last = self._read_start_file()
        return last[1] if last and is_free(last[1]) else None

    def _wait_for_predecessor(self) -> None:
        """Wait until the server that an earlier process started in this directory has ended.

        If `up` is killed, its servers still need some time to shut down. Two Redis servers that
        write to the same append-only file would destroy it. The earlier server is recognized by its
        process id and working directory: the id alone may belong to another process by now.

        Raises:
            ServerFailed: the earlier server still runs after ``stop_timeout`` seconds.
        """
        last = self._read_start_file()
        deadline = time.monotonic() + self.stop_timeout
        while last is not None and self._runs_here(last[0]):
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"a {self.name} server (process {last[0]}) still runs in {self.directory}"
                )
            time.sleep(READY_POLL_SECONDS)

    def _runs_here(self, pid: int) -> bool:
        try:
            directory = Path(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:
            return False  # ended, of another user, or a system without /proc
        return directory.is_relative_to(self.directory)

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _wait_until_ready(self, process: ChildProcess) -> None:
        deadline = time.monotonic() + self.start_timeout
        while not self._answers():
            if not process.alive():
                raise ServerFailed(f"{self.name} ended while starting\n{process.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.name} did not answer within {self.start_timeout:g} s\n"
                    f"{process.log_tail()}"
                )
            time.sleep(READY_POLL_SECONDS)

    @abstractmethod
    def _prepare(self) -> None:
        """Create the files that the server lacks; ServerMissing if its program is missing."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the server's program and its arguments."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether the server answers on its own unix socket. An answer by TCP would prove
        nothing: another server may have the port."""


def write_private(file: Path, text: str) -> None:
    """Write ``text`` to a file that only its owner can read. A reader never sees an incomplete
    file."""
    temporary = file.with_name(file.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as output:
        output.write(text)
    temporary.replace(file)


LOOPBACK = "127.0.0.1"
FIRST, LAST = 20_000, 31_999
"""The ports that may be drawn: from ``FIRST`` to ``LAST``. They are below the ephemeral ports of
Linux (32768 and up), so that no outgoing connection takes a stopped server's port before its next
start."""


def is_free(port: int) -> bool:
    """Return whether a server can listen on this port of 127.0.0.1 now, by TCP and by UDP."""
    return _can_bind(port, socket.SOCK_STREAM) and _can_bind(port, socket.SOCK_DGRAM)


def _can_bind(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a random port from ``FIRST`` to ``LAST`` that is free now; OSError if 1000 draws find
    none. Another process may take the port before the caller does."""
    draw = random.SystemRandom()  # forks and equal seeds must not draw the same ports
    for _ in range(1000):
        port = draw.randint(FIRST, LAST)
        if is_free(port):
            return port
    raise OSError(f"no free port between {FIRST} and {LAST} on {LOOPBACK}")
