"""Lines that cannot be counted: kept, written to a file, and too many of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from countersink.backfill import history, options
from countersink.store.sessions import open_tables
from tests.backfill.helpers import Logs, day, keys_of, log, long_log, outcomes, rejected, run_of

BAD = b"nonsense\n"


def written(path: Path) -> list[dict[str, Any]]:
    """What a file of rejected lines says."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rejected_lines_are_kept_and_written_with_number_reason_and_text(logs: Logs) -> None:
    first = logs.write("a.log", log("/") + b'\xff\x00 "no\\log"\n' + log("/b"))
    second = logs.write("b.log", BAD + log("/c") + b"x" * 5000)
    out = logs.directory / "out.ndjson"
    report = logs.add(first, second, rejects=out)
    assert (report.state, report.counted, report.rejected) == ("done", 3, 3)
    assert any(str(out) in notice for notice in report.notices)
    found = written(out)
    assert [(one["source"], one["line"]) for one in found] == [
        (str(first), 2),
        (str(second), 1),
        (str(second), 3),
    ]
    assert [one["text"] for one in found] == ['\\xff\x00 "no\\log"', "nonsense", "x" * 1000]
    assert all(one["reason"] for one in found)
    assert [number for number, _, _ in rejected(logs.url)] == [2, 1, 3]
    with open_tables(logs.url) as session:
        listed = list(history.rejects(session, run_of(report)))
    assert [(one.source, one.line) for one in listed] == [
        (one["source"], one["line"]) for one in found
    ]
    assert logs.totals() == day("/", "/b", "/c")


def test_the_file_has_a_name_of_its_own_and_is_not_made_for_nothing(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs.directory)
    good = logs.write("a.log", log("/"))
    logs.add(good, rejects=None)
    assert list(logs.directory.iterdir()) == [good]
    report = logs.add(logs.write("b.log", BAD), rejects=None)
    assert len(written(logs.directory / f"backfill-{report.run}-rejects.ndjson")) == 1
    again = logs.add(logs.directory / "b.log", rejects=None)
    assert again.rejected == 0
    assert not (logs.directory / f"backfill-{again.run}-rejects.ndjson").exists()


def test_a_file_that_cannot_be_written_costs_no_count(logs: Logs) -> None:
    file = logs.write("a.log", log("/") + BAD)
    for path in file / "no", logs.directory / "no" / "such" / "directory", Path("/dev/full"):
        report = logs.add(file, rejects=path, name=str(path))
        assert (report.state, report.rejected) == ("done", 1)
        why, notice = [one for one in report.notices if "rejected" in one]
        assert f"line 2 of {file}" in why
        assert str(path) in notice
        assert f"backfills show {report.run} --rejects" in notice
    assert logs.totals() == day("/", "/", "/")


def test_too_many_rejects_end_the_run_before_their_chunk_is_counted(logs: Logs) -> None:
    logs.small_chunks()
    content = long_log(100)
    content += b"".join(BAD + long_log(49, first=number) for number in (200, 300, 400, 500))
    files = [logs.write("a.log", content), logs.write("b.log", log("/b"))]
    out = logs.directory / "out.ndjson"
    report = logs.add(*files, max_rejects=3, rejects=out)
    assert (report.state, report.lines, report.rejected) == ("stopped", 200, 4)
    assert outcomes(report) == ["counted"]
    assert any("more than 3 lines" in notice for notice in report.notices)
    assert [one["line"] for one in written(out)] == [101, 151, 201, 251]
    assert logs.query("SELECT state, lines_read, rejected FROM backfill_run") == [
        ("stopped", 200, 2)
    ]
    report = logs.add(*files, max_rejects=3, rejects=out)
    assert (report.state, report.lines, report.known_lines) == ("done", 101, 200)
    assert [one["line"] for one in written(out)] == [201, 251]
    assert sum(logs.totals().values()) == 100 + 4 * 49 + 1


def test_exactly_as_many_rejects_as_may_be_are_fine(logs: Logs) -> None:
    file = logs.write("a.log", BAD * 3 + log("/"))
    assert logs.add(file, max_rejects=3).state == "done"
    assert logs.totals() == day("/")


def test_none_may_be_rejected(logs: Logs) -> None:
    file = logs.write("a.log", log("/") + BAD)
    report = logs.add(file, max_rejects=0)
    assert (report.state, report.counted, report.rejected) == ("stopped", 0, 1)
    assert logs.totals() == {}
    dry = logs.add(file, max_rejects=0, dry_run=True)
    assert (dry.state, dry.rejected) == ("stopped", 1)


def test_a_dry_run_writes_them_where_it_is_told_to(logs: Logs) -> None:
    file = logs.write("a.log", BAD + log("/"))
    out = logs.directory / "out.ndjson"
    logs.add(file, dry_run=True)
    assert list(logs.directory.iterdir()) == [file]
    logs.add(file, dry_run=True, rejects=out)
    assert [one["line"] for one in written(out)] == [1]
    assert logs.query("SELECT COUNT(*) FROM backfill_reject") == [(0,)]


def test_rejected_lines_go_with_their_run(logs: Logs) -> None:
    file = logs.write("a.log", long_log(10) + BAD)
    report = logs.add(file)
    logs.undo(report)
    assert rejected(logs.url) == []
    assert logs.add(file).rejected == 1
    assert logs.totals() == keys_of(10)


def test_a_file_of_nothing_else_is_read_to_its_end(logs: Logs) -> None:
    """Rows of rejects, more than one statement has."""
    report = logs.add(logs.write("a.log", (b"z" * 300 + b"\n") * 1201))
    assert (report.state, report.rejected) == ("done", 1201)
    assert logs.query("SELECT COUNT(*) FROM backfill_reject") == [(1201,)]


def test_without_being_asked_a_run_ends_before_it_keeps_too_many(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong format, or a directory of something else, must not fill the database."""
    monkeypatch.setattr(options, "MOST_REJECTS", 3)
    out = logs.directory / "out"
    assert logs.add(logs.write("few.log", 3 * b"few\n"), rejects=out).state == "done"
    assert logs.add(logs.write("a.log", 4 * BAD), rejects=out).state == "stopped"
    assert logs.query("SELECT COUNT(*) FROM backfill_reject") == [(3,)]
