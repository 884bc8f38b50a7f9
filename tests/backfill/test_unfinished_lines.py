"""A last line without a newline: where it waits, where it counts as it is, and what becomes of a
source that goes on later."""

import gzip

import pytest

from tests.backfill.helpers import (
    DAY,
    Logs,
    details,
    keys_of,
    log,
    long_log,
    outcomes,
    run_of,
    write,
    write_old,
)

CSV = {"input_format": "csv", "time_column": "time", "key_column": "key", "amount_column": "n"}
HEAD = "time,key,n\n"
BYTES_OF_LAST = 30


def row(key: str, amount: object = 1) -> str:
    """A row at noon, with its newline."""
    return f"{DAY}T12:00Z,{key},{amount}\n"


@pytest.mark.parametrize("dry_run", [False, True])
def test_it_waits_in_a_log_that_may_still_be_written_to(logs: Logs, dry_run: bool) -> None:
    file = logs.write("a.log", long_log(1)[:-1])
    assert (logs.add(file, dry_run=dry_run).lines, logs.totals()) == (0, {})
    write(file, long_log(3)[:-BYTES_OF_LAST])
    report = logs.add(file, dry_run=dry_run)
    assert (report.lines, report.counted, report.rejected) == (2, 2, 0)
    assert any(
        "the last line has no newline yet and was not counted" in one for one in report.notices
    )
    write(file, long_log(3) + b"nonsense\n")
    report = logs.add(file)
    assert (report.lines, report.counted, report.rejected) == (4, 3, 1) if dry_run else (2, 1, 1)
    assert [one.line for one in logs.rejected()] == [4]
    assert logs.totals() == keys_of(3)


@pytest.mark.parametrize("jobs", [1, 2])
def test_it_counts_in_a_log_that_nobody_writes_to_any_more(logs: Logs, jobs: int) -> None:
    file = write_old(logs.directory / "a.log", long_log(3)[:-1])
    assert logs.add(file, jobs=jobs).counted == 3
    assert logs.totals() == keys_of(3)
    assert logs.add(file).known_lines == 3


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("more", [b"", b"nonsense\n"])
def test_where_but_its_newline_comes_it_is_read_on(logs: Logs, newline: bytes, more: bytes) -> None:
    file = write_old(logs.directory / "a.log", long_log(3)[:-1])
    first = logs.add(file)
    write(file, long_log(3)[:-1] + newline + more + long_log(2, first=3))
    for dry_run in True, False:
        report = logs.add(file, dry_run=dry_run)
        assert (report.lines, report.counted, report.known_lines) == (2 + bool(more), 2, 3)
    assert [one.line for one in logs.rejected()] == ([4] if more else [])
    assert logs.totals() == keys_of(5)
    second = run_of(report)
    logs.undo(run_of(first), second)
    assert logs.add(file).counted == 5
    assert logs.totals() == keys_of(5)


@pytest.mark.parametrize("dry_run", [False, True])
def test_where_it_goes_on_the_run_is_named_and_can_be_taken_back(logs: Logs, dry_run: bool) -> None:
    file = write_old(logs.directory / "a.log", long_log(3)[:-BYTES_OF_LAST])
    before = logs.add(write(logs.directory / "b.log", long_log(2)))
    cut = logs.add(file)
    assert (before.counted, cut.lines, cut.rejected) == (2, 1, 1)
    write(file, long_log(9))
    report = logs.add(file, dry_run=dry_run)
    assert (outcomes(report), report.counted) == (["failed"], 0)
    assert f"`countersink backfills undo {run_of(cut)}`, then count the file again" in details(
        report
    )
    assert "line 3 was counted (as " in details(report)
    logs.undo(cut)
    assert logs.totals() == keys_of(2)
    assert logs.query("SELECT read_to, lines_to FROM backfill_source") == [(len(long_log(2)), 2)]
    report = logs.add(file)
    assert (report.counted, report.known_lines, report.rejected) == (7, 2, 0)
    assert logs.totals() == keys_of(9)


def test_it_counts_in_an_archive(logs: Logs) -> None:
    report = logs.add(logs.write("a.log.gz", gzip.compress(long_log(3)[:-1])))
    assert (report.counted, report.notices) == (3, ())
    assert logs.totals() == keys_of(3)


def test_it_counts_in_an_export_and_in_a_reconcile(logs: Logs) -> None:
    logs.add(logs.write("a.csv", (HEAD + row("a") + row("b", 5))[:-1].encode()), **CSV)
    assert logs.totals() == {(DAY, "a"): 1, (DAY, "b"): 5}
    logs.reconcile(logs.write("a.log", log("/a", "/b")[:-1]), delete_missing=True)
    assert logs.totals() == {(DAY, "/a"): 1, (DAY, "/b"): 1}


def test_an_export_goes_on_behind_its_last_record_but_not_within_quotes(logs: Logs) -> None:
    file = logs.directory / "a.csv"
    text = HEAD + row("a")[:-1]
    assert logs.add(write(file, text.encode()), **CSV).counted == 1
    text += f'\n{DAY}T12:00Z,"b\nzz\nyy'
    torn = logs.add(write(file, text.encode()), **CSV)
    assert (torn.counted, torn.rejected) == (0, 3)
    write(file, f'{text}\n",5\nx\n'.encode())
    assert f"undo {run_of(torn)}" in details(logs.add(file, **CSV))
    logs.undo(torn)
    report = logs.add(file, **CSV)
    assert (report.counted, report.rejected) == (1, 1)
    assert logs.totals() == {(DAY, "a"): 1, (DAY, "b\nzz\nyy\n"): 5}


def test_what_was_taken_back_at_the_end_may_go_on_in_another_way(logs: Logs) -> None:
    file = logs.write("a.log", long_log(3))
    logs.add(file)
    write(file, long_log(3) + log("/x"))
    logs.undo(logs.add(file))
    assert logs.rows("backfill_chunk") == 1
    report = logs.add(write(file, long_log(6)))
    assert (report.counted, report.known_lines) == (3, 3)
    assert logs.totals() == keys_of(6)
