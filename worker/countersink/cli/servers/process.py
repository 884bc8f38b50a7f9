"""A child process that ends with its parent: start, stop (kill after a timeout), and how it ended,
in words."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from countersink.cli.errors import ServerFailed

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
        try:
            with self._log.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def log_tail(self) -> str:
        return self.log_text()[-LOG_TAIL_BYTES:].strip()
