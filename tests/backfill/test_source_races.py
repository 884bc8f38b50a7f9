"""Sources that others change between two chunks of a run, or that go on within what was counted."""

import os
import signal
from collections.abc import Callable
from itertools import count
from multiprocessing import active_children
from pathlib import Path

import pytest

from countersink.backfill.count import read_ahead
from countersink.backfill.count.chunk_reader import ReadChunk
from countersink.backfill.count.read_ahead import ReadAhead
from countersink.backfill.options import Progress
from tests.backfill.helpers import (
    DAY,
    Logs,
    day,
    details,
    keys_of,
    long_log,
    write,
    write_old,
)
from tests.support.entries import once
from tests.support.proxies import MySQLProxy
from tests.support.waiting import eventually

CSV = {"input_format": "csv", "time_column": "time", "key_column": "key", "amount_column": "n"}
LOOKS = 300
"""A run that asks more often whether to stop is in a loop."""


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Have something done once, before a chunk is asked for behind an offset."""

    def plan(offset: int, act: Callable[[], object]) -> None:
        asked, done = ReadAhead.next, list[int]()

        def before_next(ahead: ReadAhead) -> ReadChunk | None:
            if not done and ahead.start.offset >= offset:
                done.append(1)
                act()
            return asked(ahead)

        monkeypatch.setattr(ReadAhead, "next", before_next)

    return plan


def loops() -> Callable[[], bool]:
    """True as soon as it was asked too often."""
    asked = count()
    return lambda: next(asked) > LOOKS


def test_what_is_cut_in_other_chunks_meanwhile_is_looked_at_from_its_beginning(
    logs: Logs, between: Callable[[int, Callable[[], object]], None]
) -> None:
    file = logs.write("a.log", long_log(50))
    logs.add(file)
    second = logs.add(write(file, long_log(100)))
    write(file, long_log(200))
    other = logs.write("b.log", long_log(150))

    def act() -> None:
        logs.undo(second)
        logs.add(other)

    between(len(long_log(100)), act)
    report = logs.add(file, stop=loops())
    assert report.state == "done"
    assert logs.totals() == keys_of(200)


def test_behind_another_content_nothing_is_counted(
    logs: Logs, between: Callable[[int, Callable[[], object]], None]
) -> None:
    """Of the same length, and the same in the bytes by which a source is found."""
    logs.small_chunks(100)
    others = long_log(100) + long_log(200, first=100).replace(b"curl/8.0", b"curl/9.0")
    file = logs.write("a.log", long_log(100))
    logs.add(file)
    second = logs.add(write(file, long_log(200)))
    write(file, long_log(300))
    other = logs.write("b.log", others[: len(long_log(200))])

    def act() -> None:
        logs.undo(second)
        assert logs.add(other).counted == 100

    between(len(long_log(200)), act)
    report = logs.add(file, count_repeats=True)
    assert report.counted == 300
    found = logs.totals()
    assert sum(found.values()) == 500  # the first hundred of each copy, as it was told to
    again = logs.add(file)
    assert (again.counted, again.known_lines) == (0, 300)


def test_a_directive_that_gets_its_newline_later_is_in_force(logs: Logs) -> None:
    first = f"#Fields: date time cs-uri-stem\n{DAY} 12:00:00 /a\n"
    head = f"{first}#Fields: cs-uri-stem date time".encode()
    file = write_old(logs.directory / "a.log", head)
    logs.add(file, input_format="w3c")
    write(file, head + f"\n/b {DAY} 12:00:00\n/c {DAY} 12:00:01\n".encode())
    report = logs.add(file, input_format="w3c")
    assert report.rejected == 0
    assert logs.totals() == day("/a", "/b", "/c")


def test_a_torn_line_is_not_counted_again_while_its_run_is_being_undone(logs: Logs) -> None:
    file = logs.directory / "a.csv"
    text = f"time,key,n\n{DAY}T12:00Z,a,1"
    run = logs.add(write(file, text.encode()), **CSV)
    write(file, f"{text}000\n{DAY}T12:00Z,b,5\n".encode())

    def beside(point: str) -> None:
        if point == "begun":  # as where the undo is killed, too
            assert logs.add(file, **CSV).counted == 0
        if point == "taken_back":
            assert logs.add(file, **CSV).amount == 1005

    logs.undo(run, reached=beside)
    assert logs.totals() == {(DAY, "a"): 1000, (DAY, "b"): 5}


@pytest.mark.servers("mariadb", "mysql")
def test_of_two_at_once_none_is_refused_for_the_last_line(logs: Logs, proxy: MySQLProxy) -> None:
    logs.small_chunks(1)
    rows = f"time,key,n\n{DAY}T12:00Z,a,1\n{DAY}T12:00Z,b,1"
    file = logs.write("a.csv", rows.encode())
    rule = once(
        proxy,
        lambda request, _: "backfill_chunk" in request.text and "DESC" in request.text,
        lambda: logs.add(file, **CSV),
    )
    report = logs.through(proxy).add(file, **CSV)
    assert rule.acted
    assert report.state == "done", details(report)
    assert logs.totals() == day("a", "b")


def test_a_child_that_is_killed_while_it_gives_its_result_back_holds_nobody_up(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.small_chunks(20_000)
    monkeypatch.setattr(read_ahead, "THREAD_CHUNKS", 1)
    lines = 100_000
    file = logs.write("a.log", long_log(lines, keys=10**9))
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        children = [child.pid for child in active_children() if child.pid is not None]
        if progress.lines and len(children) > 1 and not killed:
            # This process reads no result now, and such a one does not fit into a pipe.
            eventually(lambda: any(map(is_writing, children)))
            killed.extend(filter(is_writing, children))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    report = logs.add(file, jobs=2, on_progress=kill)
    assert killed
    assert report.state == "failed"
    assert report.counted + logs.add(file, jobs=2).counted == lines
    assert sum(logs.totals().values()) == lines


def is_writing(pid: int) -> bool:
    """Whether a process waits for room in a pipe or a socket."""
    try:
        waits_in = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False
    return any(word in waits_in for word in ("send", "write"))
