"""Senders of a round of `everything` that are no applications with a producer: each has a step that
is taken again and again, and enters what was promised into the book.
"""

import json
import re
import socket
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Final

import requests

from tests.campaign.book import Book, event
from tests.campaign.crew import Crew
from tests.support.processes import Child
from tests.support.waiting import eventually

BATCH: Final = 20
LINES: Final = 2
"""Different lines of a packet: equal ones are one increment of the listener's."""
DONE_S: Final = 120.0
STOPPED: Final = (1, 143, -9, -15)
"""Statuses of a command that did not come to its end: a server was away, or it was ended."""
COLUMNS: Final = ("--key-column", "key", "--time-column", "time", "--format", "json")
DAYS: Final = ("2026-11-20", "2026-11-21", "2026-11-22")
MAP: Final = '[[rule]]\nmatch = "s.*"\ncounter = "packets"\nkey = "$1"\n'
FIGURES: Final = re.compile(r"countersink_producer_increments_(\w+)_total (\d+)")


class Posts:
    """Requests with an Idempotency-Key, each sent until it is answered as stored."""

    def __init__(self, book: Book, url: str, seed: int, base: int) -> None:
        self._book, self._url, self._seed, self._base = book, url, seed, base
        self._numbers = count()

    def step(self) -> None:
        """Send a request."""
        number = next(self._numbers)
        batch = [event(self._seed, "posts", BATCH * number + n, self._base) for n in range(BATCH)]
        body = [
            {"counter": each.counter, "key": each.key, "amount": each.amount}
            | ({"at": each.at.isoformat()} if each.at else {})
            | ({"visitor": each.member} if each.member else {})
            for each in batch
        ]
        headers = {"Idempotency-Key": f"request-{number}"}
        while True:
            try:
                answer = requests.post(self._url, json=body, headers=headers, timeout=10)
            except requests.RequestException:
                time.sleep(0.1)
                continue
            if answer.status_code == 200:
                break
            assert answer.status_code in (202, 429, 503), answer.text
            time.sleep(0.1)
        self._book.add(batch, counted=True, told=True)
        self._book.events["requests"] += BATCH
        time.sleep(0.02)


class Packets:
    """StatsD by UDP, which acknowledges nothing: what had arrived counts if the listener is ended
    in good order, or says that nothing of it waits in its memory.
    """

    def __init__(self, book: Book, crew: Crew, port: int, metrics: str) -> None:
        self._book, self._crew, self._metrics = book, crew, metrics
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._numbers = count()
        self.statuses: dict[Child, int] = {}
        """Of the listeners that were ended by SIGTERM."""

    def step(self) -> None:
        """Send a packet, once the listener serves its metrics."""
        listener = self._crew.now["statsd"]
        before = self._stored()
        if before is None:
            time.sleep(0.05)
            return
        number = next(self._numbers)
        lines = [f"s.hot{number % 3}:1|c", f"s.{number}:1|c"] * (BATCH // 2)
        with self._crew.lock:
            now, ending = self._crew.now["statsd"], "statsd" in self._crew.ending
            if now is not listener or ending or not listener.running:
                return
            self._socket.send("\n".join(lines).encode())

        counted = False

        def settled() -> bool:
            nonlocal counted
            counted = self._stored(before + LINES) is not None
            return counted or not listener.running

        eventually(settled, DONE_S, message="statsd does not store what it was sent")
        if not counted:  # it has ended: in good order?
            eventually(lambda: self._crew.now["statsd"] is not listener, DONE_S)
            counted = self.statuses.get(listener) == 0
        for key in (f"hot{number % 3}", str(number)):
            self._book.enter("packets", "", key, BATCH // 2, counted=counted)
        self._book.events["packets"] += BATCH
        time.sleep(0.02)

    def _stored(self, least: int = 0) -> int | None:
        """How many increments the listener has stored; None: not so many, or not all it has
        accepted.
        """
        try:
            text = requests.get(self._metrics, timeout=2).text
        except requests.RequestException:
            return None
        found = Counter({name: int(number) for name, number in FIGURES.findall(text)})
        stored = found["stored"] + found["spooled"]
        return stored if found["accepted"] == stored >= least else None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class AccessLog:
    """A log that is written to and rotated; each line counts by ``countersink tail``."""

    def __init__(self, book: Book, path: Path) -> None:
        self._book, self._path = book, path
        self._numbers = count()
        path.touch()

    def step(self) -> None:
        """Write a few lines; now and then rename the log first."""
        number = next(self._numbers)
        if number and number % 60 == 0:
            for older in range(number // 60 - 1, 0, -1):
                self._rotated(older).rename(self._rotated(older + 1))
            self._path.rename(self._rotated(1))
        day, key = DAYS[number % len(DAYS)], f"/{number % 7}"
        line = (
            f"10.0.0.1 - - [{day[-2:]}/Nov/2026:10:00:00 +0000]"
            f' "GET {key} HTTP/1.1" 200 12 "-" "{number}"\n'
        )
        with self._path.open("a") as file:
            file.write(line * BATCH)
        self._book.enter("lines", day, key, BATCH, counted=True)
        self._book.events["log lines"] += BATCH
        time.sleep(0.05)

    def _rotated(self, number: int) -> Path:
        """As logrotate names them: the highest number is the oldest file."""
        return self._path.with_name(f"{self._path.name}.{number}")


class Files:
    """Files that are backfilled, every other one undone; a command that fails is run again."""

    def __init__(self, book: Book, crew: Crew, directory: Path, lines: int) -> None:
        self._book, self._crew, self._directory, self._lines = book, crew, directory, lines
        self._numbers = count()

    def step(self) -> None:
        """Backfill a file; undo every other one."""
        number = next(self._numbers)
        path = self.write(number)
        undone = number % 2 == 1
        words = ("backfill", str(path), "--counter", "undone" if undone else "filed", *COLUMNS)
        while self._said(*words) is None:
            time.sleep(0.2)
        if undone:
            while runs := self._left(str(path)):
                self._said("backfills", "undo", *runs)
        else:
            for n in range(self._lines):
                self._book.enter("filed", DAYS[n % 3], f"{number} {n % 20}", 1, counted=True)
        self._book.events["lines of files"] += self._lines
        path.unlink()
        time.sleep(0.5)

    def write(self, number: int) -> Path:
        """The file with this number."""
        path = self._directory / f"{number}.csv"
        rows = [f"{DAYS[n % 3]}T10:00:00Z,{number} {n % 20}\n" for n in range(self._lines)]
        path.write_text("time,key\n" + "".join(rows))
        return path

    def _left(self, path: str) -> list[str]:
        """Runs of a file that are not undone: each command that was ended may have counted it."""
        while (said := self._said("backfills", "list", "--format", "json")) is None:
            time.sleep(0.2)
        runs = json.loads(said[said.index("{") :])["runs"]
        return [
            str(run["run"]) for run in runs if run["sources"] == [path] and run["state"] != "undone"
        ]

    def _said(self, *words: str) -> str | None:
        """The output of a command; None if it did not come to its end."""
        child = self._crew.children.countersink(*words, environment=self._crew.environment)
        self._crew.command = child
        status, said = child.wait(DONE_S), child.output()
        self._crew.children.forget(child)
        assert status in (0, *STOPPED), f"{status}: {said}"
        return None if status else said
