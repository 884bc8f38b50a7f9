"""Faults of `everything` and `storm`: drawn from a seed, and done to processes and servers."""

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import redis

from tests.campaign.crew import Crew
from tests.support.proxies import Deed, Phase
from tests.support.proxies.tcp import Proxy
from tests.support.servers import FragileServer

FAULTS: Final = 16
"""Of a round of `everything`, and some beside them."""
LASTS_S: Final = (0.2, 5.0)
STORM: Final = 240
"""Faults of a round of `storm`, at least."""
SHORT_S: Final = (0.05, 0.8)
LONG_S: Final = (2.1, 3.5)
"""So long lasts one in ten of a storm, and a worker is always stopped: another one takes its
entries after 2 s."""
DEPTH: Final = 3
"""Faults at once."""
BESIDE: Final = 6
"""Most of them, one after the other, while one lasts."""
LATE_S: Final = 0.05
REVIVED_S: Final = 0.02
"""After so long a process that has ended is started again."""
ONE_IN: Final = 10
"""Answers that are lost, while some are."""
CLOCKS_S: Final = (-36_000, -3_600, -60, 60, 3_600, 36_000)
DISK_BYTES: Final = 16 << 20
VICTIMS: Final = (
    *("worker 1", "worker 2", "scheduler", "jobs 1", "jobs 2", "web"),
    *("statsd", "tail", "app 1", "app 2", "named app", "shop", "command"),
)
DEEDS: Final = ("killed", "terminated", "stopped", "with another clock")
OFTEN: Final = (6, 6, 3, 1)
"""How often each in a storm: a clock is moved in a second, and the others in a moment."""
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
        beside: what else befalls while it lasts, one after the other.
        lasts_s: how long it lasts, if that takes no longer.
        clock_s: how far a clock is moved.
        settles: whether the next one waits until all goes on, and not only until an entry is
            applied.
    """

    victim: str
    deed: str
    beside: tuple[Blow, ...]
    lasts_s: float
    clock_s: int
    settles: bool

    @property
    def faults(self) -> int:
        """How many it is, with those beside it."""
        return 1 + sum(each.faults for each in self.beside)

    @property
    def struck(self) -> str:
        """What no fault beside it may strike: two of one kind would not be two."""
        if self.victim:
            return self.victim
        server, _, what = self.deed.partition(" ")
        return f"{server} answers" if what.startswith("answers") else server

    def __str__(self) -> str:
        beside = f" ({', '.join(map(str, self.beside))})" if self.beside else ""
        return f"{self.victim} {self.deed}".strip() + beside


def plan(seed: int, faults: int = FAULTS) -> list[Blow]:
    """The faults of the round with this seed, in their order."""
    draw, found = random.Random(seed), []
    for _ in range(faults):
        strikes = [(draw.choice(VICTIMS), draw.choice(deeds)) for deeds in (DEEDS, DEEDS[:2])]
        server, beside = draw.random() < 0.5, draw.random() < 0.4
        fault = draw.choice(SERVER_FAULTS)
        drawn = draw.uniform(*LASTS_S), draw.choice(CLOCKS_S)
        struck = ("", fault) if server else strikes[0]
        besides: tuple[Blow, ...] = ()
        if server and beside and "disk" not in fault:
            besides = (Blow(*strikes[1], (), *drawn, settles=False),)
        found.append(Blow(*struck, besides, *drawn, settles=draw.random() < 0.5))
    return found


def storm(seed: int, faults: int = STORM) -> list[Blow]:
    """The faults of the round of `storm` with this seed: the cheap ones often."""
    draw, found = random.Random(seed), list[Blow]()
    while sum(blow.faults for blow in found) < faults:
        found.append(_drawn(draw, ()))
    return found


def _drawn(draw: random.Random, during: tuple[str, ...]) -> Blow:
    """A fault while these are struck."""
    while True:
        server, long = draw.random() < 0.35, draw.random() < 0.1
        victim = "" if server else draw.choice(VICTIMS)
        deed = draw.choice(SERVER_FAULTS) if server else draw.choices(DEEDS, OFTEN)[0]
        long |= victim.startswith("worker") and deed == "stopped"
        lasts_s, clock_s = draw.uniform(*(LONG_S if long else SHORT_S)), draw.choice(CLOCKS_S)
        blow = Blow(victim, deed, (), lasts_s, clock_s, draw.random() < 0.1)
        disk = "disk" in deed
        if blow.struck in during or (during and disk):
            continue
        if disk or not (server or deed == "stopped") or len(during) + 1 == DEPTH:
            return blow
        times, struck = draw.randrange(BESIDE + 1), (*during, blow.struck)
        return replace(blow, beside=tuple(_drawn(draw, struck) for _ in range(times)))


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
        self._crew.revive()
        if blow.victim and blow.deed != "stopped":
            self._end(blow)
            return
        if "disk" in blow.deed:
            if not os.path.ismount(self._disk):
                return
            self._crew.settle()  # what ends now needs a place for what is not stored
        with self._stopped(blow) if blow.victim else self._lasting(blow):
            for each in blow.beside:
                self._wait(blow)
                self.befall(each)
            self._wait(blow)

    def _end(self, blow: Blow) -> None:
        """End a process by a signal."""
        clock_s = blow.clock_s if blow.deed == "with another clock" else 0
        if clock_s and (blow.victim == "command" or not shutil.which("gcc")):
            return
        if blow.victim == "command":
            if (child := self._crew.command) is None or not child.running:
                return
            (child.kill if blow.deed == "killed" else child.terminate)()
        elif blow.deed == "killed":
            self._crew.kill(blow.victim)
        else:
            self._crew.terminate(blow.victim, clock_s)
        self._count(blow)

    def _count(self, blow: Blow) -> None:
        self.done[f"{re.sub(' [0-9]', '', blow.victim)} {blow.deed}".strip()] += 1

    def _wait(self, blow: Blow) -> None:
        """A part of the time that it lasts."""
        over = time.monotonic() + blow.lasts_s / (len(blow.beside) + 1)
        while (left := over - time.monotonic()) > 0:
            threading.Event().wait(min(left, REVIVED_S))
            self._crew.revive()

    @contextmanager
    def _stopped(self, blow: Blow) -> Iterator[None]:
        """A process that does nothing meanwhile."""
        crew = self._crew
        child = crew.command if blow.victim == "command" else crew.now[blow.victim]
        if child is None or not child.running:
            yield
            return
        self._count(blow)
        child.stop()
        try:
            yield
        finally:
            child.go_on()

    @contextmanager
    def _lasting(self, blow: Blow) -> Iterator[None]:
        """A fault of a server, which is over afterwards."""
        server, _, what = blow.deed.partition(" ")
        if not what.startswith("answers"):
            self._count(blow)
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
            if rule.acted:
                self._count(blow)
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
