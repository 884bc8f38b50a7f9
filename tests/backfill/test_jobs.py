"""Counting by job processes: real ones, killed, absent, without the file: the same totals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from countersink.backfill.count import job, parallel, task
from countersink.backfill.count.task import JobTerms, Team
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import BackfillReport, Progress
from countersink.backfill.run import backfill
from countersink.backfill.undo import undo
from countersink.schedules.runner.backfill_jobs import BackfillJobs
from countersink.schedules.runner.rq import PIECES, make_queue
from countersink.store import Store
from countersink.stream.connection import connect as connect_redis
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    add,
    keys_of,
    log,
    long_log,
    options,
    query,
    rejected,
    require_verified,
    run_of,
    totals,
    write,
)
from tests.store.helpers import together as at_once
from tests.support.forked import ForkedChildren
from tests.support.processes import COUNTERSINK, Child, Children
from tests.support.waiting import eventually

LINES = 2400
CHUNK = 200


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 200 lines; jobs are asked for, whatever the size."""
    monkeypatch.setattr(task, "LINES", CHUNK)
    monkeypatch.setattr(parallel, "LEAST_BYTES", 1)
    monkeypatch.setattr(parallel, "PATIENCE_S", 1.0)


@pytest.fixture
def children() -> Iterator[Children]:
    with ForkedChildren() as started:
        yield started


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A log of several chunks."""
    return write(tmp_path / "a.log", long_log(LINES))


@pytest.fixture
def team(redis_url: str) -> Iterator[BackfillJobs]:
    with BackfillJobs(redis_url) as made:
        yield made


class Ground:
    """Job processes on the test's servers."""

    def __init__(
        self, children: Children, team: BackfillJobs, mysql_url: str, redis_url: str
    ) -> None:
        self.children = children
        self.team = team
        self.mysql_url = mysql_url
        self.redis_url = redis_url

    def start(self, number: int = 1) -> list[Child]:
        """Start job processes, and wait until they are there."""
        before = self.team.processes()
        started = [
            self.children.start(
                [*COUNTERSINK, "jobs"],
                environment={
                    "COUNTERSINK_MYSQL_URL": self.mysql_url,
                    "COUNTERSINK_REDIS_URL": self.redis_url,
                    "COUNTERSINK_LOG_FORMAT": "json",
                },
                name="jobs",
            )
            for _ in range(number)
        ]
        eventually(lambda: self.team.processes() == before + number, message=self.outputs)
        return started

    def outputs(self) -> str:
        return "\n".join(child.output() for child in self.children)

    def add(
        self,
        *sources: Path,
        on_progress: Callable[[Progress], object] = lambda progress: None,
        stop: Callable[[], bool] = lambda: False,
        team: Team | None = None,
        **given: object,
    ) -> BackfillReport:
        """Add sources together with the job processes."""
        given = {"jobs": 2, "rejects": Path(f"{sources[0]}.rejects"), **given}
        return backfill(
            self.mysql_url,
            options(*sources, **given),
            on_progress=on_progress,
            stop=stop,
            team=team or self.team,
        )


class Threads:
    """Two job processes' worth of threads of this process: what a job does, without RQ.

    Attributes:
        between: called by a job between two chunks.
    """

    def __init__(self, mysql_url: str) -> None:
        self._mysql_url = mysql_url
        self._pool = ThreadPoolExecutor(2)
        self._jobs: list[Future[str]] = []
        self.between: Callable[[], object] = lambda: None

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def processes(self) -> int:
        return 2

    def enqueue(self, run: int, number: int, terms: JobTerms) -> None:
        stop = lambda: self.between() is not None  # noqa: E731
        task = partial(job.work, self._mysql_url, run, **terms, stop=stop)
        self._jobs.append(self._pool.submit(task))

    def alive(self, run: int) -> int:
        return sum(not one.done() for one in self._jobs)

    def said(self, run: int) -> list[str]:
        return [one.result() for one in self._jobs if one.done() and one.result()]


@pytest.fixture
def threads(mysql_url: str) -> Iterator[Threads]:
    with Threads(mysql_url) as made:
        yield made


@pytest.fixture
def ground(children: Children, team: BackfillJobs, mysql_url: str, redis_url: str) -> Ground:
    return Ground(children, team, mysql_url, redis_url)


def chunks(mysql_url: str, state: str = "done") -> int:
    found = query(mysql_url, "SELECT COUNT(*) FROM backfill_chunk WHERE state = %s", state)
    return int(found[0][0])


def work_horses(child: Child) -> list[int]:
    """The processes that a job process has forked."""
    listed = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def test_two_job_processes_count_all_of_it_and_once(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "PATIENCE_S", 300.0)  # however busy the machine is
    source = write(tmp_path / "a.log", long_log(LINES) + b"nonsense\n" + log("/0")[:-1])
    started = ground.start(2)
    with connect_redis(ground.redis_url) as client:
        nonsense: list[tuple[object, ...]] = [(), ("x", "y", "z", "a"), ([1], {}, "", 60)]
        for args in nonsense:
            make_queue(client).enqueue_call(PIECES, args=args)
    seen: list[Progress] = []
    report = ground.add(source, on_progress=seen.append)
    assert all(child.running for child in started)
    assert report.state == "done"
    why, where = report.notices
    assert why.startswith("1 line was rejected: ")
    assert where.startswith("the rejected lines are in ")
    assert (report.lines, report.counted, report.rejected) == (LINES + 2, LINES + 1, 1)
    assert max(one.jobs for one in seen) == 2
    wanted = keys_of(LINES)
    wanted[next(iter(wanted))] += 1
    assert totals(ground.mysql_url) == wanted
    assert chunks(ground.mysql_url) == LINES // CHUNK + 1
    assert [number for number, _, _ in rejected(ground.mysql_url)] == [LINES + 1]
    assert "pieces of a backfill are counted" in ground.outputs()
    again = ground.add(source)
    assert (again.lines, again.known_lines) == (0, LINES + 2)
    # It has grown, and its last line goes on: now by this process alone.
    write(source, long_log(LINES) + b"nonsense\n" + log("/0", "/0"))
    assert add(ground.mysql_url, source).counted == 1
    wanted[next(iter(wanted))] += 1
    assert totals(ground.mysql_url) == wanted


def test_job_processes_fill_a_breakdown_with_what_is_before_it(
    ground: Ground, source: Path
) -> None:
    with Store(ground.mysql_url) as store:
        store.counters.set(COUNTER, dimensions=["page"])
        ground.add(source, dimensions=(("page", "path"),), jobs=0)
        store.counters.set(COUNTER, breakdowns=["page"])
    ground.start(2)
    seen: list[Progress] = []
    report = ground.add(
        source, dimensions=(("page", "path"),), breakdown="page", on_progress=seen.append
    )
    assert (report.counted, max(one.jobs for one in seen)) == (LINES, 2)
    assert totals(ground.mysql_url, f"{COUNTER}#1") == keys_of(LINES)
    assert totals(ground.mysql_url) == {(DAY, ""): LINES}


def test_without_a_job_process_it_is_counted_here(ground: Ground, source: Path) -> None:
    report = ground.add(source)
    assert report.state == "done"
    (notice,) = report.notices
    assert notice.startswith("no job process is there to help (start some with `countersink jobs`)")
    assert totals(ground.mysql_url) == keys_of(LINES)


def test_without_redis_it_is_counted_here(ground: Ground, source: Path) -> None:
    with BackfillJobs("redis://127.0.0.1:1/0") as nobody:
        report = ground.add(source, team=nobody)
    (notice,) = report.notices
    assert "the queue of the job processes does not serve" in notice
    assert totals(ground.mysql_url) == keys_of(LINES)


@pytest.mark.parametrize("whole", [True, False])
def test_killed_in_the_midst_what_is_left_is_counted_all_the_same(
    ground: Ground, source: Path, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(parallel, "PATIENCE_S", 60.0)  # what is left it counts itself
    (child,) = ground.start()
    killed: list[int] = []

    def kill(_: Progress) -> None:
        if not killed and chunks(ground.mysql_url) >= 2:
            killed.extend(work_horses(child))
            if whole:
                child.kill()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    # Slowly: or it is over before it can be killed.
    report = ground.add(source, on_progress=kill, jobs=1, rate=1200)
    assert killed
    assert (report.state, report.lines) == ("done", LINES)
    # With its process the queue is gone; a process that lives counts on.
    assert len(report.notices) == whole
    assert totals(ground.mysql_url) == keys_of(LINES)


def test_jobs_that_have_not_got_the_file_say_so_and_it_is_counted_here(
    ground: Ground, source: Path
) -> None:
    ground.start(2)

    def unlink(_: Progress) -> None:
        # This process has it open.
        source.unlink(missing_ok=True)

    report = ground.add(source, on_progress=unlink)
    assert (report.state, report.lines) == ("done", LINES)
    (notice,) = report.notices
    assert "there is no such file or directory" in notice
    assert totals(ground.mysql_url) == keys_of(LINES)


def test_an_undo_ends_the_jobs_and_nothing_stays(
    ground: Ground, threads: Threads, source: Path
) -> None:
    begun = threading.Event()

    def undo_it() -> None:
        assert begun.wait(60)
        ((number,),) = query(ground.mysql_url, "SELECT id FROM backfill_run")
        undo(ground.mysql_url, number)

    def look(_: Progress) -> None:
        if chunks(ground.mysql_url) >= 3:
            begun.set()

    undoing = threading.Thread(target=undo_it)
    undoing.start()
    # Slowly: or it is over before it can be undone.
    with pytest.raises(BackfillError, match="nothing more is counted by it"):
        ground.add(source, team=threads, on_progress=look, rate=800)
    undoing.join(60)
    eventually(lambda: threads.alive(0) == 0)
    assert totals(ground.mysql_url) == {}
    assert query(ground.mysql_url, "SELECT * FROM backfill_chunk") == []
    report = add(ground.mysql_url, source)
    assert report.lines == LINES
    assert totals(ground.mysql_url) == keys_of(LINES)


def test_what_a_run_left_pending_the_next_one_counts(
    ground: Ground, threads: Threads, source: Path
) -> None:
    report = ground.add(
        source, team=threads, rate=800, stop=lambda: chunks(ground.mysql_url, "pending") > 3
    )
    assert report.state == "stopped"
    eventually(lambda: threads.alive(0) == 0)
    assert chunks(ground.mysql_url, "pending") > 0
    require_verified(ground.mysql_url)
    first = run_of(report)
    report = add(ground.mysql_url, source)
    assert report.state == "done"
    assert report.lines + report.known_lines == LINES
    assert report.lines > 0
    assert totals(ground.mysql_url) == keys_of(LINES)
    undo(ground.mysql_url, first)
    assert sum(totals(ground.mysql_url).values()) == report.lines


def test_too_many_rejects_stop_it(ground: Ground, threads: Threads, tmp_path: Path) -> None:
    content = long_log(1200) + b"nonsense\n" * 50 + long_log(1200, first=1200)
    source = write(tmp_path / "a.log", content)
    report = ground.add(source, team=threads, max_rejects=10)
    assert report.state == "stopped"
    assert any("more than 10 lines" in notice for notice in report.notices)
    require_verified(ground.mysql_url)
    assert rejected(ground.mysql_url) == []
    report = ground.add(source, team=threads, max_rejects=50)
    assert report.state == "done"
    assert totals(ground.mysql_url) == keys_of(LINES)


def test_two_commands_at_once_share_the_work(ground: Ground, mysql_url: str, source: Path) -> None:

    def run() -> BackfillReport:
        with Threads(mysql_url) as team:
            return ground.add(source, team=team)

    reports = at_once(run, run)
    assert [report.state for report in reports] == ["done", "done"]
    assert sum(report.lines for report in reports) == LINES
    assert totals(mysql_url) == keys_of(LINES)


def test_a_job_of_a_run_that_is_not_there_or_over_does_nothing(
    ground: Ground, mysql_url: str, tmp_path: Path
) -> None:
    assert "there is no backfill 7" in job.work(mysql_url, 7)
    source = write(tmp_path / "a.log", long_log(10))
    assert job.work(mysql_url, run_of(add(mysql_url, source))) == ""
    assert totals(mysql_url) == keys_of(10)


def test_a_reconcile_is_read_by_jobs_too(
    ground: Ground, threads: Threads, redis_url: str, source: Path
) -> None:
    asked = options(source, mode="reconcile", jobs=2)
    for corrections in (7, 0):
        report = backfill(ground.mysql_url, asked, redis_url=redis_url, team=threads)
        assert (report.state, report.corrections) == ("done", corrections)
        assert report.lines == LINES
        assert totals(ground.mysql_url) == keys_of(LINES)


def test_jobs_count_nothing_behind_a_reconcile(
    ground: Ground, threads: Threads, redis_url: str, source: Path
) -> None:
    corrected: list[BackfillReport] = []
    over = threading.Event()

    def between() -> None:
        if chunks(ground.mysql_url):
            over.wait(30)

    def look(_: Progress) -> None:
        if chunks(ground.mysql_url) and not corrected:
            asked = options(source, mode="reconcile")
            corrected.append(backfill(ground.mysql_url, asked, redis_url=redis_url))
            over.set()

    threads.between = between
    report = ground.add(source, team=threads, on_progress=look, rate=2000)
    assert (report.state, corrected[0].state) == ("failed", "done")
    assert f"backfill {corrected[0].run} has set" in report.sources[0].detail
    assert totals(ground.mysql_url) == keys_of(LINES)
