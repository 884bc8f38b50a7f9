"""A big log, read by child processes of the backfill: whoever of them dies, each line counts
once.
"""

import threading
from pathlib import Path

from benchmarks.log_lines import write
from tests.faults.backfilling import Backfills
from tests.faults.scenarios.backfill_reconcile import reconcile
from tests.faults.stage import Stage
from tests.faults.troupe import kill
from tests.support.logs import Book
from tests.support.processes import Child

LINES = 400_000
"""67 MiB: more chunks than the first ones, see `backfill.count.read_ahead.FIRST`."""
JOBS = ("--jobs", "3")
DIES_WITHIN_S = 1.5
TAKES_S = 2.0
"""About, unless it is killed."""


def counted_by_children(stage: Stage, lines: int = LINES) -> None:
    """Nobody dies: three processes count it, and a second run adds nothing."""
    play = _Play(stage, lines)
    report = play.backfills.run(play.book.path, *JOBS)
    assert report["notices"] == [each for each in report["notices"] if "rejected" in each]
    play.backfills.check("counted by children")
    play.backfills.known(play.book.path, *JOBS)


def killed_at_random(stage: Stage, kills: int = 3, lines: int = LINES) -> None:
    """A backfill and its children are killed again and again."""
    play = _Play(stage, lines)
    play.killed(kills)
    play.backfills.run(play.book.path, *JOBS)
    play.backfills.check("after deaths")
    play.backfills.check_rejects(play.book)
    play.backfills.known(play.book.path)


def reconciled_by_children(stage: Stage, kills: int = 3, lines: int = LINES) -> None:
    """The same of a log that is the truth: nothing had arrived live."""
    play = _Play(stage, lines, truth=True)
    play.killed(kills)
    play.backfills.end(play.start())
    play.backfills.check("reconciled by children")


class _Play:
    """A big log.

    Attributes:
        book: of the log.
    """

    def __init__(self, stage: Stage, lines: int, *, truth: bool = False) -> None:
        self.stage = stage
        self.backfills = Backfills(stage)
        self.book = big_log(stage.directory / "big.log", lines, stage.seed)
        self.backfills.enter(self.book)
        self._more = reconcile(self.book) if truth else ()

    def start(self, *more: str) -> Child:
        """Start the backfill."""
        return self.backfills.start(self.book.path, *JOBS, *self._more, *more)

    def killed(self, kills: int) -> None:
        """Start it, slowly, and kill it or some of its children; as often as asked for."""
        slowly = ("--rate", str(int(self.book.lines / TAKES_S)))
        running = self.start(*slowly)
        for number in range(kills):
            # not to wait for anything: for a moment that nobody has chosen
            threading.Event().wait(self.stage.random.uniform(0.1, DIES_WITHIN_S))
            self._strike(running)
            self.backfills.check_not_above(f"kill {number}")
            if not running.running:
                running = self.start(*slowly)
        self.backfills.end(running)

    def _strike(self, running: Child) -> None:
        draw, faults = self.stage.random, self.stage.faults
        children = children_of(running)
        if draw.random() < 0.5:
            running.kill()
            faults["a backfill was killed"] += 1
        for pid in draw.sample(children, draw.randint(0, len(children))):
            kill(pid)
            faults["a child of a backfill was killed"] += 1


def big_log(path: Path, lines: int, seed: int) -> Book:
    """A log as the benchmarks count it."""
    log = write(path, lines, seed)
    book = Book(path, lines=lines)
    for (day, name), count in log.hits.items():
        book.hits[day, name.encode()] = count
    book.rejected = list(range(5_001, lines + 1, 10_000))
    assert len(book.rejected) == log.cut_off
    return book


def children_of(child: Child) -> list[int]:
    """The processes that count for a backfill right now."""
    # Not multiprocessing's own.
    return [pid for pid in child.children() if "spawn_main" in command_of(pid)]


def command_of(pid: int) -> str:
    """The command line of a process; '' of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
