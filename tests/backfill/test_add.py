"""Adding: what is counted, where it goes, and what is refused."""

import gzip
import os
import threading
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from countersink.backfill import undo as undoing
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Progress
from countersink.backfill.run import backfill
from countersink.store import Store
from countersink.store.apply.apply import Applier
from countersink.store.sessions import open_tables
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    NOON,
    add,
    day,
    details,
    keys_of,
    line,
    log,
    long_log,
    options,
    outcomes,
    query,
    rejected,
    small_chunks,
    totals,
    write,
)
from tests.store.helpers import MAX, MIN, entry
from tests.store.policy_rows import put_policies
from tests.store.test_tracked_refusals import track

pytestmark = pytest.mark.servers("mariadb", "mysql")

CSV = {"input_format": "csv", "time_column": "time", "key_column": "key", "amount_column": "n"}
NOON_MINUTE = int(NOON.timestamp()) // 60


def csv(*rows: tuple[str, object]) -> bytes:
    """Keys and amounts, all at noon."""
    lines = [f"{DAY}T12:00Z,{key},{amount}\n" for key, amount in rows]
    return ("time,key,n\n" + "".join(lines)).encode()


def test_what_is_added_is_there_with_what_was_counted_live(mysql_url: str, tmp_path: Path) -> None:
    Applier(mysql_url, 17).apply([entry([(0, COUNTER, "/a", NOON_MINUTE, 5)])])
    report = add(mysql_url, write(tmp_path / "a.log", log("/a", "/b")))
    assert totals(mysql_url) == {(DAY, "/a"): 6, (DAY, "/b"): 1}
    (run,) = query(
        mysql_url,
        "SELECT id, counter, mode, state, lines_read, counted, rejected, amount, ended IS NULL"
        " FROM backfill_run",
    )
    assert run == (report.run, COUNTER, "add", "done", 2, 2, 0, 2, 0)
    ((slots,),) = query(
        mysql_url, "SELECT COUNT(*) FROM counter_slot WHERE slot BETWEEN 512 AND 639"
    )
    assert slots == 2


def test_nothing_comes_of_an_empty_file(mysql_url: str, tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.log", b"")
    packed = write(tmp_path / "empty.gz", gzip.compress(b""))
    report = add(mysql_url, empty, packed, write(tmp_path / "blank.log", b"\n\n \n"))
    assert outcomes(report) == ["empty", "empty", "counted"]
    assert (report.state, report.counted, report.rejected) == ("done", 0, 0)
    assert query(mysql_url, "SELECT COUNT(*) FROM backfill_source") == [(1,)]
    assert totals(mysql_url) == {}


def test_what_is_not_there_fails_and_the_others_are_counted(mysql_url: str, tmp_path: Path) -> None:
    good = write(tmp_path / "good.log", log("/a"))
    damaged = write(tmp_path / "damaged.gz", gzip.compress(long_log(5000))[:-500])
    report = add(mysql_url, tmp_path / "nothing.log", damaged, good)
    assert (report.state, outcomes(report)) == ("failed", ["failed", "failed", "counted"])
    assert 0 < report.sources[1].counted < 5000
    assert totals(mysql_url)[DAY, "/a"] == 1
    write(damaged, gzip.compress(long_log(5000)))
    assert add(mysql_url, damaged).state == "done"
    assert totals(mysql_url) == keys_of(5000) | {(DAY, "/a"): 1}
    with pytest.raises(AssertionError):
        assert add(mysql_url, tmp_path / "nothing.log").run is not None


def test_a_pipe_is_read_to_its_end(mysql_url: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    content = long_log(3000)
    for expected in ("counted", "known"):
        writer = threading.Thread(target=fifo.write_bytes, args=(content,))
        writer.start()
        assert outcomes(add(mysql_url, fifo)) == [expected]
        writer.join(20)
    assert totals(mysql_url) == keys_of(3000)


def test_days_and_hours_are_those_of_the_counters_policies(mysql_url: str, tmp_path: Path) -> None:
    changed = NOON_MINUTE + 60
    with open_tables(mysql_url) as session:
        put_policies(
            session,
            COUNTER,
            [(0, "America/New_York", "day"), (changed, "Asia/Kolkata", "hour")],
        )
    file = write(
        tmp_path / "a.log",
        line("/", minutes=-12 * 60) + line("/") + line("/", minutes=59) + line("/", minutes=60),
    )
    add(mysql_url, file)
    assert totals(mysql_url) == {
        ("2026-03-13", "/"): 1,
        ("2026-03-14", "/"): 2,
        ("2026-03-14 13:00:01", "/"): 1,
    }


def test_from_and_to_are_days_of_the_counters_own_zones(mysql_url: str, tmp_path: Path) -> None:
    with Store(mysql_url) as store:
        store.counters.set(COUNTER, time_zone="Asia/Tokyo")
    # 15:00 UTC is midnight in Tokyo.
    stamps = [(13, 14, 59), (13, 15, 0), (14, 14, 59), (14, 15, 0), (15, 15, 0)]
    content = b"".join(
        line(f"/{number}", at=datetime(2026, 3, day_, hour, minute, tzinfo=UTC))
        for number, (day_, hour, minute) in enumerate(stamps)
    )
    report = add(
        mysql_url,
        write(tmp_path / "a.log", content),
        start=date(2026, 3, 14),
        end=date(2026, 3, 15),
    )
    assert (report.counted, report.filtered) == (3, 2)
    assert totals(mysql_url) == {
        ("2026-03-14", "/1"): 1,
        ("2026-03-14", "/2"): 1,
        ("2026-03-15", "/3"): 1,
    }


def test_progress_ends_with_everything(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    files = [write(tmp_path / "a.log", long_log(250)), write(tmp_path / "b.log", log("/"))]
    seen: list[Progress] = []
    add(mysql_url, *files, on_progress=seen.append)
    size = sum(file.stat().st_size for file in files)
    assert (seen[-1].done, seen[-1].size, seen[-1].lines) == (size, size, 251)
    assert [one.done for one in seen] == sorted(one.done for one in seen)


def test_a_rate_is_kept(mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses as long as the lines before them take at that rate, and none when nothing comes after
    it; the clock is the test's."""
    waits: list[float] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr("countersink.backfill.count.task.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("countersink.backfill.count.task.time.sleep", sleep)
    monkeypatch.setattr("countersink.backfill.count.task.FEWEST", 50)
    run = add(mysql_url, write(tmp_path / "a.log", long_log(200)), rate=10).run
    assert run is not None
    assert sum(waits) == pytest.approx(15.0)
    assert query(mysql_url, "SELECT COUNT(*) FROM backfill_chunk") == [(4,)]
    waits.clear()
    files = [
        write(tmp_path / f"{number}.log", long_log(50, first=number))
        for number in (1000, 2000, 3000)
    ]
    assert outcomes(add(mysql_url, *files, rate=10)) == ["counted"] * 3
    assert sum(waits) == pytest.approx(10.0)
    waits.clear()
    undoing.undo(mysql_url, run)
    add(mysql_url, tmp_path / "a.log", rate=10)
    assert sum(waits) == pytest.approx(15.0)


def test_a_dry_run_says_what_would_be_added_and_changes_nothing(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    file = write(tmp_path / "a.log", long_log(250) + b"nonsense\n")
    copy = write(tmp_path / "copy.gz", gzip.compress(file.read_bytes()))
    report = add(mysql_url, file, copy, dry_run=True)
    assert (report.run, report.state, outcomes(report)) == (None, "done", ["counted", "known"])
    assert (report.counted, report.rejected, report.by_day) == (250, 1, ((DAY, 250),))
    for table in "run", "source", "chunk", "reject", "journal", "counter":
        assert query(mysql_url, f"SELECT COUNT(*) FROM backfill_{table}") == [(0,)]
    assert totals(mysql_url) == {}
    add(mysql_url, file)
    write(file, long_log(250) + b"nonsense\n" + log("/a"))
    report = add(mysql_url, file, dry_run=True)
    assert (report.counted, report.known_lines, report.by_day) == (1, 251, ((DAY, 1),))
    assert outcomes(add(mysql_url, file, dry_run=True, strip_query=True)) == ["failed"]


@pytest.mark.parametrize("counted", [0, 50])
def test_a_dry_run_knows_a_copy_that_it_has_read_itself(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: int
) -> None:
    """Also one that goes on, or ends before."""
    small_chunks(monkeypatch)
    if counted:
        add(mysql_url, write(tmp_path / "old.log", long_log(counted)))
    files = [
        write(tmp_path / "a.log", long_log(250)[:-1]),
        write(tmp_path / "longer.log", long_log(300)),
        write(tmp_path / "short.log", long_log(20)),
        write(tmp_path / "cut.log", long_log(120)),
        write(tmp_path / "other.log", long_log(20) + log("/other")),
    ]
    dry = add(mysql_url, *files, dry_run=True)
    report = add(mysql_url, *files)
    for each in dry, report:
        assert outcomes(each) == ["counted", "counted", "known", "failed", "failed"]
        assert each.amount == 300 - counted
    assert [each.counted for each in dry.sources] == [each.counted for each in report.sources]


def test_a_tracked_tables_counter_is_refused(mysql_url: str, tmp_path: Path) -> None:
    with open_tables(mysql_url) as session:
        track(session, COUNTER)
    file = write(tmp_path / "a.log", log("/"))
    for dry_run in False, True:
        with pytest.raises(BackfillError, match=f"untrack {COUNTER}"):
            add(mysql_url, file, dry_run=dry_run)
    assert query(mysql_url, "SELECT COUNT(*) FROM backfill_run") == [(0,)]


def test_in_strict_mode_only_known_counters_are_added_to(mysql_url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.log", log("/"))
    with Store(mysql_url) as store:
        store.counters.set_strict(True)
        with pytest.raises(BackfillError, match=f"counter set {COUNTER}"):
            add(mysql_url, file)
        store.counters.set(COUNTER)
    assert add(mysql_url, file).counted == 1


@pytest.mark.parametrize("counter", ["", "a b", "x" * 65])
def test_a_name_that_no_counter_has_is_refused(
    mysql_url: str, tmp_path: Path, counter: str
) -> None:
    with pytest.raises(BackfillError):
        add(mysql_url, write(tmp_path / "a.log", log("/")), counter=counter)


def test_a_recipe_that_cannot_be_is_refused(mysql_url: str, tmp_path: Path) -> None:
    with pytest.raises(BackfillError, match="--time-column"):
        add(mysql_url, write(tmp_path / "a.csv", b"a,b\n"), input_format="csv")


def test_lines_whose_total_would_leave_64_bits_are_rejected(mysql_url: str, tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.csv",
        csv(("a", 1), ("big", MAX), ("small", MIN), ("big", 1), ("b", 2), ("small", 0), ("z", MAX)),
    )
    report = add(mysql_url, file, **CSV)
    assert (report.counted, report.rejected) == (5, 2)
    assert [(number, "64 bits" in reason) for number, reason, _ in rejected(mysql_url)] == [
        (3, True),
        (5, True),
    ]
    assert rejected(mysql_url)[0][2] == f"{DAY}T12:00Z,big,{MAX}".encode()
    assert totals(mysql_url) == {
        (DAY, "a"): 1,
        (DAY, "b"): 2,
        (DAY, "small"): MIN,
        (DAY, "z"): MAX,
    }


def test_a_line_that_was_rejected_for_its_total_is_not_taken_back_when_it_goes_on(
    mysql_url: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.csv", csv(("k", MAX), ("x", 1)))
    add(mysql_url, file, **CSV)
    # All in the slot of one connection: the total of k is full in it.
    slot = query(mysql_url, "SELECT MIN(slot) FROM counter_slot")[0][0]
    for other in range(512, 640):
        if other != slot:
            query(
                mysql_url,
                "INSERT INTO counter_slot SELECT counter, bucket, counter_key, %s, amount"
                " FROM counter_slot WHERE slot = %s AND counter_key = 'k'",
                other,
                slot,
            )
    content = csv(("k", MAX), ("x", 1), ("k", 1))[:-1]
    write(file, content)
    assert add(mysql_url, file, **CSV).rejected == 1
    # Now there is room.
    query(mysql_url, "DELETE FROM counter_slot WHERE counter_key = 'k'")
    write(file, content + b"0\n")
    report = add(mysql_url, file, **CSV)
    assert (report.counted, report.rejected) == (1, 0)
    assert query(mysql_url, "SELECT SUM(amount) FROM counter_slot") == [(1 + 10,)]
    assert rejected(mysql_url) == []
    figures = query(
        mysql_url, "SELECT SUM(lines_read), SUM(counted), SUM(rejected) FROM backfill_run"
    )
    assert figures == [(4, 3, 0)]


def test_amounts_are_added_as_they_are(mysql_url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", csv(("a", -5), ("a", 2), ("zero", 0), ("b", 2**40)))
    report = add(mysql_url, file, **CSV)
    assert report.amount == 2**40 - 3
    assert totals(mysql_url) == {(DAY, "a"): -3, (DAY, "b"): 2**40}
    zeros = query(mysql_url, "SELECT amount FROM counter_slot WHERE counter_key = 'zero'")
    assert zeros == [(0,)]


def test_keys_are_the_bytes_that_they_are(mysql_url: str, tmp_path: Path) -> None:
    keys = ["a", "A", "a ", "á", "a\u0301", "", "\\", "'", "%s", "\U0001f600", "x" * 255]
    file = write(tmp_path / "a.csv", csv(*((f'"{key}"', 1) for key in keys)))
    add(mysql_url, file, **CSV)
    assert totals(mysql_url) == day(*keys)


def test_a_reconcile_that_corrected_nothing_is_in_nobodys_way(
    mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.log", log("/", "/a"))
    asked = options(file, tmp_path / "nothing.log", mode="reconcile")
    report = backfill(mysql_url, asked, redis_url=redis_url)
    assert (report.state, report.corrections) == ("failed", 0)
    assert any("nothing was corrected" in notice for notice in report.notices)
    assert query(mysql_url, "SELECT COUNT(*) FROM backfill_truth") == [(0,)]
    assert outcomes(add(mysql_url, file)) == ["counted"]
    assert totals(mysql_url) == day("/", "/a")


def test_what_was_set_by_a_reconcile_is_not_added(
    mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.log", log("/", "/a"))
    report = backfill(mysql_url, options(file, mode="reconcile"), redis_url=redis_url)
    assert (report.state, report.corrections) == ("done", 2)
    copies = [
        write(tmp_path / "older.log", log("/")),
        file,
        write(tmp_path / "a.gz", gzip.compress(file.read_bytes())),
        write(tmp_path / "grown.log", log("/", "/a", "/b")),
    ]
    for dry_run in False, True:
        refused = add(mysql_url, *copies, dry_run=dry_run)
        assert outcomes(refused) == ["failed"] * 4
        assert details(refused).count(f"backfills undo {report.run}") == 4
    assert totals(mysql_url) == day("/", "/a")
    assert report.run is not None
    undoing.undo(mysql_url, report.run)
    assert outcomes(add(mysql_url, copies[3], *copies[1:3])) == ["counted", "known", "known"]
    assert totals(mysql_url) == day("/", "/a", "/b")
