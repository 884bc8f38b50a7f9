"""Lines that cannot be counted: written to a file, which never destroys another one and loses no
line silently; the first of them kept; and too many of them."""

import json
import os
import resource
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from countersink.backfill import options
from countersink.backfill.errors import WrongOption
from tests.backfill.helpers import (
    Logs,
    day,
    details,
    log,
    long_log,
    outcomes,
    rejects_in,
    write,
)
from tests.support.proxies import Deed, MySQLProxy, Phase

BAD = b"nonsense\n"


def lines_of(path: Path) -> list[int]:
    """Numbers of the lines that a file of rejected lines names."""
    return [number for _, number in rejects_in(path)]


def test_rejected_lines_are_kept_and_written_with_number_reason_and_text(logs: Logs) -> None:
    first = logs.write("a.log", log("/") + b'\xff\x00 "no\\log"\n' + log("/b"))
    second = logs.write("b.log", BAD + log("/c") + b"x" * 5000 + b"\n")
    out = logs.directory / "out.ndjson"
    report = logs.add(first, second, rejects=out)
    assert (report.state, report.counted, report.rejected) == ("done", 3, 3)
    assert any(str(out) in notice for notice in report.notices)
    found = [json.loads(line) for line in out.open()]
    assert rejects_in(out) == [(str(first), 2), (str(second), 1), (str(second), 3)]
    assert [one["text"] for one in found] == ['\\xff\x00 "no\\log"', "nonsense", "x" * 1000]
    assert all(one["reason"] for one in found)
    assert [asdict(one) for one in logs.rejected()] == found
    assert logs.totals() == day("/", "/b", "/c")


def test_the_first_ones_are_kept_and_told_of(logs: Logs) -> None:
    logs.small_chunks(4)
    report = logs.add(logs.write("a.log", log("/") + BAD * 30), rejects=None)
    assert [one.line for one in logs.rejected()] == [*range(2, 12)]
    (why,) = report.notices
    assert why.startswith("30 lines were rejected, the first 10 of them: ")
    assert "(10, such as line 2 of " in why


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("phase", list(Phase))
def test_whether_or_not_a_commit_was_done_each_line_is_written_once(
    logs: Logs, proxy: MySQLProxy, phase: Phase
) -> None:
    logs.small_chunks(20)
    parts = [long_log(19, first=50 * number) + BAD for number in range(8)]
    source = logs.write("a.log", b"".join(parts))
    rule = proxy.when("commit_other", phase, Deed.CUT, skip=3, times=3)
    out = logs.directory / "out.ndjson"
    report = logs.through(proxy).add(source, rejects=out)
    assert rule.acted == 3
    assert (report.state, report.rejected) == ("done", 8)
    assert lines_of(out) == [*range(20, 161, 20)]
    assert [one.line for one in logs.rejected()] == lines_of(out)


def test_a_run_that_breaks_down_writes_those_of_what_it_has_counted(logs: Logs) -> None:
    logs.small_chunks(10)
    source = logs.write("a.log", b"".join(long_log(9, first=9 * n) + BAD for n in range(5)))
    out = logs.directory / "out.ndjson"

    def stop() -> bool:
        if logs.rows("backfill_chunk") == 2:
            raise RuntimeError
        return False

    with pytest.raises(RuntimeError):
        logs.add(source, rejects=out, stop=stop)
    assert lines_of(out) == [10, 20]
    assert logs.add(source, rejects=out).rejected == 3
    assert lines_of(out) == [10, 20, 30, 40, 50]


def test_too_many_rejects_end_the_run_before_their_chunk_is_counted(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs.directory)
    logs.small_chunks()
    content = long_log(100)
    content += b"".join(BAD + long_log(49, first=number) for number in (200, 300, 400, 500))
    files = [logs.write("a.log", content), logs.write("b.log", log("/b"))]
    out = logs.directory / "out.ndjson"
    relative = [file.name for file in files]
    report = logs.add(*relative, max_rejects=3, rejects=out)
    assert (report.state, report.lines, report.rejected) == ("stopped", 200, 4)
    assert outcomes(report) == ["counted"]
    assert any("the limit of rejected lines (3) is exceeded" in notice for notice in report.notices)
    assert rejects_in(out) == [(str(files[0]), line) for line in (101, 151, 201, 251)]
    assert [(one.source, one.line) for one in logs.rejected()] == rejects_in(out)[:2]
    assert logs.query("SELECT state, lines_read, rejected FROM backfill_run") == [
        ("stopped", 200, 2)
    ]
    report = logs.add(*files, max_rejects=3, rejects=out)
    assert (report.state, report.lines, report.known_lines) == ("done", 101, 200)
    assert lines_of(out) == [101, 151, 201, 251, 201, 251]
    assert sum(logs.totals().values()) == 100 + 4 * 49 + 1


def test_exactly_as_many_rejects_as_may_be_are_fine_and_none_may_be_asked(logs: Logs) -> None:
    many = logs.write("many.log", BAD * 3 + log("/"))
    assert logs.add(many, max_rejects=3, counter="many").state == "done"
    assert logs.totals("many") == day("/")
    file = logs.write("a.log", log("/") + BAD)
    report = logs.add(file, max_rejects=0)
    assert (report.state, report.counted, report.rejected) == ("stopped", 0, 1)
    assert logs.totals() == {}
    (bad,) = logs.add(logs.write("bad.log", BAD * 3), max_rejects=0).sources
    assert (bad.outcome, bad.rejected) == ("rejected", 3)
    dry = logs.add(file, max_rejects=0, dry_run=True)
    assert (dry.state, dry.rejected) == ("stopped", 1)


def test_without_being_asked_a_run_ends_before_it_keeps_too_many(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong format, or a directory of something else."""
    monkeypatch.setattr(options, "MOST_REJECTS", 3)
    out = logs.directory / "out"
    assert logs.add(logs.write("few.log", 3 * b"few\n"), rejects=out).state == "done"
    assert logs.add(logs.write("a.log", 4 * BAD), rejects=out).state == "stopped"
    assert logs.query("SELECT SUM(rejected) FROM backfill_chunk") == [(3,)]


# -- the file ------------------------------------------------------------------------------------

MINE = b"what somebody has written\n"


def refused(logs: Logs, *sources: Path | str, rejects: Path) -> str:
    """Why it is; nothing was read, neither for true nor in a dry run."""
    said = set()
    for dry_run in False, True:
        with pytest.raises(WrongOption) as caught:
            logs.add(*sources, rejects=rejects, dry_run=dry_run)
        said.add(str(caught.value))
    assert logs.left() == {}
    assert len(said) == 1
    return said.pop()


def test_a_source_is_not_overwritten_whatever_it_is_called(logs: Logs) -> None:
    folder = logs.directory / "logs"
    folder.mkdir()
    source = write(folder / "a.log", log("/") + BAD)
    soft, hard = logs.directory / "soft", logs.directory / "hard"
    soft.symlink_to(source)
    os.link(source, hard)
    for rejects in source, soft, hard, folder / ".." / "logs" / "a.log":
        for given in source, soft, folder, f"{folder}/*.log":
            assert "one of the sources" in refused(logs, given, rejects=rejects)
    assert source.read_bytes() == log("/") + BAD
    # Nor is one that is empty or of rejected lines, to which a run would else append.
    for content in b"", b'{"source": "", "line": 1, "reason": "", "text": ""}\n':
        own = logs.write("own", content)
        assert "one of the sources" in refused(logs, own, rejects=own)


def test_a_file_that_is_not_ours_is_not_overwritten(logs: Logs) -> None:
    source = logs.write("a.log", log("/") + BAD)
    others = (
        MINE,
        b"\n",
        b"{}\n",
        b'{"line": 1}\n',
        b"[" * 5000,
        b'{"source"',
        b'{"source": "shop"}\n',
        b"\xff\n",
    )
    for content in others:
        file = logs.write("file", content)
        assert "give another file" in refused(logs, source, rejects=file)
        assert file.read_bytes() == content


def test_one_that_is_empty_or_ours_is_appended_to_whatever_its_name(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs.directory)
    out = write(Path("backfill-7-rejects.ndjson"), b"")
    logs.add(logs.write("a.log", BAD * 3), rejects=out)
    assert lines_of(out) == [1, 2, 3]
    logs.add(logs.write("b.log", log("/") + BAD), rejects=out)
    assert lines_of(out) == [1, 2, 3, 2]


def test_lines_that_cannot_be_written_are_told_and_written_once_there_is_room(logs: Logs) -> None:
    out = logs.directory / "out"
    sources = [logs.write(name, log(f"/{name}") + BAD) for name in "abc"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def stop() -> bool:
        """There is room from the second source on."""
        counted = logs.rows("backfill_chunk") == 2
        resource.setrlimit(resource.RLIMIT_FSIZE, limits if counted else (50, limits[1]))
        return False

    try:
        report = logs.add(*sources, rejects=out, stop=stop)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (report.state, outcomes(report)) == ("failed", ["failed", "failed", "counted"])
    assert f"line 2, cannot be written to {out}: File too large" in details(report)
    assert logs.totals() == day("/a", "/b", "/c")
    assert lines_of(out) == [2, 2, 2]


def test_nobody_else_reads_it(logs: Logs) -> None:
    made = logs.directory / "made"
    report = logs.add(logs.write("a.log", BAD), rejects=made)
    assert lines_of(made) == [1]
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert f"the rejected lines are in {made}" in report.notices


def test_after_a_line_that_a_killed_run_did_not_end_the_next_one_begins_anew(logs: Logs) -> None:
    out = logs.directory / "out"
    logs.add(logs.write("a.log", BAD * 2), rejects=out)
    whole, torn = out.read_bytes(), b'{"source": "a.log", "li'
    out.write_bytes(whole + torn)
    logs.add(logs.write("b.log", log("/") + BAD), rejects=out)
    kept, left, new = out.read_bytes().partition(torn + b"\n")
    assert (kept, left) == (whole, torn + b"\n")
    assert json.loads(new)["line"] == 2
