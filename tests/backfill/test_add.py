"""Adding: what is counted, where it goes, and what is refused."""

import gzip
import os
import threading
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from countersink.backfill.errors import BackfillError, WrongOption
from countersink.counting.apply.guards import Control, read_control
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.database.session import Session
from countersink.runtime.texts import DayName, NamedRange
from countersink.store import Store
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    NOON,
    Logs,
    day,
    details,
    keys_of,
    line,
    log,
    long_log,
    outcomes,
    write,
)
from tests.support.entries import MAX, MIN, compacted

CSV = {"input_format": "csv", "time_column": "time", "key_column": "key", "amount_column": "n"}


def csv(*rows: tuple[str, object]) -> bytes:
    """Keys and amounts, all at noon."""
    lines = [f"{DAY}T12:00Z,{key},{amount}\n" for key, amount in rows]
    return ("time,key,n\n" + "".join(lines)).encode()


@pytest.mark.servers("mariadb", "mysql")
def test_what_is_added_is_there_with_what_was_counted_live(logs: Logs) -> None:
    logs.live((NOON, "/a", 5))
    report = logs.add(logs.write("a.log", log("/a", "/b")))
    assert logs.totals() == {(DAY, "/a"): 6, (DAY, "/b"): 1}
    (run,) = logs.query(
        "SELECT id, counter, mode, state, lines_read, counted, rejected, amount, ended IS NULL"
        " FROM backfill_run",
    )
    assert run == (report.run, COUNTER, "add", "done", 2, 2, 0, 2, 0)
    assert logs.rows("counter_slot WHERE slot BETWEEN 512 AND 1023") == 2


def test_nothing_comes_of_an_empty_file(logs: Logs) -> None:
    empty = logs.write("empty.log", b"")
    packed = logs.write("empty.gz", gzip.compress(b""))
    report = logs.add(empty, packed, logs.write("blank.log", b"\n\n \n"))
    assert outcomes(report) == ["empty", "empty", "counted"]
    assert (report.state, report.counted, report.rejected) == ("done", 0, 0)
    assert logs.rows("backfill_source") == 1
    assert logs.totals() == {}


def test_what_stands_before_a_cut_counts_and_the_whole_copy_goes_on(logs: Logs) -> None:
    content = long_log(300)
    packed = gzip.compress(content)
    cut = logs.write("cut.gz", packed[: len(packed) // 2])
    for again in False, True:
        report = logs.add(cut)
        assert outcomes(report) == ["failed"]
        assert "cannot be read from byte" in details(report)
        assert (report.counted > 0) is not again
        assert 0 < sum(logs.totals().values()) < 300
    assert outcomes(logs.add(cut, dry_run=True)) == ["failed"]
    report = logs.add(logs.write("whole.gz", packed))
    assert (report.state, report.lines + report.known_lines) == ("done", 300)
    assert report.known_lines > 0
    assert logs.totals() == keys_of(300)


def test_a_pipe_is_read_to_its_end_where_a_line_needs_no_newline(logs: Logs) -> None:
    fifo = logs.directory / "fifo"
    os.mkfifo(fifo)
    content = long_log(3000)[:-1]
    for expected in ("counted", "known"):
        writer = threading.Thread(target=fifo.write_bytes, args=(content,))
        writer.start()
        report = logs.add(fifo)
        assert (outcomes(report), report.notices) == ([expected], ())
        writer.join(20)
    assert logs.totals() == keys_of(3000)


def test_days_and_hours_are_those_of_the_counter(logs: Logs) -> None:
    logs.set_counter(time_zone="America/New_York")
    lines = line("/", minutes=-12 * 60) + line("/") + line("/", minutes=59)
    logs.add(logs.write("a.log", lines))
    days = {("2026-03-13", "/"): 1, ("2026-03-14", "/"): 2}
    assert logs.totals() == days
    # What is counted from then on, whatever its time.
    logs.set_counter(resolution="quarter")
    logs.add(logs.write("b.log", line("/b", minutes=-12 * 60 + 14) + line("/b", minutes=15)))
    assert logs.totals() == days | {
        ("2026-03-14 00:00 quarter", "/b"): 1,
        ("2026-03-14 12:15 quarter", "/b"): 1,
    }


def test_from_and_to_are_days_of_the_counters_own_zones(logs: Logs) -> None:
    logs.set_counter(time_zone="Asia/Tokyo")
    # 15:00 UTC is midnight in Tokyo.
    stamps = [(13, 14, 59), (13, 15, 0), (14, 14, 59), (14, 15, 0), (15, 15, 0)]
    content = b"".join(
        line(f"/{number}", at=datetime(2026, 3, day_, hour, minute, tzinfo=UTC))
        for number, (day_, hour, minute) in enumerate(stamps)
    )
    days = {"start": date(2026, 3, 14), "end": date(2026, 3, 15)}
    report = logs.add(logs.write("a.log", content), **days)
    assert (report.counted, report.filtered) == (3, 2)
    assert logs.totals() == day("/1", "/2") | day("/3", on="2026-03-15")


def test_a_rate_is_kept(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses as long as the lines before them take at that rate, and none when nothing comes after
    it; the clock is the test's."""
    waits: list[float] = []
    clock = [0.0]

    def pause(seconds: float, stop: object) -> None:
        if seconds > 0:
            waits.append(seconds)
            clock[0] += seconds

    monkeypatch.setattr("countersink.backfill.count.task.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("countersink.backfill.count.task.pause", pause)
    monkeypatch.setattr("countersink.backfill.count.task.MIN_LINES", 50)
    logs.add(logs.write("a.log", long_log(200)), rate=10)
    assert sum(waits) == pytest.approx(15.0)
    assert logs.rows("backfill_chunk") == 4
    waits.clear()
    files = [
        logs.write(f"{number}.log", long_log(50, first=number)) for number in (1000, 2000, 3000)
    ]
    assert outcomes(logs.add(*files, rate=10)) == ["counted"] * 3
    assert sum(waits) == pytest.approx(10.0)


def test_a_dry_run_says_what_would_be_added_and_changes_nothing(logs: Logs) -> None:
    logs.small_chunks()
    file = logs.write("a.log", long_log(250) + b"nonsense\n")
    copy = logs.write("copy.gz", gzip.compress(file.read_bytes()))
    report = logs.add(file, copy, dry_run=True)
    assert (report.run, report.state, outcomes(report)) == (None, "done", ["counted", "known"])
    assert (report.counted, report.rejected, report.by_day) == (250, 1, ((DAY, 250),))
    assert (logs.left(), logs.rows("counter"), logs.totals()) == ({}, 0, {})
    logs.add(file)
    write(file, long_log(250) + b"nonsense\n" + log("/a"))
    report = logs.add(file, dry_run=True)
    assert (report.counted, report.known_lines, report.by_day) == (1, 251, ((DAY, 1),))
    assert outcomes(logs.add(file, dry_run=True, strip_query=True)) == ["failed"]


@pytest.mark.parametrize("counted", [0, 50])
def test_a_dry_run_knows_a_copy_that_it_has_read_itself(logs: Logs, counted: int) -> None:
    """Also one that goes on, or ends before."""
    logs.small_chunks()
    if counted:
        logs.add(logs.write("old.log", long_log(counted)))
    files = [
        logs.write("a.log", long_log(250)[:-1]),
        logs.write("longer.log", long_log(300)),
        logs.write("short.log", long_log(20)),
        logs.write("cut.log", long_log(120)),
        logs.write("other.log", long_log(20) + log("/other")),
    ]
    dry = logs.add(*files, dry_run=True)
    report = logs.add(*files)
    for each in dry, report:
        assert outcomes(each) == ["counted", "counted", "known", "failed", "failed"]
        assert each.amount == 300 - counted
    assert [each.counted for each in dry.sources] == [each.counted for each in report.sources]


def test_in_strict_mode_only_known_counters_are_added_to(logs: Logs) -> None:
    file = logs.write("a.log", log("/"))
    with Store(logs.url) as store:
        store.counters.set_strict(True)
        with pytest.raises(BackfillError, match=f"counter set {COUNTER}"):
            logs.add(file)
        store.counters.set(COUNTER)
    assert logs.add(file).counted == 1


@pytest.mark.servers("mariadb", "mysql")
def test_lines_whose_totals_pass_64_bits_are_counted_beside_the_others(logs: Logs) -> None:
    rows = [("a", 1), ("big", MAX), ("small", MIN), ("big", MAX), ("b", 2), ("small", MIN)]
    sums = {(DAY, "a"): 1, (DAY, "b"): 2, (DAY, "big"): 2 * MAX, (DAY, "small"): 2 * MIN}
    file = logs.write("a.csv", csv(*rows))
    report = logs.add(file, **CSV)
    assert (report.counted, report.rejected, report.amount) == (6, 0, sum(sums.values()))
    assert logs.totals() == sums
    more = logs.write("b.csv", csv(("c", 1), *rows))
    again = logs.add(more, **CSV, count_repeats=True)
    assert again.amount == sum(sums.values()) + 1
    assert logs.totals() == {**{place: 2 * amount for place, amount in sums.items()}, (DAY, "c"): 1}
    logs.live((NOON, "big", 1), (NOON, "small", -1))
    compacted(logs.url)
    logs.undo(again)
    assert logs.totals() == {**sums, (DAY, "big"): 2 * MAX + 1, (DAY, "small"): 2 * MIN - 1}


@pytest.mark.servers("mariadb", "mysql")
def test_keys_are_the_bytes_that_they_are(logs: Logs) -> None:
    keys = ["a", "A", "a ", "á", "a\u0301", "", "\\", "'", "%s", "\U0001f600", "x" * 255]
    file = logs.write("a.csv", csv(*((f'"{key}"', 1) for key in keys)))
    logs.add(file, **CSV)
    assert logs.totals() == day(*keys)


def test_a_reconcile_that_corrected_nothing_is_in_nobodys_way(logs: Logs) -> None:
    file, cut = logs.write("a.log", log("/", "/a")), logs.write("b.gz", b"\x1f\x8b\x08\x00\x00")
    logs.live((NOON, "/gone", 5))
    for unreadable in logs.directory / "nothing.log", cut:
        report = logs.reconcile(file, unreadable, delete_missing=True)
        assert (report.state, report.corrections) == ("failed", 0)
        assert any("nothing was corrected" in notice for notice in report.notices)
    assert logs.rows("backfill_correction") == 0
    assert outcomes(logs.add(file)) == ["counted"]
    assert logs.totals() == day("/", "/a") | {(DAY, "/gone"): 5}


def test_names_of_days_are_the_dates_that_they_are_in_the_counter_s_zone_when_a_run_begins(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.set_counter(time_zone="Pacific/Kiritimati")  # 14 hours ahead: noon is on the next day
    at = NOON + timedelta(hours=20)

    def read(session: Session, lock: str) -> Control:
        return replace(read_control(session, lock), now=int(at.timestamp() * 1000))

    monkeypatch.setattr("countersink.backfill.run.read_control", read)
    source = logs.write("a.log", line("/a", at=NOON - timedelta(hours=4)) + line("/b", at=NOON))
    yesterday = DayName("yesterday")
    with pytest.raises(WrongOption, match=r"--from 2026-.* is after --to 2026-"):
        logs.add(source, days=NamedRange(DayName("today"), yesterday))
    report = logs.add(source, days=NamedRange(yesterday, yesterday))
    assert (report.counted, report.filtered) == (1, 1)
    assert logs.totals() == day("/a")
    assert logs.query("SELECT COUNT(*) FROM backfill_source WHERE options LIKE %s", f"%{DAY}%")


def test_what_is_added_keeps_to_the_cap_and_is_taken_back_as_it_was_written(logs: Logs) -> None:
    logs.set_counter(max_keys=2)
    source = logs.write("a.log", log("/a", "/b", "/c", "/c", "/d", "/a"))
    report = logs.add(source)
    assert logs.totals() == {(DAY, "/a"): 2, (DAY, "/b"): 1, (DAY, OVERFLOW): 3}
    assert logs.add(source).counted == 0
    logs.set_counter(max_keys="none")
    logs.undo(report)
    assert logs.totals() == {}


@pytest.mark.servers("mariadb", "mysql")
def test_chunks_and_live_traffic_share_the_room(logs: Logs) -> None:
    logs.small_chunks()
    logs.set_counter(max_keys=5)
    logs.live((NOON, "/live", 1), (NOON, "/1", 1))
    logs.add(logs.write("a.log", long_log(3000)))
    logs.live((NOON, "/late", 1), (NOON, "/1", 1))
    found = logs.totals()
    assert len(found.keys() - {(DAY, OVERFLOW)}) == 5
    assert sum(found.values()) == 3000 + 4
    assert found[DAY, "/1"] == keys_of(3000)[DAY, "/1"] + 2
