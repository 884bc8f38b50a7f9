"""The file of rejected lines never destroys another, and nothing waits for it."""

import json
import os
from pathlib import Path

import pytest

from countersink.backfill.errors import WrongOption
from tests.backfill.helpers import add, log, query, totals, write

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


def test_a_source_is_not_overwritten_whatever_it_is_called(mysql_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    source = write(folder / "a.log", log("/") + BAD)
    soft, hard = tmp_path / "soft", tmp_path / "hard"
    soft.symlink_to(source)
    os.link(source, hard)
    for rejects in source, soft, hard, folder / ".." / "logs" / "a.log":
        for given in source, soft, folder, f"{folder}/*.log":
            assert "one of the sources" in refused(mysql_url, given, rejects=rejects)
    assert source.read_bytes() == log("/") + BAD


def test_an_empty_source_and_one_of_rejected_lines_are_sources_too(
    mysql_url: str, tmp_path: Path
) -> None:
    empty = write(tmp_path / "empty", b"")
    ours = write(tmp_path / "ours", b'{"source": "", "line": 1, "reason": "", "text": ""}\n')
    for source in empty, ours:
        assert "one of the sources" in refused(mysql_url, source, rejects=source)


def test_a_file_that_is_not_ours_is_not_overwritten(mysql_url: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.log", log("/") + BAD)
    others = (MINE, b"\n", b"{}\n", b'{"line": 1}\n', b"[" * 5000, b'{"source": "a", ', b"\xff\n")
    for content in others:
        file = write(tmp_path / "file", content)
        assert "name another file" in refused(mysql_url, source, rejects=file)
        assert file.read_bytes() == content


def test_one_that_is_empty_or_ours_is_overwritten_whatever_its_name(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = write(Path("backfill-7-rejects.ndjson"), b"")
    add(mysql_url, write(tmp_path / "a.log", BAD * 3), rejects=out)
    assert lines_of(out) == [1, 2, 3]
    add(mysql_url, write(tmp_path / "b.log", log("/") + BAD), rejects=out)
    assert lines_of(out) == [2]


def test_what_is_no_file_is_refused_at_once(mysql_url: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.log", log("/") + BAD)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for rejects in pipe, tmp_path:
        assert "no regular file" in refused(mysql_url, source, rejects=rejects)
    add(mysql_url, source, rejects=Path("/dev/null"))


def test_a_name_that_is_made_up_is_one_that_is_free(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = add(mysql_url, write(tmp_path / "a.log", log("/")), rejects=None)
    assert first.run is not None
    run = first.run + 1
    taken = write(tmp_path / f"backfill-{run}-rejects.ndjson", MINE)
    (tmp_path / f"backfill-{run}-rejects-2.ndjson").symlink_to("nowhere")
    report = add(mysql_url, write(tmp_path / "b.log", BAD), rejects=None)
    assert report.run == run
    assert taken.read_bytes() == MINE
    assert not (tmp_path / "nowhere").exists()
    assert lines_of(tmp_path / f"backfill-{run}-rejects-3.ndjson") == [1]
    assert f"the rejected lines are in backfill-{run}-rejects-3.ndjson" in report.notices


def test_rejected_lines_in_a_directory_are_no_source(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "a.log", log("/a") + BAD)
    for _ in range(2):
        report = add(mysql_url, tmp_path, rejects=None)
        assert [one.source for one in report.sources] == [str(source)]
    assert sum(totals(mysql_url).values()) == 1
