"""Lines that had no end when they were counted: what becomes of them when more of them has come."""

import json
from pathlib import Path

import pytest

from countersink.backfill.undo import undo
from countersink.store.apply import cells
from tests.backfill.helpers import (
    DAY,
    add,
    keys_of,
    long_log,
    query,
    rejected,
    require_verified,
    totals,
    write,
)
from tests.store.helpers import MAX

CSV = {"input_format": "csv", "time_column": "time", "key_column": "key", "amount_column": "n"}
HEAD = "time,key,n\n"


def row(key: str, amount: object = 1) -> str:
    """A row at noon, with its newline."""
    return f"{DAY}T12:00Z,{key},{amount}\n"


@pytest.fixture
def one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the connection, one row takes all of a cell."""
    monkeypatch.setattr(cells, "slot_of", lambda session: cells.FIRST_SLOT)


def test_a_bad_line_is_said_beside_one_that_is_not_bad_any_more(
    mysql_url: str, tmp_path: Path
) -> None:
    """In the sums of the tables they make up for each other."""
    file = write(tmp_path / "a.log", long_log(3)[:-40])
    assert add(mysql_url, file).rejected == 1
    write(file, long_log(3) + b"nonsense\n")
    out = tmp_path / "out.ndjson"
    dry = add(mysql_url, file, dry_run=True)
    report = add(mysql_url, file, rejects=out)
    for each in dry, report:
        assert (each.lines, each.counted, each.rejected) == (2, 1, 1)
    assert [json.loads(line)["line"] for line in out.read_text().splitlines()] == [4]
    assert [number for number, _, _ in rejected(mysql_url)] == [4]
    assert totals(mysql_url) == keys_of(3)


def test_a_bad_line_is_one_too_many_beside_one_that_is_not_bad_any_more(
    mysql_url: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.log", long_log(3)[:-40])
    add(mysql_url, file)
    write(file, long_log(3) + b"nonsense\n")
    report = add(mysql_url, file, max_rejects=0)
    assert (report.state, report.rejected) == ("stopped", 1)
    assert sum(totals(mysql_url).values()) == 2


def test_a_line_that_is_bad_in_whole_too_is_kept_once(mysql_url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.log", long_log(2) + b"non")
    add(mysql_url, file)
    write(file, long_log(2) + b"nonsense\n")
    report = add(mysql_url, file)
    assert (report.lines, report.counted, report.rejected) == (1, 0, 1)
    assert [(number, text) for number, _, text in rejected(mysql_url)] == [(3, b"nonsense")]
    assert query(mysql_url, "SELECT SUM(lines_read), SUM(rejected) FROM backfill_run") == [(3, 1)]


def test_all_lines_of_a_record_that_is_closed_later_are_taken_back(
    mysql_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    open_record = f'{HEAD}{row("a")}{DAY}T12:00Z,"b\nzz\nyy'
    write(file, open_record.encode())
    assert add(mysql_url, file, **CSV).rejected == 3
    write(file, f'{open_record}",5\nx\n'.encode())
    report = add(mysql_url, file, **CSV)
    assert (report.counted, report.rejected) == (1, 1)
    assert [number for number, _, _ in rejected(mysql_url)] == [6]
    assert totals(mysql_url) == {(DAY, "a"): 1, (DAY, "b\nzz\nyy"): 5}


@pytest.mark.parametrize("ending", [b"\n", b"\nnonsense\n"])
def test_a_part_that_is_counted_again_is_not_rejected_for_good(
    mysql_url: str, tmp_path: Path, ending: bytes
) -> None:
    """What follows it has its last word on the line."""
    content = long_log(3)[:-1]
    file = write(tmp_path / "a.log", content[:-30])
    first = add(mysql_url, file)
    write(file, content + ending)
    add(mysql_url, file)
    bad = [4] if b"nonsense" in ending else []
    assert first.run is not None
    undo(mysql_url, first.run)
    dry = add(mysql_url, file, dry_run=True)
    report = add(mysql_url, file)
    for each in dry, report:
        assert (each.lines, each.counted, each.rejected) == (2, 2, 0)
    assert [number for number, _, _ in rejected(mysql_url)] == bad
    assert totals(mysql_url) == keys_of(3)


@pytest.mark.usefixtures("one_slot")
def test_a_part_that_was_counted_is_taken_back_though_the_whole_is_too_large(
    mysql_url: str, tmp_path: Path
) -> None:
    add(mysql_url, write(tmp_path / "other.csv", (HEAD + row("a", 100)).encode()), **CSV)
    start = HEAD + row("x")
    file = write(tmp_path / "a.csv", (start + row("a", MAX // 100)[:-1]).encode())
    assert add(mysql_url, file, **CSV).counted == 2
    write(file, (start + row("a", MAX)).encode())
    report = add(mysql_url, file, **CSV)
    assert (report.counted, report.rejected) == (0, 1)
    assert [(number, "64 bits" in reason) for number, reason, _ in rejected(mysql_url)] == [
        (3, True)
    ]
    assert totals(mysql_url) == {(DAY, "a"): 100, (DAY, "x"): 1}


@pytest.mark.usefixtures("one_slot")
def test_a_part_that_no_row_could_take_stays_what_it_was_when_it_is_counted_again(
    mysql_url: str, tmp_path: Path
) -> None:
    full = add(mysql_url, write(tmp_path / "other.csv", (HEAD + row("a", MAX)).encode()), **CSV)
    start = HEAD + row("x")
    file = write(tmp_path / "a.csv", (start + row("a", 5)[:-1]).encode())
    first = add(mysql_url, file, **CSV)
    assert (first.counted, first.rejected) == (1, 1)
    assert full.run is not None
    assert first.run is not None
    undo(mysql_url, full.run)
    write(file, (start + row("a", 55)).encode())
    add(mysql_url, file, **CSV)
    assert totals(mysql_url) == {(DAY, "a"): 55, (DAY, "x"): 1}
    for again in [1], [0], [0, 1]:
        of_chunks = query(
            mysql_url,
            "SELECT run FROM backfill_chunk WHERE source = (SELECT MAX(id) FROM backfill_source)"
            " ORDER BY start_at",
        )
        for number in again:
            undo(mysql_url, of_chunks[number][0])
        add(mysql_url, file, **CSV)
        require_verified(mysql_url)
        assert totals(mysql_url) == {(DAY, "a"): 55, (DAY, "x"): 1}
        assert rejected(mysql_url) == []
