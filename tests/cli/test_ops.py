"""``countersink ops``: which files it writes, and which it leaves."""

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.command import Result, call
from tests.support.processes import PROJECT


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory in which the command has written all files."""
    target = tmp_path / "deploy" / "countersink"
    assert write(target).status == 0
    return target


def write(target: Path, *options: str) -> Result:
    return call("ops", str(target), *options)


def states(done: Result) -> dict[str, str]:
    """The state of each file that the table shows."""
    table = [line.split() for line in done.out.splitlines()[:-1]]
    return {name: state for state, name in table[1:]}


def checksums_are_right(target: Path) -> bool:
    check = ["sha256sum", "--quiet", "--check", "countersink.sha256"]
    return subprocess.run(check, cwd=target, capture_output=True, check=False).returncode == 0


def test_it_writes_every_file_of_the_folder_and_compose_with_the_version(directory: Path) -> None:
    sources = PROJECT / "ops"
    expected = {str(file.relative_to(sources)) for file in sources.rglob("*") if file.is_file()}
    assert {"docker-compose.yml", ".env.example", "redis/users.acl"} <= expected
    found = {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}
    assert found == expected | {"countersink.sha256"}
    texts = {name: (directory / name).read_text() for name in expected}
    assert not any("0.dev0" in text for text in texts.values())
    release = version("countersink")
    assert texts["docker-compose.yml"].count(f"image: countersink:{release}\n") == 1
    assert f"newTag: {release}\n" in texts["kubernetes/example/kustomization.yaml"]
    assert f"countersink[web]=={release}'" in texts["Dockerfile"]
    assert checksums_are_right(directory)


def test_it_lists_what_it_wrote_and_does_nothing_the_second_time(tmp_path: Path) -> None:
    first = write(tmp_path)
    assert set(states(first).values()) == {"written"}
    assert states(first)["systemd/countersink-worker@.service"] == "written"
    lines = first.out.splitlines()
    files = f"{len(lines) - 2} files of countersink {version('countersink')}."
    assert lines[-1] == f"{tmp_path} has {files}"
    again = write(tmp_path)
    assert (again.status, again.out, again.err) == (0, lines[-1] + "\n", "")


def test_a_changed_file_is_kept_unless_it_is_forced(directory: Path) -> None:
    changed = directory / "systemd/worker.env"
    original = changed.read_text()
    changed.write_text("MINE=1\n")
    (directory / "redis/users.acl").unlink()
    for _ in range(2):  # the first time does not make it the command's own
        done = write(directory)
        assert done.status == 3
        assert states(done)["systemd/worker.env"] == "kept"
        assert "warning: 1 file differs and was kept: --force overwrites" in done.err
        assert changed.read_text() == "MINE=1\n"
    assert (directory / "redis/users.acl").exists()
    assert not checksums_are_right(directory)
    done = write(directory, "--force")
    assert (done.status, states(done)) == (0, {"systemd/worker.env": "overwritten"})
    assert changed.read_text() == original
    assert checksums_are_right(directory)


def test_a_file_of_an_earlier_version_is_updated(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = directory / "docker-compose.yml"
    mine.write_text(mine.read_text() + "# mine\n")
    private = directory / "kubernetes/base/web.yaml"
    private.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(private, 1234, 5678)
    before = private.stat()
    monkeypatch.setattr("countersink.cli.commands.operate.ops.version", lambda name: "7.8.9")
    done = write(directory)
    found = states(done)
    assert found.pop("docker-compose.yml") == "kept"
    assert set(found.values()) == {"updated"}
    for what in ("st_mode", "st_uid", "st_gid"):
        assert getattr(private.stat(), what) == getattr(before, what)
    assert "image: countersink:7.8.9\n" in private.read_text()


def test_a_file_that_was_there_before_is_kept(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    done = write(tmp_path)
    assert (done.status, states(done)["Dockerfile"]) == (3, "kept")


def test_a_wrong_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = write(file)
    assert done.status == 2
    assert "is a file. See countersink ops --help" in done.err
    (tmp_path / "redis").touch()
    done = write(tmp_path)
    assert done.status == 1
    assert done.err.startswith("countersink: ")


def test_it_writes_through_no_link_and_replaces_no_file_of_others(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "deploy"
    outside.mkdir()
    target.mkdir()
    (outside / "own").write_text("mine")
    (target / "kubernetes").symlink_to(outside)
    (target / "Dockerfile").symlink_to("/nonexistent")
    (target / "docker-compose.yml.part").symlink_to(outside / "own")
    done = write(target, "--force")
    assert done.status == 3
    assert states(done)["Dockerfile"] == "kept"
    assert [file.name for file in outside.iterdir()] == ["own"]
    assert (outside / "own").read_text() == "mine"
    assert not (target / "docker-compose.yml").is_symlink()
