"""The private servers and processes of the demo, which end with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers import MySQLServer, RedisServer

WORKER_STOP_SECONDS = 15


class Stage:
    """Redis and MariaDB in ``directory``, and processes that are connected to them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.redis = RedisServer(directory / "redis")
        self.mysql = MySQLServer(directory / "mysql")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # if the second does not start, the first stops
            stack.enter_context(self.redis)
            stack.enter_context(self.mysql)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def mysql_url(self) -> str:
        return self.mysql.url_for("countersink")

    def environment(self) -> Mapping[str, str]:
        """The environment of countersink's processes, with the URLs of the servers."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("COUNTERSINK_")}
        return {
            **ours,
            "PYTHONUNBUFFERED": "1",
            # Positions in logs belong to these servers.
            "XDG_STATE_HOME": str(self.directory / "state"),
            "COUNTERSINK_REDIS_URL": self.redis.url,
            "COUNTERSINK_MYSQL_URL": self.mysql_url,
        }

    def run(
        self, *arguments: str, output: int | None = None, errors: str | None = None
    ) -> subprocess.Popen[str]:
        """Start ``python -m ARGUMENTS``; it is killed when the demo ends.

        ``errors`` is the file for its stderr, by default that of this process.
        """
        with ExitStack() as files:
            log = files.enter_context((self.directory / errors).open("w")) if errors else None
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                text=True,
            )
        self._stack.callback(_end, process)
        return process

    def worker(self, number: int, batch_entries: int = 20) -> subprocess.Popen[str]:
        """Start a worker; its log goes to a file."""
        with (self.directory / f"worker-{number}.log").open("w") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "countersink.cli.entry", "worker"),
                    # small batches, and an early take-over of a dead worker's entries, for which
                    # the default is a minute
                    *("--batch-entries", str(batch_entries)),
                    *("--claim-idle-ms", "2000", "--claim-every-s", "1"),
                ],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        self._stack.callback(_end, process)
        return process

    def worker_log(self, number: int) -> str:
        return (self.directory / f"worker-{number}.log").read_text(errors="replace")


def stop_worker(process: subprocess.Popen[str]) -> int:
    """Send SIGTERM, as a process manager does, and return the exit status."""
    process.terminate()
    return process.wait(WORKER_STOP_SECONDS)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
