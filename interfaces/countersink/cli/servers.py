"""What private servers share: a child process that ends with its parent, start, stop (kill after a
timeout), waiting until ready, free ports, passwords, and which installed programs are used, with
the advice if one is missing."""

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

from countersink.cli.errors import ServerFailed, ServerMissing

READY_POLL_SECONDS: Final = 0.02
SOCKET_PATH_BYTES: Final = 100
"""Linux allows 107 bytes for the path of a unix socket."""


LOG_TAIL_BYTES: Final = 2000
"""How much of a failed server's log goes into the error."""


def _make_launcher() -> None:
    """Linux delivers a parent-death signal when the *thread* that started the child ends, so a
    server started from a short-lived thread would die with that thread: they are all started by
    one that lives as long as this process.
    """
    global _launcher
    _launcher = ThreadPoolExecutor(1, "server-launcher")


_launcher: ThreadPoolExecutor
_make_launcher()
os.register_at_fork(after_in_child=_make_launcher)  # a fork does not copy threads


class ChildProcess:
    """One run of a program; its output goes to the file ``log``, or where ours goes.

    ``death_signal`` reaches the child when this process dies without having stopped it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None,
        death_signal: signal.Signals,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        wrapper: list[str] = []
        if setpriv := shutil.which("setpriv"):
            wrapper = [setpriv, "--pdeathsig", death_signal.name.removeprefix("SIG"), "--"]
        self._log_start = log.stat().st_size if log is not None and log.exists() else 0
        with nullcontext() if log is None else log.open("ab") as output:
            self._popen = _launcher.submit(
                subprocess.Popen[bytes],
                [*wrapper, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                # its own session: Ctrl-C in the terminal is for us alone to pass on
                start_new_session=True,
            ).result()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def alive(self) -> bool:
        """Whether the process still runs (a frozen one does)."""
        return self._popen.poll() is None

    def how_it_ended(self) -> str:
        """For people: "ended with status 1", "was killed by SIGKILL"."""
        status = self._popen.poll()
        if status is None:
            return "runs"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to whatever it started; no effect when it has ended."""
        if self.alive():
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass  # ended between the look and the signal

    def stop(self, number: signal.Signals, timeout: float) -> None:
        """Ask for a clean end, and wait for it; after ``timeout`` seconds kill.

        Raises ServerFailed when it had to be killed.
        """
        if not self.alive():
            return
        self.send(signal.SIGCONT)  # a frozen process hears nothing else
        self.send(number)
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(
                f"killed after {timeout:g} s: it did not stop by itself\n{self.log_tail()}"
            ) from None

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.send(signal.SIGKILL)
        self._popen.wait()

    def log_text(self) -> str:
        """What this run has written to the log."""
        if self._log is None:
            return ""
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")

    def log_tail(self) -> str:
        return self.log_text()[-LOG_TAIL_BYTES:].strip()


class Restartable(ABC):
    """What `up` starts, and starts again when it has died: a server or a process of its own."""

    name: str
    _process: ChildProcess | None = None

    @property
    def running(self) -> bool:
        """Whether our process is there (also when it is stopped by a signal)."""
        return self._process is not None and self._process.alive()

    def how_it_ended(self) -> str:
        """For people: how the process of the last start ended."""
        return self._process.how_it_ended() if self._process is not None else "was stopped"

    @abstractmethod
    def start(self) -> object:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it in good order. Raises ServerFailed when it had to be killed."""


class PrivateServer(Restartable):
    """A server on 127.0.0.1 whose data, sockets, logs and password live in one directory.

    The port is drawn at the first start and kept, also by the next process that starts a server
    on this directory, so that clients find a restarted server again; when another program has
    taken it meanwhile, that next process draws a new one. Not thread-safe.

    When this process dies without `stop`, the server gets ``death_signal``.
    """

    death_signal: signal.Signals = signal.SIGTERM

    start_timeout: float = 60.0
    """Seconds until a server that does not answer counts as failed."""
    stop_timeout: float = 60.0
    port_taken: tuple[str, ...]
    """What the server's log says when its port is in use."""

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
        """The TCP port. Raises ServerFailed before the first start."""
        if self._port is None:
            raise ServerFailed(f"{self.name} has no port before its first start")
        return self._port

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def socket(self) -> Path:
        """The unix socket, in the data directory or, where that path is too long, in /tmp."""
        wanted = self.directory / f"{self.name}.sock"
        if len(os.fsencode(wanted)) <= SOCKET_PATH_BYTES:
            return wanted
        if self._socket_directory is None:
            self._socket_directory = Path(tempfile.mkdtemp(prefix="countersink-", dir="/tmp"))
        return self._socket_directory / f"{self.name}.sock"

    @property
    def password(self) -> str:
        """Drawn once per data directory and kept there, readable by its owner alone."""
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
        """What clients connect to, password included: not for logs."""

    def start(self) -> Self:
        """Start, prepare the data directory when it is empty, and wait until it answers.

        Raises ServerMissing (program not installed) or ServerFailed (with the log's end).
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
                write_private(self._notes, f"{process.pid} {self._port}\n")
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
        """Shut down cleanly; no effect when it is down."""
        try:
            if self._process is not None:
                self._process.stop(signal.SIGTERM, self.stop_timeout)
        finally:
            self._process = None
            if self._socket_directory is not None:
                shutil.rmtree(self._socket_directory, ignore_errors=True)
                self._socket_directory = None

    @property
    def _notes(self) -> Path:
        """Process id and port of the last start."""
        return self.directory / f"{self.name}.started"

    def _read_notes(self) -> tuple[int, int] | None:
        try:
            pid, port = self._notes.read_text().split()
            return int(pid), int(port)
        except (OSError, ValueError):
            return None

    def _last_port(self) -> int | None:
        """The port of the last start, when nobody listens there now."""
        notes = self._read_notes()
        return notes[1] if notes and is_free(notes[1]) else None

    def _wait_for_predecessor(self) -> None:
        """Wait until the server of an earlier process on this directory has ended.

        When `up` is killed its servers shut down by themselves, which takes a moment; two Redis
        on one append-only file would ruin it. Known by its working directory, not by its number
        alone: that may belong to another process by now. Raises ServerFailed.
        """
        notes = self._read_notes()
        deadline = time.monotonic() + self.stop_timeout
        while notes is not None and self._works_here(notes[0]):
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"a {self.name} server (process {notes[0]}) still runs in {self.directory}"
                )
            time.sleep(READY_POLL_SECONDS)

    def _works_here(self, pid: int) -> bool:
        try:
            place = Path(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:
            return False  # ended, not ours, or a system without /proc
        return place.is_relative_to(self.directory)

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
        """Make the files the server needs, once."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The program and its arguments."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it serves requests: asked through its own unix socket, so that another server
        that won the race for the port is never taken for ours."""


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    temporary = file.with_name(file.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as output:
        output.write(text)
    temporary.replace(file)


LOOPBACK = "127.0.0.1"

# Below the usual ephemeral range (32768 and up on Linux): the port of a server that was stopped
# must not be taken by some client's outgoing connection before the server is started again.
FIRST, LAST = 20_000, 31_999


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now, by TCP and by UDP."""
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
    """A port that was free a moment ago; another process may still win the race for it."""
    draw = random.SystemRandom()  # forks and equal seeds must not draw the same ports
    for _ in range(1000):
        port = draw.randint(FIRST, LAST)
        if is_free(port):
            return port
    raise OSError(f"no free port between {FIRST} and {LAST} on {LOOPBACK}")


# Debian keeps servers in sbin, which is not on the PATH of ordinary users.
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/usr/libexec:/sbin:/bin"


def find_program(program: str) -> str | None:
    """The path of a program, on the PATH or where systems keep their servers."""
    path = os.pathsep.join(filter(None, [os.environ.get("PATH", ""), _SYSTEM_PATH]))
    return shutil.which(program, path=path)


def _installed(program: str, advice: str) -> str:
    """The path of a program. Raises ServerMissing with the advice."""
    if found := find_program(program):
        return found
    raise ServerMissing(f"{program} is not installed: {advice}")


def configured_program(variable: str) -> str | None:
    """The program that a variable of the environment names; None where it is not set."""
    configured = os.environ.get(variable)
    if not configured:
        return None
    if found := shutil.which(configured):
        return found
    raise ServerMissing(f"{variable} is {configured!r}, which is not a program")


def redis_server() -> list[str]:
    """The command that runs Redis: $COUNTERSINK_REDIS_SERVER, or the system's own.

    Raises ServerMissing.
    """
    configured = configured_program("COUNTERSINK_REDIS_SERVER")
    return [configured or _installed("redis-server", "install the package redis-server")]


MARIADB_ADVICE = "install the packages mariadb-server-core and mariadb-client-core"


def mariadbd() -> list[str]:
    """The command that runs MariaDB. Raises ServerMissing."""
    return [_installed("mariadbd", MARIADB_ADVICE)]


def mariadb_install_db() -> list[str]:
    """The command that makes a MariaDB data directory. Raises ServerMissing."""
    found = _installed("mariadb-install-db", MARIADB_ADVICE)
    # the script needs this program, which Debian keeps in the other package
    _installed("my_print_defaults", MARIADB_ADVICE)
    return [found]
