"""Brings a server under load to one of its ends, and counts."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from countersink.cli.private_server import free_port
from tests.processes.load import Load
from tests.processes.servers import GOES_ON, INTERVAL, ORPHANS, RELOADS, Server
from tests.producers.helpers import total
from tests.support.processes import Child, Children, child_environment, is_running
from tests.support.waiting import eventually

APP = Path(__file__).with_name("app.py")
FEW = 200
"""Answers before the end; a quarter of it where a process ends after 100."""
SECONDS = 60.0
MISSED_SECONDS = 10.0
"""After which a worker that still runs has missed its signal."""


@dataclass(frozen=True)
class Count:
    """What became of the requests.

    Attributes:
        answered: those that the clients got an answer to.
        unanswered: those that they may have sent and got no answer to.
        before: what was stored when the end began.
        counted: what is stored after it.
        output: what the server said.
    """

    answered: int
    unanswered: int
    before: int
    counted: int
    output: str


@contextlib.contextmanager
def none_left(load: Load) -> Iterator[None]:
    """Kill the processes that have answered, should they be left at the end of the block."""
    try:
        yield
    finally:
        for pid in filter(is_running, load.answered):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def bring_to(
    end: str, expected: str, server: Server, app: str, client: redis.Redis, url: str, home: Path
) -> Count:
    """Start `server`, load it, bring it to `end`, and end it if that did not."""
    file = Path(shutil.copy(APP, home / "served.py"))
    known = child_environment()["PYTHONPATH"]
    port = free_port()
    environment = {
        "COUNTERSINK_REDIS_URL": url,
        "PYTHONPATH": f"{home}{os.pathsep}{known}",
        # What is stored is stored because of the end, not because time went by.
        "COUNTERSINK_PRODUCER_FLUSH_INTERVAL": "0.25" if expected == INTERVAL else "3600",
    }
    with Children() as children:
        child = children.start(
            server.arguments(port, app, file, end),
            environment=environment,
            name=end,
            directory=home,
        )
        with Load(port) as load, none_left(load):
            few = FEW // 4 if end == "max requests" else FEW
            # A process that is just being started may miss a signal.
            processes = server.processes if end.startswith("SIG") else 1
            eventually(
                lambda: load.answered.total() >= few and len(load.answered) >= processes,
                timeout=SECONDS,
                message=child.output,
            )
            if expected == INTERVAL:
                eventually(lambda: total(client) > 0)
            before = total(client)
            first = set(load.answered)
            if end.startswith("SIG"):
                child.send(signal.Signals[end])
            elif end == "reload":
                file.write_text(file.read_text() + "\n")
                later = file.stat().st_mtime + 2  # some look at whole seconds only
                os.utime(file, (later, later))
            if server.misses and end == "SIGTERM":
                _send_again(child, load)
            _wait(end, expected, child, load, first)
            load.end()
            _stop(server, child, load)
            return Count(load.answered.total(), load.failed, before, total(client), child.output())


def _wait(end: str, expected: str, child: Child, load: Load, first: set[int]) -> None:
    """Wait until the end has come to what is expected of it."""
    seen = load.answered.total()

    def replaced() -> bool:
        return bool(set(load.answered) - first) and not any(map(is_running, first))

    def more() -> bool:
        return load.answered.total() >= seen + FEW

    if expected == GOES_ON:
        eventually(more, timeout=SECONDS)
        assert child.running
    elif expected == RELOADS:
        eventually(replaced, timeout=SECONDS, message=child.output)
        assert child.running
    elif expected == INTERVAL or not end.startswith("SIG"):  # some end, some replace processes
        eventually(lambda: replaced() or not child.running, timeout=SECONDS, message=child.output)
    else:
        child.wait(SECONDS)
        if expected == ORPHANS:
            assert any(map(is_running, load.answered)), "there are none"


def _send_again(child: Child, load: Load) -> None:
    """Send SIGTERM to the workers that have missed it."""
    with contextlib.suppress(AssertionError):
        child.wait(MISSED_SECONDS)
    for pid in filter(is_running, load.answered if child.running else ()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _stop(server: Server, child: Child, load: Load) -> None:
    """End what still runs, without any load."""
    if child.running and server.idle:  # it may be in the midst of a request that is answered
        child.send(signal.Signals[server.idle])
        eventually(lambda: not any(map(is_running, load.answered)), timeout=SECONDS)
    if server.kills:
        _terminate(load)
    if child.running:
        child.send(signal.Signals[server.last])
        child.wait(SECONDS)
    _terminate(load)


def _terminate(load: Load) -> None:
    """End the processes that have answered, as far as they are left."""
    for pid in filter(is_running, load.answered):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    eventually(lambda: not any(map(is_running, load.answered)), timeout=SECONDS)
