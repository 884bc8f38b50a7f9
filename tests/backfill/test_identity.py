"""Which source a file is: known by its content, whatever its name, and continued where it grew."""

import bz2
import gzip
from collections import Counter

import pytest

from countersink.backfill.options import Recipe
from tests.backfill.helpers import (
    DAY,
    Logs,
    day,
    details,
    keys_of,
    log,
    long_log,
    outcomes,
    write,
)

CSV = {"input_format": "csv", "time_column": "time", "key_column": "key"}


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_file_that_has_grown_is_continued(logs: Logs, chunks: int) -> None:
    logs.small_chunks(lines=60 // chunks)
    file = logs.directory / "a.log"
    for lines in (1, 20, 20, 61, 200):
        write(file, long_log(lines))
        logs.add(file)
        assert logs.totals() == keys_of(lines)
    assert logs.query("SELECT lines_to FROM backfill_source") == [(200,)]


def test_a_file_that_grows_byte_by_byte_is_counted_by_whole_lines(logs: Logs) -> None:
    """The last line waits until it is whole."""
    content = log("/long/path", "/b", "/c")
    second = content.index(b"\n") + 1
    file = logs.directory / "a.log"
    for size in (second - 1, second, second + 30, second + 76, len(content) - 1, len(content)):
        write(file, content[:size])
        report = logs.add(file)
        assert report.lines == report.counted + report.filtered + report.rejected
        assert min(report.counted, report.rejected) >= 0
    assert logs.totals() == day("/long/path", "/b", "/c")
    assert logs.rejected() == []
    figures = logs.query("SELECT SUM(lines_read), SUM(counted), SUM(rejected) FROM backfill_run")
    assert figures == [(3, 3, 0)]


def test_a_copy_with_more_in_it_goes_on_where_the_plain_file_ended(logs: Logs) -> None:
    """Rotation: read yesterday, rotated and compressed since."""
    logs.add(logs.write("access.log", long_log(50)))
    report = logs.add(logs.write("access.log.1.gz", gzip.compress(long_log(80))))
    assert (report.lines, report.known_lines) == (30, 50)
    assert logs.totals() == keys_of(80)


def test_the_same_content_twice_in_one_run_is_added_once(logs: Logs) -> None:
    content = long_log(30)
    copies = {"a": content, "b": content, "c": gzip.compress(content), "d": bz2.compress(content)}
    files = [logs.write(name, copy) for name, copy in copies.items()]
    assert outcomes(logs.add(*files)) == ["counted", "known", "known", "known"]
    for file in files:
        assert outcomes(logs.add(file)) == ["known"]
    assert logs.totals() == keys_of(30)


def test_an_older_copy_adds_nothing_where_one_can_tell(logs: Logs) -> None:
    logs.small_chunks(lines=20)
    logs.add(logs.write("new.log", long_log(100)))
    older = logs.add(logs.write("old.log", long_log(40)))
    assert outcomes(older) == ["known"]
    assert "older copy" in details(older)
    unclear = logs.add(logs.write("unclear.log", long_log(50)))
    assert (unclear.state, outcomes(unclear)) == ("failed", ["failed"])
    assert "--source-name" in details(unclear)
    assert logs.totals() == keys_of(100)


def test_files_that_begin_alike_and_then_differ_are_both_counted(logs: Logs) -> None:
    logs.small_chunks(lines=20)
    head = log(*["/head"] * 60)
    files = [logs.write(key, head + log(f"/{key}") * 20) for key in ("a", "b")]
    reports = [logs.add(file, count_repeats=True) for file in files]
    assert [outcomes(report) for report in reports] == [["counted"], ["counted"]]
    expected = {(DAY, "/head"): 120, (DAY, "/a"): 20, (DAY, "/b"): 20}
    assert logs.totals() == expected
    again = logs.add(*files)
    assert outcomes(again) == ["known", "known"]
    assert logs.totals() == expected


def test_options_by_which_nothing_was_counted_may_be_replaced(logs: Logs) -> None:
    """A wrong format, or filters that leave out everything."""
    file = logs.write("a.log", log("/", "/b"))
    wrong = logs.add(file, input_format="nginx-json")
    assert (wrong.counted, wrong.rejected) == (0, 2)
    assert outcomes(logs.add(file, exclude_keys=("*",))) == ["counted"]
    assert logs.rejected() == []
    report = logs.add(file)
    assert (report.counted, report.known_lines) == (2, 0)
    assert logs.totals() == day("/", "/b")


def test_a_first_line_beyond_all_measure_is_known_again(logs: Logs) -> None:
    file = logs.write("a.log", b"x" * 200_000 + b"\n" + log("/"))
    assert logs.add(file).rejected == 1
    write(file, b"x" * 200_000 + b"\n" + log("/", "/b"))
    report = logs.add(file)
    assert (report.lines, report.counted) == (1, 1)
    assert logs.totals() == day("/", "/b")


def test_a_file_of_nothing_but_headers_is_not_taken_for_the_next(logs: Logs) -> None:
    """Daily exports all begin with the same line."""
    head = "time,key\n"
    empty = logs.write("empty.csv", head.encode())
    files = [
        logs.write(f"{number}.csv", f"{head}{DAY}T12:00Z,{number}\n".encode())
        for number in range(3)
    ]
    assert outcomes(logs.add(empty, *files, **CSV)) == ["counted"] * 4
    assert logs.totals() == day("0", "1", "2")
    assert set(outcomes(logs.add(*files, **CSV))) == {"known"}
    assert logs.totals() == day("0", "1", "2")


@pytest.mark.parametrize("lines", [1, 3, 40, 60])
def test_an_older_copy_of_a_few_lines_adds_nothing(logs: Logs, lines: int) -> None:
    """As far as is known how a source begins, an older copy may end anywhere."""
    logs.add(logs.write("new.log", long_log(100)))
    expected = ["known" if len(long_log(lines)) <= 4096 else "failed"]
    older = logs.write("old.log", long_log(lines))
    torn = logs.write("torn.log", long_log(lines)[:-9])
    for file in older, torn:
        assert outcomes(logs.add(file)) == expected
        dry = logs.add(file, dry_run=True)
        assert (outcomes(dry), dry.counted) == (expected, 0)
    assert logs.totals() == keys_of(100)


def test_files_of_one_record_without_its_end_are_sources_of_their_own(logs: Logs) -> None:
    ndjson = {"input_format": "ndjson", "time_column": "t", "key_column": "k"}
    files = [
        logs.write(f"{key}.json", f'{{"k":"{key}","t":"{DAY}T12:00Z"}}'.encode())
        for key in ("alpha", "b", "cc")
    ]
    assert outcomes(logs.add(*files, **ndjson)) == ["counted"] * 3
    assert outcomes(logs.add(*files, **ndjson)) == ["known"] * 3
    assert logs.totals() == day("alpha", "b", "cc")


@pytest.mark.parametrize("ending", ["", "\n"])
def test_exports_of_one_row_are_sources_of_their_own(logs: Logs, ending: str) -> None:
    rows = [f"{DAY}T12:00Z,{key}" for key in "abcd"]
    contents = [f"time,key\n{rows[0]}\n{rows[1]}\n", *(f"time,key\n{row}{ending}" for row in rows)]
    files = [logs.write(str(number), each.encode()) for number, each in enumerate(contents)]
    header = logs.write("header", b"time,key\n")
    # The second is how the first begins.
    told = ["counted", "known", "counted", "counted", "counted"]
    report = logs.add(*files, header, **CSV, dry_run=True)
    assert (outcomes(report), report.amount) == ([*told, "known"], 5)
    assert outcomes(logs.add(*files, header, **CSV)) == [*told, "known"]
    assert logs.totals() == day("a", "b", "b", "c", "d")
    assert outcomes(logs.add(*files, **CSV)) == ["known"] * 5


def leave_unread(logs: Logs, head: bytes) -> None:
    """What a process leaves that is killed before its first chunk."""
    logs.query(
        "INSERT INTO backfill_source (counter, head, options, path) VALUES ('views', %s, %s, '')",
        head,
        Recipe().to_json(),
    )


def test_what_was_never_counted_is_nobodys_beginning(logs: Logs) -> None:
    """Neither a file that was rejected in whole, nor one of which nothing was read."""
    bad = logs.write("bad.log", b"garbage\n")
    assert logs.add(bad, max_rejects=0).state == "stopped"
    leave_unread(logs, long_log(30))
    torn = logs.write("torn.log", long_log(1) + log("/torn"))
    short = logs.write("short.log", long_log(1))
    grown = logs.write("a.log", long_log(5))
    assert outcomes(logs.add(torn, short)) == ["counted", "known"]
    assert outcomes(logs.add(grown)) == ["counted"]
    assert logs.totals() == Counter(keys_of(5)) + Counter({**keys_of(1), (DAY, "/torn"): 1})


def test_what_begins_as_a_source_did_that_is_counted_no_further_is_known_as_it_grows(
    logs: Logs,
) -> None:
    """Its beginning is that of the content that was counted, not of one that was not."""
    leave_unread(logs, long_log(30))
    file = logs.write("a.log", long_log(1))
    logs.add(file)
    for content in long_log(1) + log("/x"), long_log(1) + log("/x") + long_log(90):
        write(file, content)
        assert logs.add(file).known_lines > 0
        assert logs.query("SELECT head FROM backfill_source") == [(content[:4096],)]
    older = logs.write("older.log", content[:1000])
    assert outcomes(logs.add(older)) == ["known"]


def test_files_of_a_few_lines_that_begin_alike_are_sources_of_their_own(logs: Logs) -> None:
    longer = logs.write("a.log", log("/", "/a") + long_log(30))
    shorter = logs.write("b.log", log("/", "/b"))
    assert outcomes(logs.add(longer, shorter)) == ["counted", "counted"]
    write(shorter, log("/", "/b", "/c"))
    assert logs.add(shorter).lines == 1
