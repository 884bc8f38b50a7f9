"""Child processes of a benchmark: a JSON document per line in and out, and a certain end."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, TextIO

from benchmarks.measuring import Wrong

PROJECT: Final = Path(__file__).resolve().parents[1]
LIFETIME_SECONDS: Final = 240
"""After so long a child ends itself, whatever became of its parent."""
ANSWER_SECONDS: Final = 180.0
"""How long a parent waits for a child's next line."""

Message = dict[str, Any]


class Child:
    """``python -m MODULE`` with its arguments as the first line of its standard input.

    Not as command-line arguments, which every user of the machine can read: there are URLs with
    passwords among them.
    """

    def __init__(self, module: str, **arguments: Any) -> None:
        self._module = module
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=PROJECT,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.say(**arguments)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def say(self, **message: Any) -> None:
        """Send a message. Raises Wrong if the child is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended early") from None

    def hear(self, timeout: float = ANSWER_SECONDS) -> Message:
        """The child's next message. Raises Wrong if it ends, or says nothing for ``timeout`` s."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self._failure(f"said nothing for {timeout:g} s") from None
        if not line:
            raise self._failure("ended early")
        message: Message = json.loads(line)
        return message

    def kill(self) -> None:
        """SIGKILL; returns once it is gone."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it: by the end of its input, else by force."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # gone already
        try:
            self._process.wait(timeout=10 if kind is None else 0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line)
        self._lines.put("")

    def _failure(self, what: str) -> Wrong:
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace")[-4000:]
        return Wrong(f"{self._module} {what}\n{said}")


_answers: list[TextIO] = []
"""In a child: where answers go, since some libraries print banners on standard output."""


def first_message() -> Message:
    """In a child: the arguments. Also sets the alarm that ends the process if nobody else does:
    after ``lifetime`` seconds, if there is such an argument."""
    signal.alarm(LIFETIME_SECONDS)
    _answers.append(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    arguments = next_message()
    signal.alarm(arguments.get("lifetime", LIFETIME_SECONDS))
    return arguments


def next_message() -> Message:
    """In a child: the parent's next message. Ends the process when there is none."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: Message = json.loads(line)
    return message


class Interrupted(threading.Event):
    """In a child: set by the parent's next message, whatever it says, or by the parent's end."""

    def listen(self) -> None:
        """Wait for the message from now on, beside whatever else the child does."""
        self.clear()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.readline()
        self.set()


def answer(message: Mapping[str, Any]) -> None:
    """In a child: tell the parent."""
    print(json.dumps(message), file=_answers[0], flush=True)


def peak_megabytes(pid: int) -> float | None:
    """The largest resident memory of a process so far, in 10⁶ bytes (None: not on Linux)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1_000_000
    return None
