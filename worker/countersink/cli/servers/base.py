"""What private servers of either kind have in common."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from countersink.cli.servers.errors import ServerFailed
from countersink.cli.servers.ports import free_port, is_free
from countersink.cli.servers.process import ChildProcess

READY_POLL_SECONDS = 0.02
PORT_ATTEMPTS = 10
SOCKET_PATH_BYTES = 100
"""Linux allows 107 bytes for the path of a unix socket."""


class PrivateServer(ABC):
    """A server on 127.0.0.1 whose data, sockets, logs and password live in one directory.

    The port is drawn at the first start and kept, also by the next process that starts a server
    on this directory, so that clients find a restarted server again; when another program has
    taken it meanwhile, that next process draws a new one. Not thread-safe.

    When this process dies without `stop`, the server gets ``death_signal``.
    """

    name: str
    start_timeout: float = 60.0
    """Seconds until a server that does not answer counts as failed."""
    stop_timeout: float = 60.0
    stop_signal = signal.SIGTERM
    port_taken: tuple[str, ...]
    """What the server's log says when its port is in use."""

    def __init__(
        self,
        directory: Path | str,
        *,
        port: int | None = None,
        extra: Sequence[str] = (),
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.directory = Path(directory).resolve()
        self.extra = tuple(extra)
        self._port = port
        self._death_signal = death_signal
        self._process: ChildProcess | None = None
        self._socket_directory: Path | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory} port={self._port}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The TCP port. Raises ServerFailed before the first start."""
        if self._port is None:
            raise ServerFailed(f"{self.name} has no port before its first start")
        return self._port

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether our process is there (also when frozen)."""
        return self._process is not None and self._process.alive()

    def how_it_ended(self) -> str:
        """For people: how the process of the last start ended."""
        return self._process.how_it_ended() if self._process is not None else "was stopped"

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
        for attempt in range(PORT_ATTEMPTS):
            drawn = self._port is None
            if self._port is None:
                self._port = (self._last_port() if attempt == 0 else None) or free_port()
            self.socket.unlink(missing_ok=True)
            process = ChildProcess(self._command(), log=self.log, death_signal=self._death_signal)
            self._process = process
            try:
                write_private(self._notes, f"{process.pid} {self._port}\n")
                self._wait_until_ready(process)
            except BaseException as failure:
                process.kill()
                self._process = None
                lost_race = any(text in process.log_text() for text in self.port_taken)
                retry = drawn and lost_race and attempt < PORT_ATTEMPTS - 1
                if drawn:
                    self._port = None
                if retry and isinstance(failure, ServerFailed):
                    continue
                raise
            return self
        raise AssertionError("unreachable: the last attempt returns or raises")

    def stop(self) -> None:
        """Shut down cleanly (a frozen server is thawed first); no effect when it is down."""
        try:
            if self._process is not None:
                self._process.stop(self.stop_signal, self.stop_timeout)
        finally:
            self._process = None
            if self._socket_directory is not None:
                shutil.rmtree(self._socket_directory, ignore_errors=True)
                self._socket_directory = None

    def kill(self) -> None:
        """SIGKILL: what a power cut leaves in the files is what the next start finds."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> Self:
        """Stop cleanly if it runs, then start on the same port and data."""
        self.stop()
        return self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

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
