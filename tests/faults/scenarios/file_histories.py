"""Histories of files: logs that are written, rotated, copied, compressed and put together, and
backfills of them, some of which are killed, meet each other or are undone, beside live increments.

After each step all totals are held against books, see ``file_history_books.py``. Each step draws
from a generator of its own, seeded with the seed, the number of the history and that of the step.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.cli.command import piped
from tests.faults.backfilling import ENDS_WITHIN
from tests.faults.scenarios.file_history_books import FIGURES, Days, Figures, FileBook, Given, waits
from tests.faults.scenarios.file_history_counter import Cell, FileCounter
from tests.faults.stage import Stage
from tests.support.traffic import now_ms
from tests.support.virtual_logs import (
    PACKERS,
    READING,
    LineWriter,
    LogFile,
    VirtualLog,
)

HISTORIES: Final = 4
RECONCILES: Final = 60
STEPS: Final = range(5, 16)
CHUNKS: Final = (10, 10, 30, 100, 65_536)
"""Lines of a chunk."""
MOST: Final = 40_000
"""The sum of increments that are sent while a reconcile runs, about."""
COUNTED: Final = (
    "SELECT run, source, start_at, end_at, digest FROM backfill_chunk"
    " WHERE run IN ({}) ORDER BY source, start_at"
)
STEP: Final = (
    "write 20, rotate 5, rename 3, remake 18, add 27, dry 8, together 8, kill 10, undo 10,"
    " undo_beside 4, reconcile 6, live 5, change 5, delete 1"
)
"""Steps of a history with how often each is drawn, relative to the others."""
RECONCILING: Final = "write 3, add 1, undo 2, live 2, change 4, reconcile 8"
"""Steps of histories that reconcile beside live increments."""
Report = Mapping[str, Any]


def backfills(stage: Stage, histories: int = HISTORIES) -> None:
    """Play histories of all kinds of steps."""
    for number in range(histories):
        _play(stage, number, STEP)


def reconciles(stage: Stage, left: int = RECONCILES) -> None:
    """Play histories that reconcile beside live increments, until there were so many reconciles."""
    numbers = count()
    while left > 0:
        left -= _play(stage, next(numbers), RECONCILING)["reconcile"]


def _play(stage: Stage, number: int, steps: str) -> Counter[str]:
    """Play a history; how often each step was done."""
    with ExitStack() as stack:
        history = FileHistory(stage, number, steps, stack)
        try:
            history.play()
        finally:
            print(f"history {history.seed}: {', '.join(history.said)}", flush=True)
    return Counter(history.said)


class FileHistory:
    """One history of some steps, each of which is drawn as often as its number says."""

    def __init__(self, stage: Stage, number: int, steps: str, stack: ExitStack) -> None:
        self.seed = f"{stage.seed} {number}"
        self._stage, reconciling = stage, steps == RECONCILING
        drawn = [step.split() for step in steps.split(", ")]
        self._steps = {name: int(weight) for name, weight in drawn}
        draw = self._draw = random.Random(self.seed)
        stage.chunk_lines = draw.choice(CHUNKS)
        dimensioned = not reconciling and draw.random() < 0.25
        self._counter = FileCounter(stage, f"log{number}", draw, stack, dimensioned)
        self._backfills, self.change = self._counter.backfills, self._counter.change
        self._runs: dict[int, Counter[Cell] | None] = {}
        """Runs that are not undone; of a reconcile with what it has changed."""
        self._live, self._dropped = Counter[Cell](), Counter[Cell]()
        self._form, self._filtered = draw.choice([*READING]), draw.random() < 0.5
        self.said = [f"{self._form} {self._counter.zone} {self._counter.resolution}"]
        self._directory = stage.directory / f"log{number}-{draw.getrandbits(32)}"
        self._directory.mkdir()
        self._names = count()
        self._writer = LineWriter(self._form, self._counter.minutes)
        self._book = FileBook(self._writer.said, self._counter.zone, filtered=self._filtered)
        self._logs = [VirtualLog(self._path("access.log")) for _ in range(2)]
        self._files: list[LogFile] = []
        for log in self._logs:
            log.write(draw, self._writer.lines(draw, draw.choice((3, 30, 120, 500))))
        self._worker = stage.worker(proxied=False)
        if draw.random() < 0.3:
            stack.enter_context(stage.compacting())

    def play(self) -> None:
        """Do the steps, then add all files, and maybe undo all runs; nothing is left behind."""
        for step in range(self._draw.choice(STEPS)):
            draw = random.Random(f"{self.seed} {step}")
            self.said += draw.choices([*self._steps], [*self._steps.values()])
            getattr(self, self.said[-1])(draw)
            self._check()
        for part in (0.3, 0.0, draw.choice((0.0, 1.0))):
            for file in self._all():
                given, arguments = self._given(self._draw, [file], plain=True)
                self._enter([(given, self._backfills.report(*arguments))])
                self._check()
            for run in self._draw.sample([*self._runs], round(part * len(self._runs))):
                if run in self._runs:
                    self.undo(self._draw, run)
                    self._check()
        assert self._runs or self._book.cells == self._live
        self._stage.end(self._worker)
        self._counter.delete()

    def _check(self) -> None:
        self._stage.wait_applied()
        self._book.marks = {*self._counter.marks()}
        self._counter.check(self._book.cells, f"{self.said} (seed {self.seed})")

    # -- files -----------------------------------------------------------------------------------

    def write(self, draw: random.Random) -> None:
        """A log grows, to any byte of its last lines."""
        lines = self._writer.lines(draw, draw.choice((1, 2, 30, 120, 400)))
        draw.choices(self._logs, (3, 1))[0].write(draw, lines)

    def rotate(self, draw: random.Random) -> None:
        """A log is renamed, or copied and truncated, maybe compressed, and begun anew."""
        packing = draw.choice([*PACKERS])
        older = self._path(f"access.log.1{packing}")
        self._files.append(draw.choice(self._logs).rotate(draw, older, packing))

    def rename(self, draw: random.Random) -> None:
        """An older file gets another name."""
        if self._files:
            file = draw.choice(self._files)
            file.path = file.path.rename(self._path(f"renamed{file.packing}"))

    def remake(self, draw: random.Random) -> None:
        """A file is copied, whole or in part, or two are put together, the first one up to its last
        whole line, or its last lines stand before new ones.
        """
        one, other = self._any(draw).content, self._any(draw).content
        lines = one.splitlines(keepends=True)[: one.count(b"\n")]
        last = lines[-draw.choice((2, 7, 9, 40)) :]
        new = self._writer.lines(draw, draw.choice((5, 60, 150)))
        part = one[: draw.randrange(len(one) + 1)]
        self._keep(
            draw, draw.choice((one, part, b"".join([*lines, other]), b"".join([*last, new])))
        )

    def _keep(self, draw: random.Random, content: bytes) -> LogFile:
        packing = draw.choice([*PACKERS])
        self._files.append(LogFile(self._path(f"file.log{packing}"), content, packing).save(draw))
        return self._files[-1]

    def _path(self, name: str) -> Path:
        return self._directory / f"{next(self._names)}-{name}"

    def _all(self) -> list[LogFile]:
        return [*self._logs, *self._files]

    def _any(self, draw: random.Random) -> LogFile:
        return self._logs[0] if draw.random() < 0.4 else draw.choice(self._all())

    # -- backfills -------------------------------------------------------------------------------

    def add(self, draw: random.Random) -> None:
        """One or two files are added; now and then what is in one comes through a pipe."""
        through_pipe, files = draw.random() < 0.2, draw.sample(self._all(), draw.choice((1, 1, 2)))
        files = files[:1] if through_pipe else files
        given, arguments = self._given(draw, files, through_pipe=through_pipe)
        arguments += ["--jobs", "2"] if draw.random() < 0.1 else []
        with piped(given[0].content) if through_pipe else nullcontext():
            self._enter([(given, self._backfills.report(*arguments))])

    def dry(self, draw: random.Random) -> None:
        """A dry run changes nothing, and tells what the run does that follows."""
        given, arguments = self._given(draw, draw.sample(self._all(), draw.choice((1, 1, 2))))
        tried = self._backfills.report(*arguments, "--dry-run")
        self._check()
        report = self._backfills.report(*arguments)
        found = self._enter([(given, report)])
        for pair in zip(tried["sources"], report["sources"], strict=True):
            one, other = ([*map(each.get, FIGURES), each["outcome"] == "failed"] for each in pair)
            assert one == other, pair
        added = Counter[str]()
        for (day, _), amount in found.cells.items():
            added[str(day)] += amount
        assert Counter({one["day"]: one["amount"] for one in tried["by_day"]}) == added, tried

    def together(self, draw: random.Random) -> None:
        """Two backfills begin together, of one file, of two copies, or of any two."""
        file = self._any(draw)
        other = draw.choice((file, self._keep(draw, file.content), self._any(draw)))
        seed = draw.random()  # for the same options
        pairs = [self._given(random.Random(seed), [one]) for one in (file, other)]
        begun = [self._backfills.start(*arguments) for _, arguments in pairs]
        self.live(draw)
        reports = [self._backfills.reported(child) for child in begun]
        self._enter([(given, one) for (given, _), one in zip(pairs, reports, strict=True)])

    def kill(self, draw: random.Random) -> None:
        """A backfill is killed, and mostly run again."""
        given, arguments = self._given(draw, [self._any(draw)])
        self.live(draw)
        for run in self._backfills.killed_runs(*arguments):
            read = self._backfills.shown(run)["read"]
            counted = self._enter([(given, {"run": run, "sources": []})]).numbers
            assert Counter({name: sum(one[name] for one in read) for name in FIGURES}) == counted
        self._check()
        if draw.random() < 0.7:
            self._enter([(given, self._backfills.report(*arguments))])

    def undo(self, draw: random.Random, run: int = 0) -> None:
        """A run is undone, with those that have read on behind it, by processes some of which are
        killed.
        """
        if self._runs:
            number = run or draw.choice([*self._runs])
            undone = self._backfills.undo(number, draw.choice((0, 0, 0, 0, 1, 2)))
            for one in undone:
                self._book.cells.subtract(self._runs.pop(one) or {})
            self._book.undo(undone)

    def undo_beside(self, draw: random.Random) -> None:
        """A run is undone while another one counts."""
        added = [run for run, changed in self._runs.items() if changed is None]
        if added:
            given, arguments = self._given(draw, [self._any(draw)])
            run = draw.choice(added)
            child = self._backfills.start(*arguments)
            undone = self._backfills.undo(run)
            if {*undone} <= self._runs.keys():
                self._enter([(given, self._backfills.reported(child))], undone)
            else:  # the one that counted as well
                child.wait(ENDS_WITHIN)
                self._book.undo(undone)
            for one in undone:
                self._runs.pop(one, None)

    def _given(
        self,
        draw: random.Random,
        files: Sequence[LogFile],
        *,
        plain: bool = False,
        through_pipe: bool = False,
    ) -> tuple[list[Given], list[str]]:
        """Contents that a backfill is given, and its arguments."""
        day = draw.choice(self._counter.days)
        days: Days = None, None
        if not plain and draw.random() < 0.08:
            days = draw.choice(((day, None), (None, day), (day, day)))
        repeats, age_s = not plain and draw.random() < 0.1, draw.choice((0, 7200))
        given, now = [], time.time()
        for file in files:
            os.utime(file.path, (now - age_s, now - age_s))
            due, packed = file.content, bool(file.packing)
            if waits(self._form, piped=through_pipe, packed=packed, age_s=age_s):
                due = due[: due.rfind(b"\n") + 1]
            name = "-" if through_pipe else str(file.path)
            given.append(Given(name, file.content, due, days, repeats))
        more = ["--count-repeats"] if repeats else []
        return given, [*(one.name for one in given), *self._reading(days), *more]

    def _reading(self, days: Days) -> list[str]:
        """The options that say how a log is read."""
        key, web, *said = READING[self._form]
        said += ["--dimension", f"page={key}"] if self._counter.dimensioned else ["--key", key]
        said += ["--where", web] if self._filtered else []
        for option, day in zip(("--from", "--to"), days, strict=True):
            said += [option, str(day)] if day else []
        return said

    def _enter(
        self, ended: Sequence[tuple[Sequence[Given], Report]], undone: Sequence[int] = ()
    ) -> Figures:
        """Enter what some runs have counted, and compare it with their reports; the sum."""
        given = {report["run"]: contents for contents, report in ended}
        rows = self._counter.oracle.rows(COUNTED.format(", ".join(map(str, given))))
        found, whole = self._book.enter(given, rows, undone), Figures()
        for contents, report in ended:
            self._runs[report["run"]] = None
            for one, told in zip(contents, report["sources"], strict=False):
                self._book.check(one, found[one], told, alone=not undone)
            for one in contents:
                whole.add(found[one])
        return whole

    # -- besides ---------------------------------------------------------------------------------

    def reconcile(self, draw: random.Random) -> None:
        """Days are set to what all logs say, beside live increments; what comes late is in it. Now
        and then a process is killed before, or there are two.
        """
        logs = [one for log in self._logs if (one := log.older + log.content)]
        if self._counter.dimensioned or not logs:
            return
        files = [self._keep(draw, content) for content in logs]
        first, last = sorted(draw.choice(self._counter.days) for _ in range(2))
        missing = draw.random() < 0.3
        arguments = [
            *(str(file.path) for file in files),
            *("--mode", "reconcile", *self._reading((first, last))),
            *(("--delete-missing", "--max-rejects", "1000") if missing else ()),
        ]
        if draw.random() < 0.2:
            for run in self._backfills.killed_runs(*arguments):
                self._corrected(run)
            self._check()
        before, at = Counter(self._book.cells), now_ms(self._stage.redis)
        begun = [self._backfills.start(*arguments) for _ in range(draw.choice((1, 1, 1, 2)))]
        during = Counter[Cell]()
        while during.total() < MOST and any(child.running for child in begun):
            # not to wait for anything: for a moment that nobody has chosen
            threading.Event().wait(draw.uniform(0, 0.05))
            during.update(self.live(draw))
        said = [self._book.figures(content, (first, last)) for content in logs]
        whole = all(one.numbers["lines"] > one.numbers["rejected"] for one in said)
        truth = Figures()
        for of_log in said:
            truth.add(of_log)
        whole &= truth.numbers["counted"] > 0 or not (missing or truth.numbers["rejected"])
        is_set = {day for day in self._counter.days if first <= day <= last and whole}
        is_set -= {*self._counter.days} if self._counter.in_months else set()
        changed = Counter[Cell]()
        for report in map(self._backfills.reported, begun):
            assert (report["state"] == "done") == whole, report
            assert {*self._counter.marks(report["run"])} == is_set, report
            changed.update(self._corrected(report["run"]))
        for cell in {*before, *changed, *during, *truth.cells}:
            above = before[cell] + changed[cell] + during[cell] - truth.cells[cell]
            if cell[0] in is_set and (missing or cell in truth.cells):
                assert 0 <= above <= during[cell], (cell, above)
            else:
                assert not changed[cell], cell
        self._enter_dropped(Counter(), during)
        marks, late = self._counter.marks(), self.live(draw, at - 1)
        dropped = Counter({one: n for one, n in late.items() if at <= marks.get(one[0], 0)})
        self._enter_dropped(dropped, dropped)

    def _corrected(self, run: int) -> Counter[Cell]:
        """Enter what a reconcile tells that it has changed."""
        changed = self._runs[run] = self._backfills.corrections(run)
        self._book.cells.update(changed)
        return changed

    def delete(self, _draw: random.Random) -> None:
        """The counter is deleted, with all that backfills have done, and made anew."""
        if not self._counter.dimensioned:
            self._counter.delete()
            self._counter.make()
            self._book = FileBook(self._writer.said, self._counter.zone, filtered=self._filtered)
            self._live.clear()
            self._runs.clear()

    def live(self, draw: random.Random, at: int = 0) -> Counter[Cell]:
        """Send live increments, accepted now or at a time; what they add up to."""
        cells = self._counter.live(draw, at)
        for books in self._book.cells, self._live:
            books.update(cells)
        return cells

    def _enter_dropped(self, least: Counter[Cell], most: Counter[Cell]) -> None:
        """Enter what of increments was not counted, as a reconcile has set their days."""
        self._stage.wait_applied()
        dropped = self._counter.dropped()
        new, self._dropped = dropped - self._dropped, dropped
        assert least <= new <= most, (least, new, most)
        for books in self._book.cells, self._live:
            books.subtract(new)
