"""Which files the names on a command line mean."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from countersink.backfill.content import Input, expand, open_content

NOBODY = 65_534


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with some files, and the current one."""
    for name in ("b.log", "a.log", "a.log.2.gz", ".hidden.log", "sub/c.log", "sub/deep/d.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "e.log").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*sources: str) -> list[str]:
    """What the sources are, if all is well."""
    found, failed = expand(sources)
    assert failed == []
    return [one.name for one in found]


def refused(*sources: str) -> dict[str, str]:
    """What is said of sources of which none can be."""
    found, failed = expand(sources)
    assert found == []
    assert {one.outcome for one in failed} == {"failed"}
    return {one.source: one.detail for one in failed}


def test_a_pattern_gives_its_files_in_order(folder: Path) -> None:
    assert names("*.log") == ["a.log", "b.log"]
    assert names("a.log*") == ["a.log", "a.log.2.gz"]
    assert names("**/[cd].log") == ["sub/c.log", "sub/deep/d.log"]
    assert names("s?b") == ["sub/c.log", "sub/deep/d.log"]
    assert names("**") == ["a.log", "a.log.2.gz", "b.log", "sub/c.log", "sub/deep/d.log"]
    assert names(".hid*.log") == [".hidden.log"]


def test_a_directory_gives_what_is_in_it_and_below_but_for_what_is_hidden(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    (folder / "loop").symlink_to(folder)
    (folder / "gone").symlink_to("nowhere")
    expected = ["a.log", "a.log.2.gz", "b.log", "sub/c.log", "sub/deep/d.log"]
    assert names(".") == ["./" + one for one in expected]
    assert names(str(folder)) == [str(folder / one) for one in expected]


def test_the_same_file_is_there_once(folder: Path) -> None:
    (folder / "link.log").symlink_to("a.log")
    os.link(folder / "a.log", folder / "z.log")
    assert names("link.log", "./a.log", "a.log", "*.log") == ["link.log", "b.log"]


def test_standard_input_is_there_once_and_has_no_size_nor_has_a_fifo(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    found, failed = expand(["-", "a.log", "-", "fifo"])
    assert failed == []
    assert found == [
        Input("-", None, None),
        Input("a.log", folder / "a.log", 5),
        Input("fifo", folder / "fifo", None),
    ]


def test_a_name_that_is_there_is_no_pattern(folder: Path) -> None:
    (folder / "a[1].log").touch()
    (folder / "a1.log").touch()
    assert names("a[1].log") == ["a[1].log"]
    assert names("a[2-3,1].log") == ["a1.log"]


def test_what_is_not_there_or_is_no_file_is_told(folder: Path) -> None:
    (folder / "gone").symlink_to("nowhere")
    (folder / "round").symlink_to("round")
    (folder / "empty").mkdir()
    (folder / "empty" / ".x").touch()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    nothing = "No such file or directory"
    no_file = "it is a device or a socket, not a file; use - for standard input"
    told = {
        **dict.fromkeys(["x.log", "", "gone"], nothing),
        "a.log/x": "Not a directory",
        "x*": "no file matches the pattern",
        "empty": "the directory has no files (hidden files are left out)",
        **dict.fromkeys(["socket", "/dev/null"], no_file),
        "x" * 300: "File name too long",
    }
    others = refused(*told, "round", "a/" * 3_000)
    assert others | told == others
    assert "symbolic links" in others["round"]
    assert (folder / "socket").exists()


def test_names_that_are_no_text_can_be_printed_and_opened(folder: Path) -> None:
    raw = os.fsencode(folder) + b"/caf\xe9.log"
    with open(raw, "wb") as file:
        file.write(b"hello\n")
    (found,) = expand([os.fsdecode(raw)])[0]
    assert found.name == f"{folder}/caf\\xe9.log"
    found.name.encode()
    with open_content(found) as content:
        assert content.read(10) == b"hello\n"


def test_no_permission_is_told() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "open.log").touch()
        (folder / "closed").mkdir(0o700)
        (folder / "closed").chmod(0o000)
        if user == 0:  # which may read everything
            os.seteuid(NOBODY)
        try:
            found, failed = expand([str(folder), str(folder / "closed" / "c.log")])
        finally:
            os.seteuid(user)
        (folder / "closed").chmod(0o700)
    assert [one.name for one in found] == [str(folder / "open.log")]
    assert [one.source for one in failed] == [
        str(folder / name) for name in ("closed", "closed/c.log")
    ]
    assert {one.detail for one in failed} == {"Permission denied"}
