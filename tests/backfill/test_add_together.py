"""Adding beside others, and with what breaks in the midst: every line counts once."""

import gzip
import threading
from functools import partial

import pytest

from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Progress
from countersink.store.apply.apply import Applier
from countersink.store.errors import Unavailable
from countersink.store.sessions import open_tables
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    NOON,
    Logs,
    add,
    day,
    details,
    keys_of,
    log,
    long_log,
    set_counter,
)
from tests.store.helpers import entry, row, says, together
from tests.store.test_tracked_refusals import track
from tests.support.proxies import Deed, MySQLProxy, Phase

NOON_MINUTE = int(NOON.timestamp()) // 60


def test_a_resolution_that_changes_in_the_midst_is_seen(logs: Logs) -> None:
    """No chunk is counted by a catalog that is not in force."""
    logs.small_chunks()
    file = logs.write("a.log", long_log(300))
    changes: list[int] = []

    def change(progress: Progress) -> None:
        if progress.lines == 100 and not changes:
            changes.append(1)
            set_counter(logs.url, resolution="hour")

    logs.add(file, on_progress=change)
    found = {
        bucket: sum(amount for (label, _), amount in logs.totals().items() if label == bucket)
        for bucket, _ in logs.totals()
    }
    assert found == {"2026-03-14": 100, "2026-03-14 12:00 hour": 200}


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("chunks", [1, 3])
def test_two_at_once_add_each_line_once(logs: Logs, chunks: int) -> None:
    logs.small_chunks(1500 // chunks)
    content = long_log(1500)
    files = [
        logs.write("a.log", content),
        logs.write("b.gz", gzip.compress(content)),
        logs.write("c.log", content),
    ]
    reports = together(*(partial(logs.add, file) for file in files))
    assert sum(report.lines for report in reports) == 1500
    assert {report.lines + report.known_lines for report in reports} == {1500}
    assert logs.totals() == keys_of(1500)
    assert logs.query("SELECT COUNT(*) FROM backfill_source") == [(1,)]


def test_two_at_once_of_files_that_begin_alike_are_two_sources(logs: Logs) -> None:
    logs.small_chunks(20)
    head = log(*["/head"] * 100)
    files = [logs.write(key, head + log(f"/{key}") * 50) for key in ("a", "b")]
    together(*(partial(logs.add, file, count_repeats=True) for file in files))
    assert logs.totals() == {(DAY, "/head"): 200, (DAY, "/a"): 50, (DAY, "/b"): 50}
    assert logs.query("SELECT COUNT(*) FROM backfill_source") == [(2,)]


@pytest.mark.parametrize("lines", [20, 400])
def test_a_shorter_file_that_begins_alike_is_not_taken_for_a_copy_of_what_another_has_read(
    logs: Logs, lines: int
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

    with MySQLProxy.to(logs.url) as proxy:
        proxy.when("commit_other", Phase.AFTER, Deed.PASS, times=0, call=other)
        report = add(proxy.url(logs.url), shorter, count_repeats=True)
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
    report = add(proxy.url(logs.url), file)
    assert rule.acted == 3
    assert (report.state, report.lines, report.known_lines) == ("done", 450, 0)
    assert logs.totals() == keys_of(450)
    assert logs.query("SELECT lines_read, amount FROM backfill_run") == [(450, 450)]


@pytest.mark.servers("mariadb", "mysql")
def test_a_server_that_stays_away_ends_it_and_running_it_again_goes_on(logs: Logs) -> None:
    logs.small_chunks()
    file = logs.write("a.log", long_log(450))
    gone = threading.Event()
    with MySQLProxy.to(logs.url) as proxy:
        proxy.when("commit_other", Phase.AFTER, Deed.CUT, skip=3, call=lambda request: gone.set())
        proxy.when("*", Phase.BEFORE, Deed.CUT, times=0, where=lambda request, reply: gone.is_set())
        with pytest.raises(Unavailable):
            add(proxy.url(logs.url), file, stop=gone.is_set)
    assert logs.query("SELECT state FROM backfill_run") == [("running",)]
    report = logs.add(file)
    assert report.lines + report.known_lines == 450
    assert min(report.lines, report.known_lines) > 0
    assert logs.totals() == keys_of(450)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("error", [1205, 1213])
def test_others_in_the_way_are_waited_for(logs: Logs, error: int) -> None:
    with MySQLProxy.to(logs.url) as proxy:
        proxy.when("slots", Phase.BEFORE, Deed.ERROR, error=error, times=2)
        proxy.when("commit_other", Phase.BEFORE, Deed.ERROR, error=error, skip=1, times=1)
        add(proxy.url(logs.url), logs.write("a.log", log("/", "/a")))
    assert logs.totals() == day("/", "/a")


def test_it_stops_when_told_to_and_goes_on_when_run_again(logs: Logs) -> None:
    logs.small_chunks()
    file = logs.write("a.log", long_log(450))
    seen: list[int] = []
    report = logs.add(
        file,
        on_progress=lambda progress: seen.append(progress.lines),
        stop=lambda: bool(seen) and seen[-1] >= 200,
    )
    assert (report.state, report.lines) == ("stopped", 200)
    assert any("run it again" in notice for notice in report.notices)
    assert logs.query("SELECT state FROM backfill_run") == [("stopped",)]
    again = logs.add(file)
    assert (again.lines, again.known_lines) == (250, 200)
    assert logs.totals() == keys_of(450)


def test_a_run_that_was_undone_in_the_midst_counts_nothing_more(logs: Logs) -> None:
    logs.small_chunks()
    file = logs.write("a.log", long_log(450))
    undone: list[int] = []

    def undo(progress: Progress) -> None:
        if progress.lines == 200 and not undone:
            undone.append(1)
            ((run,),) = logs.query("SELECT id FROM backfill_run")
            logs.undo(run)

    with pytest.raises(BackfillError, match="undone"):
        logs.add(file, on_progress=undo)
    assert logs.totals() == {}
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


def test_live_traffic_goes_on_beside_it(logs: Logs) -> None:
    logs.small_chunks(50)
    file = logs.write("a.log", long_log(1000))
    applier = Applier(logs.url, 17)

    def live() -> int:
        for _ in range(50):
            applier.apply([entry([row("/0"), (1, COUNTER, "/0", NOON_MINUTE, 1)])])
        return 50

    together(live, partial(logs.add, file))
    found = logs.totals()
    assert found.pop(("2026-11-21", "/0")) == 50
    assert found == {
        cell: amount + 50 * (cell == (DAY, "/0")) for cell, amount in keys_of(1000).items()
    }
