"""Faults of a round of `everything`: drawn from a seed, and done to processes and servers."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis

from tests.campaign.crew import Crew
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase
from tests.support.proxies.tcp import Proxy
from tests.support.servers import FragileServer

FAULTS: Final = 16
"""Of a round."""
LASTS_S: Final = (0.2, 5.0)
LATE_S: Final = 0.05
ONE_IN: Final = 10
"""Answers that are lost, while some are."""
CLOCKS_S: Final = (-36_000, -3_600, -60, 60, 3_600, 36_000)
DISK_BYTES: Final = 16 << 20
VICTIMS: Final = (
    *("worker 1", "worker 2", "scheduler", "jobs 1", "jobs 2", "web"),
    *("statsd", "tail", "app 1", "app 2", "named app", "shop", "command"),
)
DEEDS: Final = ("killed", "terminated", "stopped", "with another clock")
SERVER_FAULTS: Final = (
    *("MySQL killed", "MySQL frozen", "MySQL connections cut", "MySQL answers lost"),
    *("MySQL answers late", "Redis killed", "Redis frozen", "Redis connections cut"),
    *("Redis answers lost", "Redis answers late", "Redis memory full", "HTTP answers lost"),
    *("disk full", "disk full while Redis is away"),
)


@dataclass(frozen=True)
class Blow:
    """A fault of a round.

    Attributes:
        victim: the process, or "".
        deed: what is done to it, or what befalls a server.
        beside: what is done to a process while the fault of a server lasts, with its victim.
        lasts_s: how long it lasts.
        clock_s: how far a clock is moved.
        settles: whether the next one waits until counting goes on.
    """

    victim: str
    deed: str
    beside: tuple[str, str] | None
    lasts_s: float
    clock_s: int
    settles: bool


def plan(seed: int, faults: int = FAULTS) -> list[Blow]:
    """The faults of the round with this seed, in their order."""
    draw, found = random.Random(seed), []
    for _ in range(faults):
        strikes = [(draw.choice(VICTIMS), draw.choice(deeds)) for deeds in (DEEDS, DEEDS[:2])]
        server, beside = draw.random() < 0.5, draw.random() < 0.4
        fault = draw.choice(SERVER_FAULTS)
        found.append(
            Blow(
                *(("", fault) if server else strikes[0]),
                strikes[1] if server and beside and "disk" not in fault else None,
                draw.uniform(*LASTS_S),
                draw.choice(CLOCKS_S),
                draw.random() < 0.5,
            )
        )
    return found


class Strikes:
    """Does what befalls the processes and the servers, and counts it by kind."""

    def __init__(
        self,
        seed: int,
        crew: Crew,
        servers: dict[str, FragileServer],
        proxies: dict[str, Proxy],
        client: redis.Redis,
        disk: Path,
    ) -> None:
        self._draw = random.Random(seed)
        self._crew = crew
        self._servers = servers
        self._proxies = proxies
        self._client = client
        self._disk = disk
        self.done: Counter[str] = Counter()

    def befall(self, blow: Blow) -> None:
        """Do it, and return when it is over."""
        if blow.victim:
            self._strike(blow.victim, blow.deed, blow)
            return
        if blow.deed.startswith("disk") and not os.path.ismount(self._disk):
            return
        with self._lasting(blow.deed):
            self.done[blow.deed] += 1
            if blow.beside:
                self._strike(*blow.beside, blow)
            _wait(blow)

    def _strike(self, victim: str, deed: str, blow: Blow) -> None:
        if victim == "command":
            if self._crew.command is None or deed == "with another clock":
                return
            child = self._crew.command
            if deed == "stopped":
                _stopped(child, blow)
            else:
                (child.kill if deed == "killed" else child.terminate)()
        elif deed == "stopped":
            _stopped(self._crew.now[victim], blow)
        elif deed == "killed":
            self._crew.kill(victim)
        elif deed == "terminated":
            self._crew.terminate(victim)
        elif shutil.which("gcc"):
            self._crew.terminate(victim, blow.clock_s)
        else:
            return
        self.done[f"{re.sub(' [0-9]', '', victim)} {deed}"] += 1

    @contextmanager
    def _lasting(self, fault: str) -> Iterator[None]:
        """A fault of a server, which is over afterwards."""
        server, _, what = fault.partition(" ")
        if what == "killed":
            self._servers[server].kill()
            yield
            self._servers[server].start()
        elif what == "frozen":
            self._servers[server].freeze()
            try:
                yield
            finally:
                self._servers[server].thaw()
        elif what == "connections cut":
            self._proxies[server].cut_all()
            yield
        elif what in ("answers lost", "answers late"):
            proxy, late = self._proxies[server], what == "answers late"
            rule = proxy.when(
                *("*", Phase.AFTER, Deed.PASS if late else Deed.CUT),
                times=0,
                call=(lambda _: time.sleep(LATE_S)) if late else None,
                where=lambda *_: late or self._draw.randrange(ONE_IN) == 0,
            )
            yield
            proxy.forget(rule)
        elif what == "memory full":
            self._client.config_set("maxmemory", 1)
            yield
            self._client.config_set("maxmemory", 0)
        else:
            with self._full_disk(away="Redis" in what):
                yield

    @contextmanager
    def _full_disk(self, *, away: bool) -> Iterator[None]:
        """No byte is left for spools and positions."""
        filler = self._disk / "filler"
        self._proxies["Redis"].refusing = away
        if away:
            self._proxies["Redis"].cut_all()
        try:
            with filler.open("wb", buffering=0) as file:
                with suppress(OSError):
                    while True:
                        file.write(bytes(4096))
                yield
        finally:
            filler.unlink()
            self._proxies["Redis"].refusing = False


def _wait(blow: Blow) -> None:
    threading.Event().wait(blow.lasts_s)


def _stopped(child: Child, blow: Blow) -> None:
    child.stop()
    _wait(blow)
    child.go_on()


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A small disk, if this user may mount one, else a directory."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    mounted = os.geteuid() == 0 and not subprocess.run(mount, check=False).returncode
    try:
        yield path
    finally:
        if mounted:
            subprocess.run(["umount", "-l", path], check=True)
