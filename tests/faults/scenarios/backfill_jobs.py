"""A big log, counted by job processes: whoever of them dies, each line counts once."""

import threading
from pathlib import Path

from benchmarks.log_lines import write
from tests.faults.backfilling import DONE, ENDS_WITHIN, Backfills
from tests.faults.scenarios.backfill_reconcile import reconcile
from tests.faults.stage import Stage
from tests.faults.troupe import kill
from tests.support.logs import Book
from tests.support.processes import Child
from tests.support.waiting import eventually

LINES = 400_000
"""67 MiB: enough to be worth asking for help, see `backfill.planning.LEAST_BYTES`."""
READY = "waiting for runs"
STARTS_WITHIN = 30.0
DIES_WITHIN_S = 2.0


def counted_by_jobs(stage: Stage, lines: int = LINES) -> None:
    """Nobody dies: two job processes count it, and a second run adds nothing."""
    play = _Play(stage, lines)
    play.backfills.run(play.book.path, "--jobs", "2")
    play.backfills.check("counted by jobs")
    assert play.shares() >= 2, "one process has counted everything"
    play.backfills.known(play.book.path, "--jobs", "2")
    play.end()


def killed_at_random(stage: Stage, kills: int = 3, lines: int = LINES) -> None:
    """The process that plans, job processes and their work horses are killed again and again."""
    play = _Play(stage, lines)
    planning = play.start()
    for number in range(kills):
        # not to wait for anything: for a moment that nobody has chosen
        threading.Event().wait(stage.random.uniform(0.1, DIES_WITHIN_S))
        play.strike(planning)
        play.backfills.check_not_above(f"kill {number}")
        if not planning.running:
            planning = play.start()
    play.backfills.end(planning)
    play.backfills.run(play.book.path, "--jobs", "2")
    play.backfills.check("after deaths")
    play.backfills.check_rejects(play.book)
    play.backfills.known(play.book.path)
    play.end()


def reconciled_by_jobs(stage: Stage, kills: int = 3, lines: int = LINES) -> None:
    """The same of a log that is the truth: nothing had arrived live."""
    play = _Play(stage, lines, truth=True)
    for number in range(kills):
        planning = play.start()
        # not to wait for anything: for a moment that nobody has chosen
        threading.Event().wait(stage.random.uniform(0.1, 2 * DIES_WITHIN_S))
        play.strike(planning)
        if planning.running and stage.random.random() < 0.5:
            planning.kill()
        planning.wait(ENDS_WITHIN)
        play.backfills.check_not_above(f"kill {number}")
    play.backfills.end(play.start())
    play.backfills.check("reconciled by jobs")
    play.end()


def without_job_processes(stage: Stage, lines: int = LINES) -> None:
    """Nobody is there to help, or no longer: it is counted in the foreground."""
    play = _Play(stage, lines, processes=stage.random.choice((0, 1)))
    planning = play.start()
    for child in play.processes:
        child.kill()
    play.backfills.end(planning)
    play.backfills.check("without job processes")


class _Play:
    """A big log, and job processes.

    Attributes:
        book: of the log.
        processes: of `countersink jobs`.
    """

    def __init__(self, stage: Stage, lines: int, processes: int = 2, truth: bool = False) -> None:
        self.stage = stage
        self._truth = truth
        self.backfills = Backfills(stage)
        self.book = big_log(stage.directory / "big.log", lines, stage.seed)
        self.backfills.enter(self.book)
        self.processes: list[Child] = []
        for _ in range(processes):
            self._begin()

    def start(self) -> Child:
        """Start the backfill."""
        more = reconcile(self.book) if self._truth else ()
        return self.backfills.start(self.book.path, "--jobs", "2", *more)

    def strike(self, planning: Child) -> None:
        """Kill one of them."""
        draw, faults = self.stage.random, self.stage.faults
        what = draw.choice(("planning", "process", "horse", "both"))
        if what == "planning":
            planning.kill()
            faults["a planning backfill was killed"] += 1
            return
        working = [child for child in self.processes if horses_of(child)]
        victim = draw.choice(working or self.processes)
        horses = horses_of(victim)
        if what in ("process", "both"):
            victim.kill()
            faults["a job process was killed"] += 1
            self.processes.remove(victim)
        if what in ("horse", "both"):
            for pid in horses:
                kill(pid)
                faults["a piece of a backfill was killed"] += 1
        if what in ("process", "both"):
            self._begin()

    def shares(self) -> int:
        """How many processes have said that they did a piece."""
        return sum("no more pieces" in child.output() for child in self.processes)

    def end(self) -> None:
        """Job processes end in good order."""
        for child in self.processes:
            child.terminate()
        for child in self.processes:
            assert child.wait(30) == DONE, child.output()

    def _begin(self) -> None:
        child = self.stage.children.countersink(
            "jobs", environment=self.backfills.environment(self.stage.mysql_url)
        )
        self.processes.append(child)
        eventually(lambda: READY in child.output(), STARTS_WITHIN, message=child.output)


def big_log(path: Path, lines: int, seed: int) -> Book:
    """A log as the benchmarks count it."""
    log = write(path, lines, seed)
    book = Book(path, lines=lines)
    for (day, name), count in log.hits.items():
        book.hits[day, name.encode()] = count
    book.rejected = list(range(5_001, lines + 1, 10_000))
    assert len(book.rejected) == log.cut_off
    return book


def horses_of(child: Child) -> list[int]:
    """The processes in which a job process runs a job right now."""
    try:
        found = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    except OSError:
        return []
    return [int(pid) for pid in found]
