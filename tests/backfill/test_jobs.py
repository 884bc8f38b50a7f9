"""Counting by child processes: real ones, killed, told to stop, without the file: exact."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest

from countersink.backfill.count import parallel
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Progress
from countersink.backfill.run import backfill
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    Logs,
    add,
    keys_of,
    log,
    long_log,
    options,
    rejected,
    rejects_in,
    require_verified,
    run_of,
    set_counter,
)
from tests.store.helpers import together
from tests.support.forked import ForkedChildren
from tests.support.processes import Child, Children, is_running
from tests.support.proxies import Deed, MySQLProxy, Phase, Rule
from tests.support.waiting import eventually

LINES = 2400
CHUNK = 200
DONE, INTERRUPTED, TERMINATED = 0, 130, 143
"""Exit statuses."""


@pytest.fixture(autouse=True)
def small(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 200 lines; children are started, whatever the size."""
    logs.small_chunks(CHUNK)
    monkeypatch.setattr(parallel, "LEAST_BYTES", 1)


@pytest.fixture
def source(logs: Logs) -> Path:
    """A log of several chunks."""
    return logs.write("a.log", long_log(LINES))


@pytest.fixture
def children() -> Iterator[Children]:
    with ForkedChildren() as started:
        yield started


def chunks(logs: Logs, state: str = "done") -> int:
    ((found,),) = logs.query("SELECT COUNT(*) FROM backfill_chunk WHERE state = %s", state)
    return int(found)


def pids() -> set[int]:
    """Of this process's child processes."""
    return {child.pid for child in active_children() if child.pid is not None}


@contextmanager
def held(proxy: MySQLProxy, after: int, children: int) -> Iterator[Rule]:
    """So many children hang in the midst of a chunk each, after so many chunks."""
    rule = proxy.when("slots", Phase.AFTER, Deed.HOLD, skip=after, times=children)
    try:
        yield rule
    finally:
        proxy.forget()


def test_three_children_count_all_of_it_and_once(logs: Logs) -> None:
    content = long_log(LINES) + b"nonsense\n"
    # A name that is no UTF-8.
    source = logs.write(os.fsdecode(b"a\xff.log"), content + log("/0")[:-1])
    seen: list[Progress] = []
    rejects = logs.directory / "rejects"
    report = logs.add(source, jobs=3, on_progress=seen.append, rejects=rejects)
    assert report.state == "done"
    why, where = report.notices
    assert why.startswith("1 line was rejected: ")
    assert where.startswith("the rejected lines are in ")
    assert (report.lines, report.counted, report.rejected) == (LINES + 2, LINES + 1, 1)
    assert (max(one.jobs for one in seen), seen[-1].jobs) == (3, 0)
    wanted = keys_of(LINES)
    wanted[next(iter(wanted))] += 1
    assert logs.totals() == wanted
    assert chunks(logs) == LINES // CHUNK + 1
    assert [number for number, _, _ in rejected(logs.url)] == [LINES + 1]
    again = logs.add(source, jobs=3)
    assert (again.lines, again.known_lines) == (0, LINES + 2)
    # It has grown, and its last line goes on: now by this process alone.
    source.write_bytes(content + log("/0", "/0"))
    seen.clear()
    assert logs.add(source, jobs=1, on_progress=seen.append).counted == 1
    assert {one.jobs for one in seen} == {0}
    wanted[next(iter(wanted))] += 1
    assert logs.totals() == wanted


def test_children_count_breakdowns(logs: Logs, source: Path) -> None:
    set_counter(logs.url, dimensions=["page"], breakdowns=["page"])
    seen: list[Progress] = []
    report = logs.add(source, dimensions=(("page", "path"),), jobs=2, on_progress=seen.append)
    assert (report.counted, max(one.jobs for one in seen)) == (LINES, 2)
    assert logs.totals(f"{COUNTER}#1") == keys_of(LINES)
    assert logs.totals() == {(DAY, ""): LINES}


def test_children_that_are_killed_in_the_midst_of_a_chunk_are_replaced(
    logs: Logs, source: Path, proxy: MySQLProxy
) -> None:
    started: set[int] = set()
    killed: set[int] = set()

    with held(proxy, after=2, children=3) as rule:

        def kill(_: Progress) -> None:
            started.update(pids())
            if rule.acted == 3 and not killed:
                killed.update(sorted(started)[:2])
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
                eventually(lambda: not any(map(is_running, killed)))
                proxy.forget()

        report = add(proxy.url(logs.url), source, jobs=3, on_progress=kill)
    assert (report.state, report.lines, report.notices) == ("done", LINES, ())
    assert (len(killed), len(started)) == (2, 5)
    assert logs.totals() == keys_of(LINES)


def test_rejected_lines_that_killed_children_have_committed_are_written(
    logs: Logs, proxy: MySQLProxy
) -> None:
    parts = [long_log(CHUNK - 1, first=CHUNK * number) + b"bad\n" for number in range(12)]
    source, out = logs.write("a.log", b"".join(parts)), logs.directory / "out"
    counting: set[int] = set()
    killed: set[int] = set()
    proxy.when(
        "slots", Phase.AFTER, Deed.PASS, call=lambda one: counting.add(one.connection), times=0
    )
    rule = proxy.when(
        "commit_other",
        Phase.AFTER,
        Deed.HOLD,
        where=lambda one, _: one.connection in counting,
        times=2,
    )

    def kill(_: Progress) -> None:
        if rule.acted == 2 and not killed:
            killed.update(pids())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: not any(map(is_running, killed)))
            proxy.forget()

    report = add(proxy.url(logs.url), source, jobs=2, on_progress=kill, rejects=out)
    assert (report.state, report.rejected, len(killed)) == ("done", 12, 2)
    assert [number for _, number in rejects_in(out)] == [*range(CHUNK, 12 * CHUNK + 1, CHUNK)]


def test_children_that_only_ever_end_are_not_replaced_for_ever(
    logs: Logs, source: Path, proxy: MySQLProxy
) -> None:
    def refuse(_: Progress) -> None:
        proxy.refusing = True  # this process is connected

    report = add(proxy.url(logs.url), source, jobs=2, on_progress=refuse)
    assert (report.state, report.lines) == ("done", LINES)
    assert report.notices == (
        "the child processes end without having counted anything: counted here",
    )
    assert logs.totals() == keys_of(LINES)


@pytest.mark.parametrize(
    ("becomes", "why"),
    [
        (None, "there is no such file or directory"),
        (long_log(LINES, first=LINES), "has changed since it was looked at"),
        (long_log(CHUNK // 2), "that was read of it before"),
        (b"", "is empty by now"),
    ],
    ids=["gone", "another", "shorter", "empty"],
)
def test_a_file_that_is_another_one_for_the_children_is_counted_here(
    logs: Logs, source: Path, becomes: bytes | None, why: str
) -> None:
    other = logs.write("b.log", becomes or b"")

    def replace(_: Progress) -> None:
        # This process has it open.
        if becomes is None:
            source.unlink(missing_ok=True)
        elif other.exists():
            other.replace(source)

    report = logs.add(source, jobs=2, on_progress=replace)
    assert (report.state, report.lines) == ("done", LINES)
    (notice,) = report.notices
    assert why in notice
    assert notice.endswith(": counted here")
    assert logs.totals() == keys_of(LINES)


def test_a_database_that_is_away_for_a_while_is_waited_for(
    logs: Logs, source: Path, proxy: MySQLProxy
) -> None:
    asked = 0

    def away(_: object) -> None:
        proxy.refusing = True
        proxy.cut_all()

    def stop() -> bool:
        """Asked after each try to reach it."""
        nonlocal asked
        asked += proxy.refusing
        if asked > 5:
            proxy.refusing = False
        return False

    proxy.when("slots", Phase.AFTER, Deed.CUT, skip=3, call=away)
    report = add(proxy.url(logs.url), source, jobs=2, stop=stop)
    assert (report.state, report.lines, report.notices) == ("done", LINES, ())
    assert asked > 5
    assert logs.totals() == keys_of(LINES)


def test_an_undo_ends_the_children_and_nothing_stays(
    logs: Logs, source: Path, proxy: MySQLProxy
) -> None:
    with held(proxy, after=3, children=2) as rule:

        def undo(_: Progress) -> None:
            running = logs.query("SELECT id FROM backfill_run WHERE state = 'running'")
            if rule.acted == 2 and running:
                proxy.forget(rule)
                logs.undo(running[0][0])

        with pytest.raises(BackfillError, match="nothing more is counted by it"):
            add(proxy.url(logs.url), source, jobs=2, on_progress=undo)
    assert active_children() == []
    assert logs.totals() == {}
    assert logs.query("SELECT * FROM backfill_chunk") == []
    assert logs.add(source).lines == LINES
    assert logs.totals() == keys_of(LINES)


def test_what_a_run_left_pending_the_next_one_counts(logs: Logs, source: Path) -> None:
    # Slowly: each child counts a chunk and then pauses.
    report = logs.add(source, jobs=2, rate=CHUNK, stop=lambda: chunks(logs) >= 2)
    assert report.state == "stopped"
    assert active_children() == []
    assert chunks(logs, "pending") > 0
    require_verified(logs.url)
    again = logs.add(source, jobs=2)
    assert (again.state, again.lines + again.known_lines) == ("done", LINES)
    assert again.lines > 0
    assert logs.totals() == keys_of(LINES)
    logs.undo(run_of(report))
    assert sum(logs.totals().values()) == again.lines


def test_too_many_rejects_stop_it(logs: Logs) -> None:
    content = long_log(1200) + b"nonsense\n" * 50 + long_log(1200, first=1200)
    source = logs.write("a.log", content)
    report = logs.add(source, jobs=2, max_rejects=10)
    assert report.state == "stopped"
    assert any("more than 10 lines" in notice for notice in report.notices)
    require_verified(logs.url)
    assert rejected(logs.url) == []
    report = logs.add(source, jobs=2, max_rejects=50)
    assert report.state == "done"
    assert logs.totals() == keys_of(LINES)


def test_two_runs_at_once_share_the_work(logs: Logs, source: Path) -> None:
    reports = together(*[partial(logs.add, source, jobs=2)] * 2)
    assert [report.state for report in reports] == ["done", "done"]
    assert sum(report.lines for report in reports) == LINES
    assert logs.totals() == keys_of(LINES)


def test_a_reconcile_is_read_by_children_too(logs: Logs, source: Path) -> None:
    for corrections in (7, 0):
        report = logs.reconcile(source, jobs=2)
        assert (report.state, report.corrections) == ("done", corrections)
        assert report.lines == LINES
        assert logs.totals() == keys_of(LINES)


def test_children_count_nothing_behind_a_reconcile(logs: Logs, source: Path) -> None:
    corrected: list[int] = []

    def reconcile(_: Progress) -> None:
        if chunks(logs) and not corrected:
            corrected.append(run_of(logs.reconcile(source)))

    # Slowly: each child counts a chunk and then pauses.
    report = logs.add(source, jobs=2, rate=CHUNK, on_progress=reconcile)
    assert report.state == "failed"
    assert f"backfill {corrected[0]} has set" in report.sources[0].detail
    assert logs.totals() == keys_of(LINES)


class Command:
    """`countersink backfill --jobs 2` of a log, with chunks of 200 lines and without a Redis."""

    def __init__(self, children: Children, mysql_url: str, source: Path) -> None:
        self._children = children
        self._mysql_url = mysql_url
        self._source = source

    def start(self, *arguments: str) -> Child:
        return self._children.start(
            [
                *(sys.executable, "-m", "tests.support.run_chunks", str(CHUNK)),
                *("backfill", str(self._source), "--counter", COUNTER, "--jobs", "2", *arguments),
            ],
            environment={"COUNTERSINK_MYSQL_URL": self._mysql_url},
        )


def kin(child: Child) -> list[int]:
    """The processes that a process has started."""
    listed = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


@pytest.mark.parametrize(
    ("number", "send", "status"),
    [
        (signal.SIGTERM, os.kill, TERMINATED),
        (signal.SIGTERM, os.killpg, TERMINATED),
        (signal.SIGINT, os.killpg, INTERRUPTED),  # as a terminal does
    ],
    ids=["term", "term-all", "ctrl-c"],
)
def test_a_signal_ends_all_in_good_order(
    logs: Logs,
    source: Path,
    children: Children,
    number: signal.Signals,
    send: Callable[[int, int], None],
    status: int,
) -> None:
    # Slowly: each child counts a chunk and then pauses.
    started = Command(children, logs.url, source).start("--rate", str(CHUNK))
    eventually(lambda: chunks(logs) >= 2, message=started.output)
    theirs = kin(started)
    assert len(theirs) > 2
    for pid in theirs:
        assert logs.url.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    send(started.pid, number)
    assert started.wait() == status
    eventually(lambda: not any(map(is_running, theirs)))
    assert "Traceback" not in started.output()
    assert chunks(logs, "pending") > 0
    require_verified(logs.url)
    assert logs.add(source).known_lines > 0
    assert logs.totals() == keys_of(LINES)


def test_children_of_a_command_that_is_killed_end_after_the_chunk_at_hand(
    logs: Logs, source: Path, children: Children, proxy: MySQLProxy
) -> None:
    command = Command(children, proxy.url(logs.url), source)
    with held(proxy, after=2, children=2) as rule:
        started = command.start()
        eventually(lambda: rule.acted == 2, message=started.output)
        theirs = kin(started)
        started.kill()
    eventually(lambda: not any(map(is_running, theirs)))
    assert chunks(logs) == 4
    require_verified(logs.url)
    again = command.start()
    assert again.wait() == DONE, again.output()
    assert logs.totals() == keys_of(LINES)


def test_a_second_signal_ends_all_at_once(
    logs: Logs, source: Path, children: Children, proxy: MySQLProxy
) -> None:
    with held(proxy, after=2, children=2) as rule:
        started = Command(children, proxy.url(logs.url), source).start()
        eventually(lambda: rule.acted == 2, message=started.output)
        theirs, files = kin(started), Path(f"/proc/{started.pid}/fd")
        before = len(os.listdir(files))
        started.terminate()
        # Its pipes are closed: now it waits for the children, which hang.
        eventually(lambda: len(os.listdir(files)) < before)
        started.terminate()
        assert started.wait() == TERMINATED
        eventually(lambda: not any(map(is_running, theirs)))
    assert "Traceback" not in started.output()
    assert chunks(logs) == 2
    logs.add(source)
    assert logs.totals() == keys_of(LINES)


def test_a_dry_run_of_a_reconcile_leaves_nothing(logs: Logs, source: Path) -> None:
    asked = options(source, mode="reconcile", jobs=2, dry_run=True)
    report = backfill(logs.url, asked, redis_url=logs.redis_url)
    assert (report.state, report.lines, report.corrections) == ("done", LINES, 7)
    assert logs.totals() == {}
    assert logs.query("SELECT * FROM backfill_chunk") == []
