"""Processes of a round of `everything`: started as an operator starts them, and started again
whenever one has ended.
"""

import json
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.campaign.app import DROPPED, RETURNED, SLOWEST_NS, STORED, Progress
from tests.campaign.book import Book, event
from tests.support import takers
from tests.support.forked import ForkedChildren
from tests.support.processes import COUNTERSINK, PROJECT, Child, Children
from tests.support.waiting import eventually

MOVED: Final = PROJECT / "scripts" / "moved.sh"
TOLD: Final = ("app 1", "app 2", "named app", "shop")
"""Processes that end in good order when they are told a line."""
ENDED_S: Final = 60.0

Command = Callable[[], Sequence[str]]
"""Makes the arguments of a process that is about to start."""


def countersink(*words: str) -> Command:
    """The ``countersink`` command with these words."""
    return lambda: (*COUNTERSINK, *words)


def seller(url: str) -> Command:
    """The application that sells."""
    return lambda: (sys.executable, "-m", "tests.campaign.app", json.dumps({"url": url}))


class App:
    """An application, through all lives of its process, and which of its increments count.

    Of a life that was killed, what it had stored counts, and the rest may. After SIGTERM all of it
    counts, members aside: their salt may not be known yet. The increments of a named application
    have ids, and the next life sends again what the last one did not know to be stored.
    """

    def __init__(self, book: Book, directory: Path, plan: Mapping[str, Any]) -> None:
        self._book = book
        self._directory = directory
        self._plan = plan
        self._numbers = count()
        self._progress: Progress | None = None
        self._begin = self._next = self._high = 0
        self.slowest_ns = 0

    def command(self) -> Sequence[str]:
        """The arguments of its next life."""
        path = self._directory / f"{self._plan['source']} {next(self._numbers)}".replace(" ", "-")
        self._begin, self._progress = self._next, Progress(path, self._next)
        plan = {**self._plan, "begin": self._begin, "progress": str(path)}
        return sys.executable, "-m", "tests.campaign.app", json.dumps(plan)

    def ended(self, how: str) -> None:
        """Enter the life that has ended: it was "killed", "terminated", or "told" to end."""
        assert self._progress is not None
        returned, stored = self._progress[RETURNED], self._progress[STORED]
        assert not self._progress[DROPPED], f"{self._plan['source']} dropped increments"
        self.slowest_ns = max(self.slowest_ns, self._progress[SLOWEST_NS])
        self._high = max(self._high, returned + (how != "told"))
        if self._plan["named"]:
            self._next = stored
            if how == "told":
                self._enter(0, stored, counted=True, told=True)
                self._enter(stored, self._high, counted=False, told=False)
            return
        self._next = self._high
        self._enter(self._begin, stored, counted=True, told=True)
        self._enter(stored, returned, counted=how != "killed", told=False)
        self._enter(returned, self._high, counted=False, told=False)

    def _enter(self, begin: int, end: int, **promised: bool) -> None:
        make = partial(event, self._plan["seed"], self._plan["source"], base=self._plan["base"])
        self._book.add((make(number=number) for number in range(begin, end)), **promised)
        self._book.events["producers"] += end - begin


class Crew:
    """The processes, by name; a context manager that leaves none behind.

    Args:
        commands: what is started.
        environment: of all of them.
        ended: told the name of a process that has ended, and how.
    """

    def __init__(
        self,
        commands: Mapping[str, Command],
        environment: Mapping[str, str],
        ended: Callable[[str, str, int], object],
    ) -> None:
        self.children = ForkedChildren()
        self._moved = Children()
        """Started without a fork of this program, which would keep its clock."""
        self.commands = commands
        self.environment = environment
        self._ended = ended
        self.now: dict[str, Child] = {}
        self.ending: dict[str, int] = {}
        """Those that were sent SIGTERM, and how far the clock of their next life is moved."""
        self.said: defaultdict[str, list[str]] = defaultdict(list)
        """The whole lines of past lives."""
        self.lock = threading.Lock()
        """Held while a process is signalled, and while one is sent what it cannot acknowledge."""
        self.command: Child | None = None
        """A command of an operator, which is run again by whoever has started it."""

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.children.__exit__(kind)
        self._moved.__exit__(kind)

    def start(self, name: str, clock_s: int = 0) -> None:
        """Start it, with its clock set so many seconds ahead."""
        arguments = self.commands[name]()
        children: Children = self.children
        if clock_s:
            sign = "-" if clock_s < 0 else "+"
            arguments = (str(MOVED), f"now {sign} {abs(clock_s)} seconds", *arguments)
            children = self._moved
        child = children.start(
            arguments, environment=self.environment, name=name, lines_in=name in TOLD
        )
        self.now[name] = child

    def revive(self) -> None:
        """Start again those that have ended, as an init system does."""
        for name, child in list(self.now.items()):
            if not child.running:
                clock_s = self.ending.get(name, 0)
                self._over(name)
                self.start(name, clock_s)

    def kill(self, name: str) -> None:
        """SIGKILL, and start it again."""
        with self.lock:
            self.now[name].kill()
        self.revive()

    def terminate(self, name: str, clock_s: int = 0) -> None:
        """SIGTERM; it is started again once it has ended, and the next fault may come before."""
        self.settle(name)
        with self.lock:
            self.ending[name] = clock_s
            self.now[name].terminate()

    def settle(self, *names: str) -> None:
        """Wait until these have ended that were sent SIGTERM, or all, and start them again."""

        def settled() -> bool:
            self.revive()
            return not self.ending.keys() & (names or self.ending.keys())

        eventually(settled, ENDED_S, message=lambda: f"{[*self.ending]} do not end")

    def stop(self, name: str) -> int:
        """SIGTERM; its exit status."""
        with self.lock:
            self.ending[name] = 0
            self.now[name].terminate()
        self.now[name].wait()
        status = self._over(name)
        del self.now[name]
        return status

    def _over(self, name: str) -> int:
        """Enter how it has ended; its exit status."""
        child, told = self.now[name], name in self.ending
        status = child.wait()
        if not told and status != -signal.SIGKILL:
            print(f"{name} ended by itself with {status}", flush=True)
        _check_output(child)
        if status == -signal.SIGTERM and name not in TOLD and not child.output():
            status = 0  # it had not begun: nothing was sent to it
        how = "terminated" if told and status != -signal.SIGKILL else "killed"
        self._ended(name, how, status)
        self._forget(name)
        return status

    def end(self, name: str) -> None:
        """A line that ends it in good order."""
        with suppress(BrokenPipeError):
            self.now[name].say("end")
        status = self.now[name].wait(120.0)
        assert status == 0, f"{name} ended with {status}: {self.now[name].output()[-3000:]}"
        self._ended(name, "told", status)
        self._forget(name)
        del self.now[name]

    def _forget(self, name: str) -> None:
        """Close its files: they are many in a storm."""
        self.ending.pop(name, None)
        self.said[name] += takers.lines(self.now[name])
        for children in (self.children, self._moved):
            children.forget(self.now[name])


def _check_output(child: Child) -> None:
    """No process ends by a bug."""
    output = child.output()
    assert "Traceback" not in output, f"{child.name}: {output[-3000:]}"
