"""Reading by child processes: real ones, killed, told to stop, with signals: exact."""

from __future__ import annotations

import gzip
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from typing import Any
from zlib import adler32

import pytest

from countersink.backfill import spans
from countersink.backfill.count import read_ahead
from countersink.backfill.count.chunks import _CHOSEN
from countersink.backfill.count.reader_pool import ChildTask, ReaderPool
from countersink.backfill.options import BackfillReport, Progress
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    Logs,
    details,
    keys_of,
    long_log,
    outcomes,
    rejects_in,
)
from tests.support.processes import Child, Children, is_running
from tests.support.waiting import eventually

LINES = 2400
CHUNK = 200
DONE, INTERRUPTED, TERMINATED = 0, 130, 143
"""Exit statuses."""


@pytest.fixture(autouse=True)
def small(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 200 lines; children read all but the first."""
    logs.small_chunks(CHUNK)
    monkeypatch.setattr(read_ahead, "THREAD_CHUNKS", 1)


@pytest.fixture
def source(logs: Logs) -> Path:
    """A log of several chunks."""
    return logs.write("a.log", long_log(LINES))


def pids() -> set[int]:
    """Of this process's child processes."""
    return {child.pid for child in active_children() if child.pid is not None}


def test_told_to_stop_while_a_child_reads_it_ends(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child gives no result; the next chunk is more than its pipe holds."""
    logs.small_chunks(30_000)
    source = logs.write("a.log.gz", gzip.compress(long_log(120_000, keys=50_000)))
    told = threading.Event()
    hand, result = ReaderPool.submit, ChildTask.result

    def hand_and_freeze(pool: ReaderPool, task: Callable[[], object]) -> ChildTask:
        handed = hand(pool, task)
        for pid in pids():
            os.kill(pid, signal.SIGSTOP)
        return handed

    def tell_while_waiting(handed: ChildTask, stop: Callable[[], bool]) -> Any:
        told.set()
        return result(handed, stop)

    reports: list[BackfillReport] = []
    with monkeypatch.context() as frozen:
        frozen.setattr(ReaderPool, "submit", hand_and_freeze)
        frozen.setattr(ChildTask, "result", tell_while_waiting)
        thread = threading.Thread(
            target=lambda: reports.append(logs.add(source, stop=told.is_set)), daemon=True
        )
        thread.start()
        thread.join(20)
        left = pids()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left
    assert [one.state for one in reports] == ["stopped"]
    assert reports[0].counted == 30_000
    assert logs.add(source).counted == 90_000


def test_told_to_stop_while_a_known_source_is_compared_it_ends(logs: Logs, source: Path) -> None:
    logs.add(source)
    seen: list[Progress] = []
    report = logs.add(source, on_progress=seen.append, stop=lambda: len(seen) > 2)
    assert report.state == "stopped"
    assert len(seen) < LINES // CHUNK


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("first", [1, 3])
def test_three_children_read_all_of_it_and_it_counts_once(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes], first: int
) -> None:
    monkeypatch.setattr(read_ahead, "THREAD_CHUNKS", first)
    monkeypatch.setattr(read_ahead, "BIG_FILE", 0)  # they are started with the first chunk
    content = long_log(LINES // 2) + b"nonsense\n" + long_log(LINES // 2, first=LINES // 2)
    # A name that is no UTF-8.
    source = logs.write(os.fsdecode(b"a\xff.log"), pack(content))
    seen: list[Progress] = []
    rejects = logs.directory / "rejects"
    report = logs.add(source, jobs=3, on_progress=seen.append, rejects=rejects)
    assert (report.state, report.counted, report.rejected) == ("done", LINES, 1)
    assert logs.query("SELECT COUNT(*) FROM backfill_chunk") == [(LINES // CHUNK + 1,)]
    assert max(one.jobs for one in seen) == 3
    assert logs.totals() == keys_of(LINES)
    assert logs.rows("backfill_chunk") == LINES // CHUNK + 1
    assert [number for _, number in rejects_in(rejects)] == [LINES // 2 + 1]
    assert [one.line for one in logs.rejected()] == [LINES // 2 + 1]
    again = logs.add(source, jobs=3)
    assert (again.lines, again.known_lines) == (0, LINES + 1)
    assert active_children() == []


@pytest.fixture
def by_size(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children read chunks of 800 lines, which are cut by their size."""
    monkeypatch.setattr(read_ahead, "LINES", CHUNK)
    monkeypatch.setattr(read_ahead, "MAX_LINES", 4 * CHUNK)
    monkeypatch.setattr(read_ahead, "CHUNK_CELLS", CHUNK // 2)
    for module in spans, read_ahead:
        monkeypatch.setattr(module, "BLOCK_BYTES", 1024)  # a short file has many


def sizes_of(logs: Logs) -> list[int]:
    """Lines of each chunk, in their order."""
    found = logs.query("SELECT lines_read FROM backfill_chunk ORDER BY start_at")
    return [size for (size,) in found]


@pytest.mark.usefixtures("by_size")
def test_children_have_long_chunks_which_get_shorter_at_the_end(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that all end at about one time; the thread, which reads alone, has short ones."""
    monkeypatch.setattr(read_ahead, "THREAD_CHUNKS", 3)
    lines, nonsense = 40 * CHUNK, {700, 2200, 2201, 7990}
    content = long_log(lines).splitlines(keepends=True)
    for number in sorted(nonsense):
        content.insert(number - 1, b"nonsense\n")
    rejects = logs.directory / "rejects"
    report = logs.add(logs.write("a.log", b"".join(content)), jobs=2, rejects=rejects)
    assert (report.state, report.counted) == ("done", lines)
    sizes = sizes_of(logs)
    assert sizes[:3] == [CHUNK] * 3
    assert all(0.9 < size / (4 * CHUNK) < 1.1 for size in sizes[3:6])
    assert max(sizes[-4:]) <= 2 * CHUNK
    # Each line has its number, though nobody counts lines before a chunk is read.
    assert {number for _, number in rejects_in(rejects)} == nonsense
    assert {one.line for one in logs.rejected()} == nonsense
    rows = logs.query("SELECT first_line, next_line FROM backfill_chunk ORDER BY start_at")
    assert [after for _, after in rows] == [*(first for first, _ in rows[1:]), report.lines + 1]
    assert logs.totals() == keys_of(lines)


@pytest.mark.usefixtures("by_size")
@pytest.mark.parametrize("text", ["rejected", "sampled"])
def test_no_chunk_has_too_many_lines_if_far_shorter_ones_than_before_follow(
    logs: Logs, text: str
) -> None:
    """Rejected lines, and sampled ones as often as they occur, would take much memory."""
    lines, short = 10 * CHUNK, 60 * CHUNK
    long = long_log(2 * lines).replace(b" - - [", b" - " + b"u" * 2000 + b" [")
    middle = long.index(b"\n", len(long) // 2) + 1
    some = b"-" * 19 + b"\n"
    if text == "sampled":
        each = long_log(1_000).splitlines(keepends=True)
        some = next(one for one in each if _CHOSEN[adler32(one[:-1]) >> 16 & 255])
    report = logs.add(
        logs.write("a.log", long[:middle] + some * short + long[middle:]), jobs=2, max_rejects=short
    )
    rejected = short if text == "rejected" else 0
    counted = 2 * lines + short - rejected
    assert (report.state, report.counted, report.rejected) == ("done", counted, rejected)
    assert max(sizes_of(logs)) < 3 * read_ahead.EXCESS * CHUNK
    assert sum(logs.totals().values()) == counted


@pytest.mark.usefixtures("by_size")
@pytest.mark.parametrize("chunks", [2, 60])
def test_the_lines_that_a_file_has_left_count_if_it_becomes_shorter_meanwhile(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    """Within the first chunk of a child, or where nothing is cut yet."""
    content = long_log(100 * CHUNK)
    source, left = logs.write("a.log", content), chunks * CHUNK + 11
    size, submit = len(b"".join(content.splitlines(keepends=True)[:left])), ReaderPool.submit

    def cut_off(pool: ReaderPool, task: Callable[[], object]) -> ChildTask:
        os.truncate(source, size + 5)
        return submit(pool, task)

    monkeypatch.setattr(ReaderPool, "submit", cut_off)
    report = logs.add(source, jobs=2)
    assert (report.state, report.counted) == ("failed", left)
    assert "became shorter while it was read" in details(report)
    assert logs.totals() == keys_of(left)


def test_children_read_lines_by_the_directives_before_them(logs: Logs) -> None:
    """In whichever chunk these stand."""
    parts = [b"#Fields: date time cs-uri-stem\n"]
    for number in range(900):
        if number % 250 == 130:
            parts.append(b"#Fields: time cs-uri-stem date\n")
        elif number % 250 == 10:
            parts.append(b"#Fields: date time cs-uri-stem\n")
        day, path = DAY.encode(), b"/%d" % (number % 7)
        turned = number >= 10 and (number - 10) % 250 >= 120
        parts.append(b" ".join([b"12:00:00", path, day] if turned else [day, b"12:00:00", path]))
        parts[-1] += b"\n"
    for jobs in 1, 3:
        name = f"{jobs}.log"
        report = logs.add(
            logs.write(name, b"".join(parts)), jobs=jobs, input_format="w3c", name=name
        )
        assert (report.counted, report.rejected) == (900, 0)
    assert logs.totals() == {
        (DAY, f"/{number}"): 2 * len(range(number, 900, 7)) for number in range(7)
    }


def test_a_killed_child_fails_its_source_alone_and_the_next_run_goes_on(
    logs: Logs, source: Path
) -> None:
    other = logs.write("b.log", long_log(LINES, first=LINES))
    killed: list[int] = []

    def kill(_: Progress) -> None:
        if not killed and len(there := pids()) > 1:
            killed.append(min(there))
            os.kill(killed[0], signal.SIGKILL)

    report = logs.add(source, other, jobs=2, on_progress=kill)
    assert (outcomes(report), len(killed)) == (["failed", "counted"], 1)
    assert "a child process was killed" in details(report)
    again = logs.add(source, other, jobs=2)
    assert (again.state, again.lines + again.known_lines) == ("done", 2 * LINES)
    assert logs.totals() == keys_of(2 * LINES)


def test_a_reconcile_is_read_by_children_too(logs: Logs, source: Path) -> None:
    for corrections in (7, 0):
        report = logs.reconcile(source, jobs=2)
        assert (report.state, report.corrections) == ("done", corrections)
        assert report.lines == LINES
        assert logs.totals() == keys_of(LINES)


def start(children: Children, logs: Logs, source: Path, *arguments: str) -> Child:
    """`countersink backfill --jobs 2` of a log, with chunks of 200 lines and without a Redis."""
    return children.start(
        [
            *(sys.executable, "-m", "tests.support.run_chunks", str(CHUNK)),
            *("backfill", str(source), "--counter", COUNTER, "--jobs", "2", *arguments),
        ],
        environment={"COUNTERSINK_MYSQL_URL": logs.url},
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
        (signal.SIGKILL, os.kill, -signal.SIGKILL),
    ],
    ids=["term", "term-all", "ctrl-c", "kill"],
)
def test_a_signal_ends_all_and_it_goes_on_later(
    logs: Logs,
    source: Path,
    children: Children,
    number: signal.Signals,
    send: Callable[[int, int], None],
    status: int,
) -> None:
    # Slowly: it counts a chunk and then pauses. The third chunk is the first one of the second
    # child: both run by then, and the interpreter no longer reports the parent's end by itself.
    started = start(children, logs, source, "--rate", str(CHUNK))
    eventually(
        lambda: logs.rows("backfill_chunk") >= 3 and len(kin(started)) > 2, message=started.output
    )
    theirs = kin(started)
    for pid in theirs:
        assert logs.url.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    send(started.pid, number)
    assert started.wait() == status
    eventually(lambda: not any(map(is_running, theirs)))
    assert "Traceback" not in started.output()
    assert "killed" not in started.output()
    logs.require_verified()
    again = start(children, logs, source)
    assert again.wait() == DONE, again.output()
    assert logs.totals() == keys_of(LINES)
