"""Lines that had no end when they were counted: what becomes of them when more of them has come."""

import json

import pytest

from tests.backfill.helpers import DAY, Logs, keys_of, long_log, rejected, write

CSV = {"input_format": "csv", "time_column": "time", "key_column": "key", "amount_column": "n"}
HEAD = "time,key,n\n"


def row(key: str, amount: object = 1) -> str:
    """A row at noon, with its newline."""
    return f"{DAY}T12:00Z,{key},{amount}\n"


def test_a_bad_line_is_said_beside_one_that_is_not_bad_any_more(logs: Logs) -> None:
    """In the sums of the tables they make up for each other."""
    file = logs.write("a.log", long_log(3)[:-40])
    assert logs.add(file).rejected == 1
    write(file, long_log(3) + b"nonsense\n")
    out = logs.directory / "out.ndjson"
    dry = logs.add(file, dry_run=True)
    report = logs.add(file, rejects=out)
    for each in dry, report:
        assert (each.lines, each.counted, each.rejected) == (2, 1, 1)
    assert [json.loads(line)["line"] for line in out.read_text().splitlines()] == [4]
    assert [number for number, _, _ in rejected(logs.url)] == [4]
    assert logs.totals() == keys_of(3)


def test_a_bad_line_is_one_too_many_beside_one_that_is_not_bad_any_more(logs: Logs) -> None:
    file = logs.write("a.log", long_log(3)[:-40])
    logs.add(file)
    write(file, long_log(3) + b"nonsense\n")
    report = logs.add(file, max_rejects=0)
    assert (report.state, report.rejected) == ("stopped", 1)
    assert sum(logs.totals().values()) == 2


def test_a_line_that_is_bad_in_whole_too_is_kept_once(logs: Logs) -> None:
    file = logs.write("a.log", long_log(2) + b"non")
    logs.add(file)
    write(file, long_log(2) + b"nonsense\n")
    report = logs.add(file)
    assert (report.lines, report.counted, report.rejected) == (1, 0, 1)
    assert [(number, text) for number, _, text in rejected(logs.url)] == [(3, "nonsense")]
    assert logs.query("SELECT SUM(lines_read), SUM(rejected) FROM backfill_run") == [(3, 1)]


def test_all_lines_of_a_record_that_is_closed_later_are_taken_back(logs: Logs) -> None:
    file = logs.directory / "a.csv"
    open_record = f'{HEAD}{row("a")}{DAY}T12:00Z,"b\nzz\nyy'
    write(file, open_record.encode())
    assert logs.add(file, **CSV).rejected == 3
    write(file, f'{open_record}",5\nx\n'.encode())
    report = logs.add(file, **CSV)
    assert (report.counted, report.rejected) == (1, 1)
    assert [number for number, _, _ in rejected(logs.url)] == [6]
    assert logs.totals() == {(DAY, "a"): 1, (DAY, "b\nzz\nyy"): 5}


@pytest.mark.parametrize("ending", [b"\n", b"\nnonsense\n"])
def test_a_part_that_is_counted_again_is_not_rejected_for_good(logs: Logs, ending: bytes) -> None:
    """What follows it has its last word on the line."""
    content = long_log(3)[:-1]
    file = logs.write("a.log", content[:-30])
    first = logs.add(file)
    write(file, content + ending)
    logs.add(file)
    bad = [4] if b"nonsense" in ending else []
    assert [number for number, _, _ in rejected(logs.url)] == bad
    logs.undo(first)
    dry = logs.add(file, dry_run=True)
    report = logs.add(file)
    for each in dry, report:
        assert (each.lines, each.counted, each.rejected) == (2, 2, 0)
    assert rejected(logs.url) == []
    assert logs.query("SELECT SUM(rejected) FROM backfill_chunk") == [(len(bad),)]
    assert logs.totals() == keys_of(3)
