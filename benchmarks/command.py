"""The `countersink` command in processes: those that go on until told to end, and others."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any, Final

from benchmarks.measuring import Wrong
from benchmarks.memory import Peaks
from benchmarks.processes import PROJECT

COMMAND: Final = (
    sys.executable,
    "-c",
    "import sys; from countersink.cli.entry import main; sys.exit(main())",
)
"""`countersink`, also where the console script is not installed."""
STOP_SECONDS: Final = 20
START_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.02
REJECTED: Final = 3
"""Exit status of a command that is done, but left something out."""


class Service:
    """A process that goes on until it is told to end.

    Attributes:
        pid: its process id.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.pid = process.pid
        self._name = name
        self._process = process
        self._log = log

    def wait_until_it_says(self, text: str) -> None:
        """Wait for this in its log. Raises Wrong if it does not come."""
        deadline = time.monotonic() + START_SECONDS
        while text not in self.said():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Wrong(f"{self._name} does not say {text!r}\n{self.said()[-4000:]}")
            time.sleep(PAUSE_SECONDS)

    def said(self) -> str:
        """Its log so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")


@contextlib.contextmanager
def service(name: str, redis_url: str, mysql_url: str, *options: str) -> Iterator[Service]:
    """`countersink NAME`, with its defaults but for ``options``. Raises Wrong if it fails."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*COMMAND, name, *options],
            cwd=PROJECT,
            env=environment(redis_url, mysql_url),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        running = Service(name, process, log)
        try:
            yield running
            process.terminate()
            status = process.wait(STOP_SECONDS)
        except BaseException:
            process.kill()
            process.wait()
            sys.stderr.write(running.said()[-4000:])
            raise
        if status != 0:
            raise Wrong(f"{name} ended with status {status}\n{running.said()[-4000:]}")


def run(
    arguments: list[str], redis_url: str, mysql_url: str, peaks: Peaks
) -> tuple[dict[str, Any], float]:
    """`countersink ARGUMENTS` to its end: the JSON that it printed, and the seconds that it took.

    What was left out (status 3) is none of a benchmark's business here. Raises Wrong if it fails.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        begun = time.monotonic()
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=PROJECT,
            env=environment(redis_url, mysql_url),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
        )
        try:
            peaks.watch(process.pid)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
        seconds = time.monotonic() - begun
        for file in (out, errors):
            file.seek(0)
        if status not in (0, REJECTED):
            said = errors.read().decode("utf-8", "replace")[-4000:]
            raise Wrong(f"{arguments[0]} ended with status {status}\n{said}")
        document: dict[str, Any] = json.load(out)
    return document, seconds


def environment(redis_url: str, mysql_url: str) -> dict[str, str]:
    """This process's, without settings of countersink's but the two servers."""
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith("COUNTERSINK_")
    }
    return {**ours, "COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": mysql_url}
