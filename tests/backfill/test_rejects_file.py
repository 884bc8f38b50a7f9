"""The file of rejected lines never destroys another, and loses no line silently."""

import json
import os
import resource
import stat
from pathlib import Path

import pytest

from countersink.backfill.errors import WrongOption
from tests.backfill.helpers import Logs, add, day, details, log, outcomes, query, write

BAD = b"nonsense\n"
MINE = b"what somebody has written\n"


def lines_of(path: Path) -> list[int]:
    """The numbers of the lines that it names."""
    return [json.loads(line)["line"] for line in path.read_text().splitlines()]


def refused(mysql_url: str, *sources: Path | str, rejects: Path) -> str:
    """Why it is; nothing was read, neither for true nor in a dry run."""
    said = set()
    for dry_run in False, True:
        with pytest.raises(WrongOption) as caught:
            add(mysql_url, *sources, rejects=rejects, dry_run=dry_run)
        said.add(str(caught.value))
    assert query(mysql_url, "SELECT COUNT(*) FROM backfill_run") == [(0,)]
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
            assert "one of the sources" in refused(logs.url, given, rejects=rejects)
    assert source.read_bytes() == log("/") + BAD


def test_an_empty_source_and_one_of_rejected_lines_are_sources_too(logs: Logs) -> None:
    empty = logs.write("empty", b"")
    ours = logs.write("ours", b'{"source": "", "line": 1, "reason": "", "text": ""}\n')
    for source in empty, ours:
        assert "one of the sources" in refused(logs.url, source, rejects=source)


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
        assert "name another file" in refused(logs.url, source, rejects=file)
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


def test_behind_a_line_that_was_cut_off_a_new_one_is_begun(logs: Logs) -> None:
    out = logs.directory / "out"
    logs.add(logs.write("a.log", log("/") + BAD), rejects=out)
    with out.open("ab") as file:
        file.write(b'{"source": "a", "li')
    logs.add(logs.write("b.log", log("/b") + BAD), rejects=out)
    first, torn, last = out.read_text().splitlines()
    assert [json.loads(one)["line"] for one in (first, last)] == [2, 2]
    assert torn == '{"source": "a", "li'


def test_what_is_no_file_is_refused_at_once(logs: Logs) -> None:
    source = logs.write("a.log", log("/") + BAD)
    pipe = logs.directory / "pipe"
    os.mkfifo(pipe)
    nowhere = source / "no", logs.directory / "no" / "such" / "directory"
    for rejects in pipe, logs.directory, *nowhere:
        assert "cannot be written" in refused(logs.url, source, rejects=rejects)
    logs.add(source, rejects=Path("/dev/null"))


def test_lines_that_cannot_be_written_are_told_and_written_once_there_is_room(logs: Logs) -> None:
    out = logs.directory / "out"
    sources = [logs.write(name, log(f"/{name}") + BAD) for name in "abc"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def stop() -> bool:
        """There is room from the second source on."""
        counted = logs.query("SELECT COUNT(*) FROM backfill_chunk") == [(2,)]
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
