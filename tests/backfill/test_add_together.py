"""Adding beside others, and with what breaks in the midst: every line counts once."""

import gzip
import threading
from functools import partial
from multiprocessing import active_children

import pytest

from countersink.backfill.count import read_ahead
from countersink.backfill.errors import RunEnded
from countersink.backfill.options import Progress
from countersink.counting.counters.catalog import SCHEME_COLUMNS
from countersink.database.errors import Unavailable
from countersink.database.sessions import open_tables
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    NOON,
    Logs,
    day,
    details,
    keys_of,
    log,
    long_log,
)
from tests.counting.test_tracked_refusals import track
from tests.support.entries import says, together
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.proxies.rules import Request

NOON_MINUTE = int(NOON.timestamp()) // 60


@pytest.fixture
def small(logs: Logs) -> None:
    """Chunks of 100 lines; children, where there are some, read all but the first."""
    logs.small_chunks()
    logs.monkeypatch.setattr(read_ahead, "THREAD_CHUNKS", 1)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize(("chunks", "jobs"), [(1, 1), (3, 1), (15, 2)])
@pytest.mark.usefixtures("small")
def test_two_at_once_add_each_line_once(logs: Logs, chunks: int, jobs: int) -> None:
    logs.small_chunks(1500 // chunks)
    content = long_log(1500)
    files = [
        logs.write("a.log", content),
        logs.write("b.gz", gzip.compress(content)),
        logs.write("c.log", content),
    ]
    reports = together(*(partial(logs.add, file, jobs=jobs) for file in files))
    assert sum(report.lines for report in reports) == 1500
    assert {report.lines + report.known_lines for report in reports} == {1500}
    assert logs.totals() == keys_of(1500)
    assert logs.rows("backfill_source") == 1


def test_two_at_once_of_files_that_begin_alike_are_two_sources(logs: Logs) -> None:
    logs.small_chunks(20)
    head = log(*["/head"] * 100)
    files = [logs.write(key, head + log(f"/{key}") * 50) for key in ("a", "b")]
    together(*(partial(logs.add, file, count_repeats=True) for file in files))
    assert logs.totals() == {(DAY, "/head"): 200, (DAY, "/a"): 50, (DAY, "/b"): 50}
    assert logs.rows("backfill_source") == 2


@pytest.mark.parametrize("lines", [20, 400])
def test_a_shorter_file_that_begins_alike_is_not_taken_for_a_copy_of_what_another_has_read(
    logs: Logs, proxy: MySQLProxy, lines: int
) -> None:
    """It ends within the other's chunk, and cannot be told from it unless it is looked at."""
    head = log(*["/head"] * lines)
    longer = logs.write("a.log", head + log("/a") * 50)
    shorter = logs.write("b.log", head + log("/b") * 20)
    others: list[int] = []

    def other(request: object) -> None:
        """Another process reads the other file, once this one is settled."""
        if not others and logs.query("SELECT 1 FROM backfill_source"):
            others.append(1)
            logs.add(longer)

    proxy.when("commit_other", Phase.AFTER, Deed.PASS, times=0, call=other)
    report = logs.through(proxy).add(shorter, count_repeats=True)
    assert others
    found = logs.totals()
    if lines > 100:  # more than is known of how it begins
        assert (report.state, report.counted) == ("failed", 0)
        assert "--source-name" in details(report)
        assert found == {(DAY, "/head"): lines, (DAY, "/a"): 50}
    else:
        assert (report.state, report.counted) == ("done", lines + 20)
        assert found == {(DAY, "/head"): 2 * lines, (DAY, "/a"): 50, (DAY, "/b"): 20}


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize(
    ("statement", "phase", "skip"),
    [
        ("COMMIT", Phase.BEFORE, 2),
        ("COMMIT", Phase.AFTER, 2),
        ("INSERT INTO backfill_chunk", Phase.BEFORE, 1),
        ("UPDATE backfill_source", Phase.BEFORE, 1),
    ],
)
def test_a_chunk_whose_connection_breaks_counts_once(
    logs: Logs, proxy: MySQLProxy, statement: str, phase: Phase, skip: int
) -> None:
    """At its COMMIT, whose outcome is unknown then, or between its counts and its notes."""
    logs.small_chunks()
    file = logs.write("a.log", long_log(450))
    kind = "commit_other" if statement == "COMMIT" else "*"
    rule = proxy.when(kind, phase, Deed.CUT, skip=skip, times=3, where=says(statement))
    report = logs.through(proxy).add(file)
    assert rule.acted == 3
    assert (report.state, report.lines, report.known_lines) == ("done", 450, 0)
    assert logs.totals() == keys_of(450)
    assert logs.query("SELECT lines_read, amount FROM backfill_run") == [(450, 450)]


@pytest.mark.servers("mariadb", "mysql")
def test_a_server_that_stays_away_ends_it_and_running_it_again_goes_on(
    logs: Logs, proxy: MySQLProxy
) -> None:
    logs.small_chunks()
    file = logs.write("a.log", long_log(450))
    gone = threading.Event()
    proxy.when("commit_other", Phase.AFTER, Deed.CUT, skip=3, call=lambda request: gone.set())
    proxy.when("*", Phase.BEFORE, Deed.CUT, times=0, where=lambda request, reply: gone.is_set())
    with pytest.raises(Unavailable):
        logs.through(proxy).add(file, stop=gone.is_set)
    assert logs.query("SELECT state FROM backfill_run") == [("running",)]
    report = logs.add(file)
    assert report.lines + report.known_lines == 450
    assert min(report.lines, report.known_lines) > 0
    assert logs.totals() == keys_of(450)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("error", [1205, 1213])
def test_others_in_the_way_are_waited_for(logs: Logs, proxy: MySQLProxy, error: int) -> None:
    proxy.when("slots", Phase.BEFORE, Deed.ERROR, error=error, times=2)
    proxy.when("commit_other", Phase.BEFORE, Deed.ERROR, error=error, skip=1, times=1)
    logs.through(proxy).add(logs.write("a.log", log("/", "/a")))
    assert logs.totals() == day("/", "/a")


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.usefixtures("small")
def test_it_stops_when_told_to_and_goes_on_when_run_again(logs: Logs, jobs: int) -> None:
    file = logs.write("a.log", long_log(450))
    seen: list[int] = []
    report = logs.add(
        file,
        jobs=jobs,
        on_progress=lambda progress: seen.append(progress.lines),
        stop=lambda: bool(seen) and seen[-1] >= 200,
    )
    assert (report.state, report.lines) == ("stopped", 200)
    assert any("run this again" in notice for notice in report.notices)
    assert logs.query("SELECT state FROM backfill_run") == [("stopped",)]
    assert active_children() == []
    logs.require_verified()
    again = logs.add(file, jobs=jobs)
    assert (again.lines, again.known_lines) == (250, 200)
    assert logs.totals() == keys_of(450)
    logs.undo(again)
    assert sum(logs.totals().values()) == 200


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.usefixtures("small")
def test_a_run_that_was_undone_in_the_midst_counts_nothing_more(logs: Logs, jobs: int) -> None:
    file = logs.write("a.log", long_log(450))
    undone: list[int] = []

    def undo(progress: Progress) -> None:
        if progress.lines == 200 and not undone:
            ((run,),) = logs.query("SELECT id FROM backfill_run")
            undone.append(run)
            logs.undo(run)

    with pytest.raises(RunEnded, match="undone"):
        logs.add(file, jobs=jobs, on_progress=undo)
    assert active_children() == []
    assert (logs.totals(), logs.rows("backfill_chunk")) == ({}, 0)
    assert logs.state(*undone) == "undone"
    assert logs.add(file).lines == 450
    assert logs.totals() == keys_of(450)


def test_a_table_that_is_tracked_meanwhile_ends_the_run(logs: Logs) -> None:
    logs.small_chunks()
    tracked: list[int] = []

    def begin(progress: Progress) -> None:
        if progress.lines == 200 and not tracked:
            tracked.append(1)
            with open_tables(logs.url) as session:
                track(session, COUNTER)

    report = logs.add(logs.write("a.log", long_log(400)), on_progress=begin)
    assert (report.state, report.lines) == ("failed", 200)
    assert "untrack" in details(report)


def test_a_resolution_that_changes_between_reading_and_counting_is_in_force(
    logs: Logs, proxy: MySQLProxy
) -> None:
    """The catalog is locked only after it was read."""
    file = logs.write("a.log", log(*["/head"] * 20) + long_log(300, keys=1))
    changes: list[str] = []

    def locks_catalog(request: Request, reply: bytes) -> bool:
        holds = any("UPDATE backfill_source" in one.text for one in proxy.seen)
        return "LOCK IN SHARE MODE" in request.text and holds

    def change(request: Request) -> None:
        changes.append(request.text)
        logs.set_counter(resolution="hour")

    proxy.when("control", Phase.BEFORE, Deed.PASS, call=change, where=locks_catalog)
    report = logs.through(proxy).add(file)
    loaded = [one for one in proxy.seen if SCHEME_COLUMNS in one.text]
    assert len(changes) == 1
    assert len(loaded) >= 2
    assert (report.state, report.counted) == ("done", 320)
    hour = f"{DAY} 12:00 hour"
    assert logs.totals() == {(hour, "/head"): 20, (hour, "/0"): 300}
