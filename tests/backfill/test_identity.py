"""Which source a file is: known by its content, whatever its name, and continued where it grew."""

import bz2
import gzip
import os
from collections import Counter
from pathlib import Path

import pytest

from countersink.backfill.options import Recipe
from countersink.backfill.undo import undo
from tests.backfill.helpers import (
    DAY,
    add,
    day,
    details,
    keys_of,
    line,
    log,
    long_log,
    outcomes,
    query,
    small_chunks,
    totals,
    write,
)


def test_a_file_that_was_added_is_known_the_second_time(mysql_url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.log", log("/", "/a", "/a"))
    first = add(mysql_url, file)
    assert (first.state, first.lines, first.counted, first.amount) == ("done", 3, 3, 3)
    assert first.known_lines == 0
    second = add(mysql_url, file)
    assert outcomes(second) == ["known"]
    assert (second.lines, second.amount, second.known_lines) == (0, 0, 3)
    assert totals(mysql_url) == day("/", "/a", "/a")


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_file_that_has_grown_is_continued(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    small_chunks(monkeypatch, lines=60 // chunks)
    file = tmp_path / "a.log"
    for lines in (1, 20, 20, 61, 200):
        write(file, long_log(lines))
        add(mysql_url, file)
        assert totals(mysql_url) == keys_of(lines)
    assert query(mysql_url, "SELECT lines_to, open_at FROM backfill_source") == [(200, None)]


def test_a_file_that_grows_byte_by_byte_is_counted_by_whole_lines_at_last(
    mysql_url: str, tmp_path: Path
) -> None:
    """The last line is counted as it is, and counted anew once more of it has come."""
    content = log("/long/path", "/b", "/c")
    second = content.index(b"\n") + 1
    file = tmp_path / "a.log"
    for size in (second - 1, second, second + 30, second + 76, len(content) - 1, len(content)):
        write(file, content[:size])
        report = add(mysql_url, file)
        assert report.lines == report.counted + report.filtered + report.rejected
        assert min(report.counted, report.rejected) >= 0
    assert totals(mysql_url) == day("/long/path", "/b", "/c")
    assert query(mysql_url, "SELECT COUNT(*) FROM backfill_reject") == [(0,)]
    figures = query(
        mysql_url, "SELECT SUM(lines_read), SUM(counted), SUM(rejected) FROM backfill_run"
    )
    assert figures == [(3, 3, 0)]


def test_what_an_unfinished_line_said_is_taken_back(mysql_url: str, tmp_path: Path) -> None:
    """In a format in which a piece of a line is a line."""
    file = tmp_path / "a.csv"
    columns = {"input_format": "csv", "time_column": "time", "key_column": "key"}
    for content in (
        f"time,key\n{DAY}T12:00Z,a\n{DAY}T12:00Z,b",
        f"time,key\n{DAY}T12:00Z,a\n{DAY}T12:00Z,bc",
        f"time,key\n{DAY}T12:00Z,a\n{DAY}T12:00Z,bcd\n{DAY}T12:00Z,b\n",
    ):
        write(file, content.encode())
        add(mysql_url, file, **columns)
    assert totals(mysql_url) == day("a", "bcd", "b")


def test_a_quoted_record_that_is_finished_later_keeps_its_line_number(
    mysql_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    columns = {"input_format": "csv", "time_column": "time", "key_column": "key"}
    head = f"time,key\n{DAY}T12:00Z,a\n"
    for content in (
        head + 'yesterday,"b\n\n',
        head + 'yesterday,"b\n\nc"\n' + "tomorrow,d\n",
    ):
        write(file, content.encode())
        add(mysql_url, file, **columns)
    assert query(mysql_url, "SELECT line FROM backfill_reject ORDER BY line") == [(3,), (6,)]
    assert query(mysql_url, "SELECT lines_to FROM backfill_source") == [(6,)]
    assert totals(mysql_url) == day("a")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_compressed_copy_is_known(mysql_url: str, tmp_path: Path, pack: object) -> None:
    content = long_log(100)
    plain = write(tmp_path / "access.log", content)
    packed = write(tmp_path / "access.log.1", pack(content))  # type: ignore[operator]
    assert outcomes(add(mysql_url, plain)) == ["counted"]
    assert outcomes(add(mysql_url, packed)) == ["known"]
    assert totals(mysql_url) == keys_of(100)


def test_a_copy_with_more_in_it_goes_on_where_the_plain_file_ended(
    mysql_url: str, tmp_path: Path
) -> None:
    """Rotation: read yesterday, rotated and compressed since."""
    add(mysql_url, write(tmp_path / "access.log", long_log(50)))
    report = add(mysql_url, write(tmp_path / "access.log.1.gz", gzip.compress(long_log(80))))
    assert (report.lines, report.known_lines) == (30, 50)
    assert totals(mysql_url) == keys_of(80)


def test_a_renamed_file_is_known_and_a_new_one_of_the_old_name_is_not(
    mysql_url: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "access.log", long_log(40))
    add(mysql_url, file)
    os.rename(file, tmp_path / "access.log.1")
    write(file, long_log(10, first=40))
    report = add(mysql_url, tmp_path)
    assert sorted(outcomes(report)) == ["counted", "known"]
    assert totals(mysql_url) == keys_of(50)


def test_the_same_content_twice_in_one_run_is_added_once(mysql_url: str, tmp_path: Path) -> None:
    content = long_log(30)
    files = [write(tmp_path / name, content) for name in ("a", "b")]
    files.append(write(tmp_path / "c.gz", gzip.compress(content)))
    assert outcomes(add(mysql_url, *files)) == ["counted", "known", "known"]
    assert totals(mysql_url) == keys_of(30)


def test_an_older_copy_adds_nothing_where_one_can_tell(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, lines=20)
    add(mysql_url, write(tmp_path / "new.log", long_log(100)))
    older = add(mysql_url, write(tmp_path / "old.log", long_log(40)))
    assert outcomes(older) == ["known"]
    assert "older copy" in details(older)
    unclear = add(mysql_url, write(tmp_path / "unclear.log", long_log(50)))
    assert (unclear.state, outcomes(unclear)) == ("failed", ["failed"])
    assert "--source-name" in details(unclear)
    assert totals(mysql_url) == keys_of(100)


def test_files_that_begin_alike_and_then_differ_are_both_counted(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, lines=20)
    head = log(*["/head"] * 60)
    files = [write(tmp_path / key, head + log(f"/{key}") * 20) for key in ("a", "b")]
    reports = [add(mysql_url, file, count_repeats=True) for file in files]
    assert [outcomes(report) for report in reports] == [["counted"], ["counted"]]
    assert "another source" in details(reports[1])
    expected = {(DAY, "/head"): 120, (DAY, "/a"): 20, (DAY, "/b"): 20}
    assert totals(mysql_url) == expected
    again = add(mysql_url, *files)
    assert outcomes(again) == ["known", "known"]
    assert totals(mysql_url) == expected


def test_identical_lines_are_all_counted(mysql_url: str, tmp_path: Path) -> None:
    """What chunks known by their content would lose."""
    file = write(tmp_path / "a.log", line("/") * 5000)
    add(mysql_url, file)
    write(file, line("/") * 8000)
    add(mysql_url, file)
    assert totals(mysql_url) == {(DAY, "/"): 8000}


def test_the_same_content_under_another_source_name_is_another_source(
    mysql_url: str, tmp_path: Path
) -> None:
    """Two web servers may have written the same lines."""
    file = write(tmp_path / "a.log", log("/"))
    for name in ("web1", "web2", "web2 ", "web1"):
        add(mysql_url, file, name=name)
    assert totals(mysql_url) == day("/", "/", "/")


def test_each_counter_has_its_own_sources(mysql_url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.log", log("/"))
    for counter in ("views", "hits"):
        assert outcomes(add(mysql_url, file, counter=counter)) == ["counted"]
    assert totals(mysql_url, "views") == totals(mysql_url, "hits") == day("/")


def test_the_same_content_with_other_options_is_refused(mysql_url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.log", log("/?q"))
    first = add(mysql_url, file)
    report = add(mysql_url, file, key="{target}")
    assert (report.state, outcomes(report)) == ("failed", ["failed"])
    assert f"backfills undo {first.run}" in details(report)
    assert "{target}" in details(report)
    assert totals(mysql_url) == day("/")
    assert first.run is not None
    undo(mysql_url, first.run)
    assert outcomes(add(mysql_url, file, key="{target}")) == ["counted"]
    assert totals(mysql_url) == day("/?q")


def test_options_by_which_nothing_was_counted_may_be_replaced(
    mysql_url: str, tmp_path: Path
) -> None:
    """A wrong format, or filters that leave out everything."""
    file = write(tmp_path / "a.log", log("/", "/b"))
    wrong = add(mysql_url, file, input_format="nginx-json")
    assert (wrong.counted, wrong.rejected) == (0, 2)
    assert outcomes(add(mysql_url, file, exclude_keys=("*",))) == ["counted"]
    assert query(mysql_url, "SELECT COUNT(*) FROM backfill_reject") == [(0,)]
    report = add(mysql_url, file)
    assert (report.counted, report.known_lines) == (2, 0)
    assert totals(mysql_url) == day("/", "/b")


def test_a_short_line_without_its_end_is_known_once_it_has_grown(
    mysql_url: str, tmp_path: Path
) -> None:
    """No line was whole when it was first seen."""
    file = write(tmp_path / "a.log", log("/")[:-1])
    add(mysql_url, file)
    write(file, long_log(0) + log("/", "/b"))
    report = add(mysql_url, file)
    assert (report.lines, report.known_lines) == (1, 1)
    assert totals(mysql_url) == day("/", "/b")


def test_a_first_line_beyond_all_measure_is_known_again(mysql_url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.log", b"x" * 200_000 + b"\n" + log("/"))
    assert add(mysql_url, file).rejected == 1
    write(file, b"x" * 200_000 + b"\n" + log("/", "/b"))
    report = add(mysql_url, file)
    assert (report.lines, report.counted) == (1, 1)
    assert totals(mysql_url) == day("/", "/b")


def test_a_file_of_nothing_but_headers_is_not_taken_for_the_next(
    mysql_url: str, tmp_path: Path
) -> None:
    """Daily exports all begin with the same line."""
    columns = {"input_format": "csv", "time_column": "time", "key_column": "key"}
    head = "time,key\n"
    empty = write(tmp_path / "empty.csv", head.encode())
    files = [
        write(tmp_path / f"{number}.csv", f"{head}{DAY}T12:00Z,{number}\n".encode())
        for number in range(3)
    ]
    assert outcomes(add(mysql_url, empty, *files, **columns)) == ["counted"] * 4
    assert totals(mysql_url) == day("0", "1", "2")
    assert set(outcomes(add(mysql_url, *files, **columns))) == {"known"}
    assert totals(mysql_url) == day("0", "1", "2")


@pytest.mark.parametrize("lines", [1, 3, 40, 60])
def test_an_older_copy_of_a_few_lines_adds_nothing(
    mysql_url: str, tmp_path: Path, lines: int
) -> None:
    """As far as is known how a source begins, an older copy may end anywhere."""
    add(mysql_url, write(tmp_path / "new.log", long_log(100)))
    expected = ["known" if len(long_log(lines)) <= 4096 else "failed"]
    older = write(tmp_path / "old.log", long_log(lines))
    torn = write(tmp_path / "torn.log", long_log(lines)[:-9])
    for file in older, torn:
        assert outcomes(add(mysql_url, file)) == expected
        dry = add(mysql_url, file, dry_run=True)
        assert (outcomes(dry), dry.counted) == (expected, 0)
    assert totals(mysql_url) == keys_of(100)


def test_an_older_copy_of_what_was_undone_is_not_taken_for_one_that_is_counted(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, lines=20)
    file = write(tmp_path / "new.log", long_log(20))
    first = add(mysql_url, file)
    write(file, long_log(40))
    add(mysql_url, file)
    assert first.run is not None
    undo(mysql_url, first.run)
    older = write(tmp_path / "old.log", long_log(10))
    assert outcomes(add(mysql_url, older)) == ["failed"]
    add(mysql_url, file)
    assert outcomes(add(mysql_url, older)) == ["known"]
    assert totals(mysql_url) == keys_of(40)


def test_files_of_one_record_without_its_end_are_sources_of_their_own(
    mysql_url: str, tmp_path: Path
) -> None:
    columns = {"input_format": "ndjson", "time_column": "t", "key_column": "k"}
    files = [
        write(tmp_path / f"{key}.json", f'{{"k":"{key}","t":"{DAY}T12:00Z"}}'.encode())
        for key in ("alpha", "b", "cc")
    ]
    assert outcomes(add(mysql_url, *files, **columns)) == ["counted"] * 3
    assert outcomes(add(mysql_url, *files, **columns)) == ["known"] * 3
    assert totals(mysql_url) == day("alpha", "b", "cc")


@pytest.mark.parametrize("ending", ["", "\n"])
def test_exports_of_one_row_are_sources_of_their_own(
    mysql_url: str, tmp_path: Path, ending: str
) -> None:
    columns = {"input_format": "csv", "time_column": "time", "key_column": "key"}
    rows = [f"{DAY}T12:00Z,{key}" for key in "abcd"]
    contents = [f"time,key\n{rows[0]}\n{rows[1]}\n", *(f"time,key\n{row}{ending}" for row in rows)]
    files = [write(tmp_path / str(number), each.encode()) for number, each in enumerate(contents)]
    header = write(tmp_path / "header", b"time,key\n")
    # The second is how the first begins.
    told = ["counted", "known", "counted", "counted", "counted"]
    report = add(mysql_url, *files, header, **columns, dry_run=True)
    assert (outcomes(report), report.amount) == ([*told, "known"], 5)
    assert outcomes(add(mysql_url, *files, header, **columns)) == [*told, "known"]
    assert totals(mysql_url) == day("a", "b", "b", "c", "d")
    assert outcomes(add(mysql_url, *files, **columns)) == ["known"] * 5


def test_what_was_never_counted_is_nobodys_beginning(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a file that was rejected in whole, nor one of which nothing was read."""
    bad = write(tmp_path / "bad.log", b"garbage")
    assert add(mysql_url, bad, max_rejects=0).state == "stopped"
    assert query(mysql_url, "SELECT COUNT(*) FROM backfill_source") == [(0,)]
    # What a process leaves that is killed before its first chunk.
    query(
        mysql_url,
        "INSERT INTO backfill_source (counter, head, options, path) VALUES ('views', %s, %s, '')",
        long_log(30),
        Recipe().to_json(),
    )
    torn = write(tmp_path / "torn.log", long_log(1) + log("/torn"))
    short = write(tmp_path / "short.log", long_log(1))
    grown = write(tmp_path / "a.log", long_log(5))
    assert outcomes(add(mysql_url, torn, short)) == ["counted", "known"]
    assert outcomes(add(mysql_url, grown)) == ["counted"]
    assert totals(mysql_url) == Counter(keys_of(5)) + Counter({**keys_of(1), (DAY, "/torn"): 1})


def test_what_begins_as_a_source_did_that_is_counted_no_further_is_known_as_it_grows(
    mysql_url: str, tmp_path: Path
) -> None:
    """Its beginning is that of the content that was counted, not of one that was not."""
    query(
        mysql_url,
        "INSERT INTO backfill_source (counter, head, options, path) VALUES ('views', %s, %s, '')",
        long_log(30),
        Recipe().to_json(),
    )
    file = write(tmp_path / "a.log", long_log(1))
    add(mysql_url, file)
    for content in long_log(1) + log("/x"), long_log(1) + log("/x") + long_log(90):
        write(file, content)
        assert add(mysql_url, file).known_lines > 0
        assert query(mysql_url, "SELECT head FROM backfill_source") == [(content[:4096],)]
    older = write(tmp_path / "older.log", content[:1000])
    assert outcomes(add(mysql_url, older)) == ["known"]


def test_files_of_a_few_lines_that_begin_alike_are_sources_of_their_own(
    mysql_url: str, tmp_path: Path
) -> None:
    longer = write(tmp_path / "a.log", log("/", "/a") + long_log(30))
    shorter = write(tmp_path / "b.log", log("/", "/b"))
    assert outcomes(add(mysql_url, longer, shorter)) == ["counted", "counted"]
    write(shorter, log("/", "/b", "/c"))
    assert add(mysql_url, shorter).lines == 1
