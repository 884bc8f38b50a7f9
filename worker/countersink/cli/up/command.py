"""A command that runs for long, such as the worker, as a child process of `countersink up`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from countersink.cli.servers.process import ChildProcess

STOP_SECONDS = 15.0
"""Each of them ends within 10 s of SIGTERM, even when its servers hang."""


class CommandProcess:
    """`countersink NAME ARGUMENTS`, with the URLs in its environment: a command line shows
    passwords.
    """

    def __init__(self, name: str, urls: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        self.name = name
        self._arguments = arguments
        self._environment = {**os.environ, **urls}
        for variable in urls:
            self._environment.pop(f"{variable}_FILE", None)  # both at once would be refused
        self._process: ChildProcess | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.alive()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def how_it_ended(self) -> str:
        """For people: how the last process ended."""
        return self._process.how_it_ended() if self._process is not None else "was stopped"

    def start(self) -> object:
        """Start the process; it waits for its servers by itself."""
        self._process = ChildProcess(
            [sys.executable, "-m", "countersink.cli.entry", self.name, *self._arguments],
            log=None,
            death_signal=signal.SIGTERM,
            environment=self._environment,
        )
        return self

    def stop(self) -> None:
        """SIGTERM: it ends in good order. Raises ServerFailed when it had to be killed."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM, STOP_SECONDS)
            self._process = None
