"""`countersink backfill` on a stage: run, killed, and held against the books."""

import gzip
import json
import re
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from countersink.backfill.count import read_ahead, task
from tests.cli.command import Result, call
from tests.faults.stage import Stage
from tests.support.logs import REAL, Book, Writer
from tests.support.logs import real as real_log
from tests.support.oracle import Oracle
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase

COUNTER = "log"
DONE, FAILED, REJECTED = 0, 1, 3
"""Exit statuses of a backfill that came to its end; failed: a source was refused."""
ENDS_WITHIN = 90.0
REQUESTS = 60
"""About as many as a short run sends, undoing half of it; a longer one dies early."""
LONGEST_LIFE_S = 1.5
"""Of those that are killed by the clock: from before their first line until after their end."""
REJECTS = """
    SELECT SUM(c.rejected) FROM backfill_chunk AS c JOIN backfill_source AS s ON s.id = c.source
    WHERE s.counter = %s
"""


class Backfills:
    """Backfills of one counter; ``books`` is what they must have added to the stage's traffic.

    Attributes:
        good: exit statuses that they may have.
        requests: after so many one is killed, at most.
    """

    def __init__(self, stage: Stage, counter: str = COUNTER) -> None:
        self.stage = stage
        self.counter = counter
        self.good: tuple[int, ...] = (DONE, REJECTED)
        self.requests = REQUESTS
        self.kills = 0
        self._numbers = count()
        self._rejects = Path()
        self._rejected = 0

    # -- running -------------------------------------------------------------------------------

    def start(self, *arguments: str | Path, proxied: bool = False) -> Child:
        """Start `countersink backfill`, behind the proxy if asked for."""
        return self._start(arguments, (), proxied=proxied)

    def run(self, *arguments: str | Path, proxied: bool = False) -> dict[str, Any]:
        """Run it to its end, which has to be a good one; its report."""
        report = self.report(*arguments, proxied=proxied)
        assert report["state"] == "done", report
        return report

    def report(self, *arguments: str | Path, proxied: bool = False) -> dict[str, Any]:
        """Run it; its report, whatever it says."""
        done = self._call(self._arguments(arguments), proxied=proxied)
        told = f"status {done.status} (seed {self.stage.seed})\n{done.out}\n{done.err}"
        assert done.status in self.good, told
        report: dict[str, Any] = done.json
        assert (done.status == FAILED) == (report["state"] == "failed"), told
        assert (done.status == REJECTED) <= (report["rejected"] > 0), told
        self._rejected = report["rejected"]
        return report

    def end(self, child: Child) -> None:
        """Wait for one's end, which has to be a good one."""
        status = child.wait(ENDS_WITHIN)
        assert status in self.good, f"status {status}\n{child.output()}"

    def reported(self, child: Child) -> dict[str, Any]:
        """Wait for one's end, which has to be a good one; its report."""
        self.end(child)
        lines = [line for line in child.output().splitlines() if line.startswith('{"run"')]
        assert lines, child.output()
        report: dict[str, Any] = json.loads(lines[-1])
        return report

    def undo(self, run: int, kills: int = 0) -> list[int]:
        """Take a run back, with those that it is told have read on behind it, by processes that are
        killed, as long as it is not done, then to its end; all these runs.

        What one that was killed has done to the end is not done again: it would be refused.
        """
        runs, left = self._with_those_behind(run) if kills else [run], kills
        while self.shown(runs[0])["state"] != "undone":
            command = ["backfills", "undo", *map(str, runs)]
            if left:
                left -= 1
                self.kill(command=command)
                continue
            done = self._call([*command, "--format", "json"])
            if found := re.search(r"counted later lines .* undo ([\d ]+)`", done.err):
                runs = [*map(int, found[1].split())]
                continue
            assert done.status == DONE, f"{done.out}\n{done.err}"
            assert done.json["state"] == "undone", done.out
        return runs

    def _with_those_behind(self, run: int) -> list[int]:
        """A run, and all that have read on behind it, or behind one of these."""
        found, before = {run}, set[int]()
        with Oracle(self.stage.mysql_url) as oracle:
            while found != before:
                before = set(found)
                runs = ", ".join(map(str, found))
                rows = oracle.rows(
                    "SELECT c.run FROM backfill_chunk AS c JOIN backfill_chunk AS own"
                    " ON own.source = c.source AND c.start_at > own.start_at"
                    f" WHERE own.run IN ({runs})"
                )
                found |= {int(one) for (one,) in rows}
        return sorted(found)

    def shown(self, run: int, *arguments: str) -> dict[str, Any]:
        """What `countersink backfills show` says of a run."""
        done = self._call(["backfills", "show", str(run), *arguments, "--format", "json"])
        assert done.status == DONE, f"{done.out}\n{done.err}"
        said: dict[str, Any] = done.json
        return said

    def corrections(self, run: int) -> Counter[tuple[date, str]]:
        """Changes that a reconcile tells of, by day and key."""
        changed = Counter[tuple[date, str]]()
        for one in self.shown(run, "--drift")["drift"]:
            changed[date.fromisoformat(one["day"]), one["key"]] += one["delta"]
        return changed

    def known(self, *arguments: str | Path) -> None:
        """Once more: nothing is counted, and nothing rejected."""
        report = self.run(*arguments)
        figures = {name: report[name] for name in ("counted", "rejected", "amount", "corrections")}
        assert not any(figures.values()), report

    # -- killing -------------------------------------------------------------------------------

    def until_killed(self, kills: int) -> Iterator[str]:
        """Rounds, until so many processes were killed before their end; a note for each."""
        for number in count(1):
            if self.kills >= kills:
                return
            yield f"round {number}, after {self.kills} kills"

    def kill(self, *arguments: str | Path, command: Sequence[str] = ()) -> bool:
        """Start one and kill it at random: at one of its requests, or by the clock.

        False if it came to its end before. ``command`` is another one than `backfill`.
        """
        draw, start = self.stage.random, partial(self._start, arguments, command)
        if draw.random() < 0.7:
            child, _ = self.stage.struck(
                partial(start, proxied=True),
                "*",
                draw.choice(list(Phase)),
                Deed.CUT,
                "kill",
                skip=draw.randrange(self.requests // 2 if command else self.requests),
                label="backfill killed",
            )
        else:
            child = start()
            # not to wait for anything: for a moment that nobody has chosen
            threading.Event().wait(draw.uniform(0.1, LONGEST_LIFE_S))
            self.stage.faults["backfill killed"] += child.running
            child.kill()
        status, good = child.wait(ENDS_WITHIN), (*self.good, -signal.SIGKILL)
        self.stage.mysql_proxy.forget()
        assert status in good, f"status {status} (seed {self.stage.seed})\n{child.output()}"
        self.kills += status == -signal.SIGKILL
        return status == -signal.SIGKILL

    def killed_runs(self, *arguments: str | Path) -> list[int]:
        """Start one and kill it; its run, if it has begun one, of which nothing is open now."""
        with Oracle(self.stage.mysql_url) as oracle:
            ((before,),) = oracle.rows("SELECT COALESCE(MAX(id), 0) FROM backfill_run")
            self.kill(*arguments)
            for table in ("backfill_source", "backfill_chunk", "backfill_run"):
                # Waits until what it has sent before is committed or rolled back.
                oracle.rows(f"SELECT 1 FROM {table} FOR UPDATE")
            begun = oracle.rows(f"SELECT id FROM backfill_run WHERE id > {before}")
        return [int(run) for (run,) in begun]

    def _call(self, arguments: Sequence[str], *, proxied: bool = False) -> Result:
        """`countersink ARGUMENTS` in this process: what is not to be killed begins faster here."""
        with (
            patch.object(task, "LINES", self.stage.chunk_lines),
            patch.object(read_ahead, "THREAD_CHUNKS", 1),
        ):
            return call(*arguments, **self._environment(proxied))

    def _start(
        self, arguments: Sequence[str | Path], command: Sequence[str], *, proxied: bool = False
    ) -> Child:
        program = [sys.executable, "-m", "tests.support.run_chunks", str(self.stage.chunk_lines)]
        return self.stage.children.start(
            [*program, *(command or self._arguments(arguments))],
            environment=self._environment(proxied),
            name="backfill",
        )

    def _arguments(self, arguments: Sequence[str | Path]) -> list[str]:
        name = f"{self.counter}-{next(self._numbers)}-rejects.ndjson"
        self._rejects = self.stage.directory / name
        return [
            *("backfill", *map(str, arguments), "--counter", self.counter),
            *("--format", "json", "--rejects", str(self._rejects)),
        ]

    def _environment(self, proxied: bool) -> dict[str, str]:
        return {
            "COUNTERSINK_REDIS_URL": self.stage.redis_server.url,
            "COUNTERSINK_MYSQL_URL": self.stage.url(proxied=proxied),
        }

    # -- books ---------------------------------------------------------------------------------

    def write(self, lines: int) -> Book:
        """A log of so many lines, which belong into the tables."""
        book = Writer(self.stage.seed).write(self.stage.directory / "access.log", lines)
        self.enter(book)
        return book

    def book(self, lines: int, *, real: bool = False) -> Book:
        """The real log, if it is asked for and to be had, else one of so many lines."""
        if not (real and REAL.exists()):
            return self.write(lines)
        book = real_log()
        self.enter(book)
        return book

    def enter(self, book: Book) -> None:
        """What is in the log belongs into the tables."""
        for (day, key), total in book.hits.items():
            self.stage.traffic.expected[self.counter, day, key] += total
        self.stage.traffic.increments += book.counted

    def check(self, note: str) -> None:
        """Hold the tables against the books, and against each other."""
        self.stage.check(note)
        self.stage.verify(note)

    def check_not_above(self, note: str) -> None:
        """Of a backfill that has not come to its end: nothing is counted twice."""
        with Oracle(self.stage.mysql_url) as oracle:
            totals = oracle.totals()
        expected = self.stage.traffic.expected
        above = {
            cell: (total, expected[cell])
            for cell, total in totals.items()
            if cell[0] == self.counter and total > expected[cell]
        }
        assert not above, f"{note} (seed {self.stage.seed}): counted, should be: {above}"
        self.stage.verify(note)

    def check_rejects(self, book: Book) -> None:
        """Rejected lines on record are as many as the log has, once each, and the file of the last
        run has those that it has rejected; :meth:`run` ran it.
        """
        with Oracle(self.stage.mysql_url) as oracle, oracle.connection.cursor() as cursor:
            cursor.execute(REJECTS, (self.counter,))
            assert cursor.fetchall() == ((len(book.rejected),),)
        if self._rejected:
            lines = [json.loads(line)["line"] for line in self._rejects.open()]
            assert len(lines) == len(set(lines)) == self._rejected
            assert set(lines) <= set(book.rejected)


def compressed(path: Path, directory: Path | None = None) -> Path:
    """A copy by gzip, in that directory, or beside it."""
    copy = (directory or path.parent) / (path.name + ".1.gz")
    with path.open("rb") as source, gzip.open(copy, "wb", compresslevel=1) as target:
        shutil.copyfileobj(source, target)
    return copy
