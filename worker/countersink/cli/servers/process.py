"""A child process that ends with its parent, and can be stopped, killed and frozen."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

from countersink.cli.servers.errors import ServerFailed

LOG_TAIL_BYTES = 2000
"""How much of a failed server's log goes into the error."""


class _Launcher:
    """Starts child processes from one thread that lives as long as this process.

    Linux delivers a parent-death signal when the *thread* that started the child ends, so a
    server started from a short-lived thread would die with that thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0  # of the process the thread belongs to: a fork does not copy threads
        self._jobs: queue.SimpleQueue[tuple[list[str], BinaryIO, Future[subprocess.Popen[bytes]]]]
        self._environment: Mapping[str, str] | None = None

    def start(self, command: list[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._pid != os.getpid():
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=self._run, name="server-launcher", daemon=True).start()
                self._pid = os.getpid()
        done: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((command, log, done))
        return done.result()

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            command, log, done = jobs.get()
            try:
                done.set_result(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        # its own session: Ctrl-C in the terminal is for us alone to pass on
                        start_new_session=True,
                    )
                )
            except BaseException as failure:
                done.set_exception(failure)


_launcher = _Launcher()


def _reset_after_fork() -> None:
    global _launcher
    _launcher = _Launcher()


os.register_at_fork(after_in_child=_reset_after_fork)


class ServerProcess:
    """One run of a server program; output goes to ``log``.

    ``death_signal`` reaches the server when this process dies without having stopped it.
    """

    def __init__(self, command: Sequence[str], log: Path, death_signal: signal.Signals) -> None:
        self.log = log
        wrapper: list[str] = []
        if setpriv := shutil.which("setpriv"):
            wrapper = [setpriv, "--pdeathsig", death_signal.name.removeprefix("SIG"), "--"]
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._popen = _launcher.start([*wrapper, *command], output)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def alive(self) -> bool:
        """Whether the process still runs (a frozen one does)."""
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server and to whatever it started; no effect when it has ended."""
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
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def log_tail(self) -> str:
        return self.log_text()[-LOG_TAIL_BYTES:].strip()
