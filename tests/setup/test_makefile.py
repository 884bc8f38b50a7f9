"""The Makefile and the set-up scripts: what the documents promise is there."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.soak import clusters

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*(ROOT / "scripts").glob("*.sh"), ROOT / ".ci/run"])
PROMISED = [
    "install",
    "demo",
    "test",
    "test-mysql",
    "test-clusters",
    "mutations",
    "bench",
    "soak",
    "campaign",
    "up",
    "docs",
    "clean",
    "release",
]


@cache
def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory", *arguments],
        env={"PATH": os.environ["PATH"]},  # without the variables of the make that runs the tests
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("target", PROMISED)
def test_every_promised_target_is_there_and_explained(target: str) -> None:
    assert make("-n", target)
    assert re.search(rf"^  make {target} ", make("help"), re.MULTILINE)


def test_options_reach_the_programs() -> None:
    assert "-m demo --log 'some.log'" in make("-n", "demo", "LOG=some.log")
    assert "countersink up --data 'some'" in make("-n", "up", "DATA=some")
    assert "release.sh '1.2.3'" in make("-n", "release", "VERSION=1.2.3")
    soak = make("-n", "soak", "SECONDS=1800", "SERVER=mysql", "SEED=7")
    assert "-m tests.soak --seconds 1800 --server mysql --seed 7" in soak
    act = make("-n", "soak", "SECONDS=600", "SEED=7", "ACT=tracked_for_a_minute")
    assert "-m tests.soak --act tracked_for_a_minute --seconds 600 --server mariadb --seed 7" in act
    campaign = make("-n", "campaign", "ACT=bulk", "SERVER=mysql", "REDIS=valkey", "SEED=7")
    assert "--seconds 300 --act bulk --server mysql --redis valkey --seed 7" in campaign
    assert "--server" not in make("-n", "campaign", "SECONDS=60")
    assert "-m tests.mutations --jobs 1 'guard*'" in make(
        "-n", "mutations", "ARGS=--jobs 1 'guard*'"
    )
    for name in clusters.ACTS:
        act = make("-n", "soak", "SECONDS=600", "SEED=7", f"ACT={name}")
        assert f"-m tests.soak.clusters {name} --seconds 600 --seed 7" in act
        assert "test-long" not in act


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_valid_shell_and_stop_at_errors(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)
    text = script.read_text()
    if script.name == "lib.sh":
        return  # sourced
    assert os.access(script, os.X_OK)
    assert "set -eu" in text or script.name in {"checks.sh", "test.sh"}  # these run all their parts


@pytest.mark.parametrize(
    ("version", "changelog", "message"),
    [
        ("", "## Unreleased", "'' is no version of three numbers: make release VERSION=1.2.3"),
        ("1.2", "## Unreleased", "'1.2' is no version of three numbers"),
        ("1.2.3; id", "## Unreleased", "is no version of three numbers"),
        ("1.2.3", "## 1.2.2", "CHANGELOG.md has no heading '## Unreleased'"),
        ("1.2.2", "## Unreleased", "v1.2.2 is tagged already: choose the next version"),
        ("1.2.3", None, "the checkout has changes: commit them first"),
        ("1.2.3", "## Unreleased", "git cannot make the tag v1.2.3: see above"),
    ],
)
def test_a_release_that_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, version: str, changelog: str | None, message: str
) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/release.sh", tmp_path / "scripts")
    (tmp_path / "CHANGELOG.md").write_text(changelog or "## Unreleased")

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=me", "-c", "user.email=me@example.com")
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("tag", "v1.2.2")
    git("config", "tag.gpgSign", "true")
    git("config", "gpg.program", "false")
    if changelog is None:
        (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\nmore")
    before = git("status", "--porcelain")
    done = subprocess.run(
        [tmp_path / "scripts/release.sh", version], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    *_, line = done.stderr.splitlines()
    assert line.startswith("release: ")
    assert message in line
    assert git("status", "--porcelain") == before
    assert git("tag") == "v1.2.2\n"


def without_apt(directory: Path, script: str, *more: str, **environment: str) -> tuple[int, str]:
    """Status, and the one line on stderr, of a script that finds few tools, and none to install
    with."""
    for tool in ("sh", "dirname", *more):
        found = shutil.which(tool)
        assert found is not None
        (directory / tool).symlink_to(found)
    # `have` looks into the system's sbin directories, too: a copy that does not
    library = (ROOT / "scripts/lib.sh").read_text()
    scripts = directory / "scripts"
    scripts.mkdir()
    (scripts / "lib.sh").write_text(library.replace(":/usr/local/sbin:/usr/sbin:/sbin", ""))
    shutil.copy(ROOT / "scripts" / script, scripts)
    done = subprocess.run(
        ["sh", str(scripts / script)],
        env={"PATH": str(directory), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    [line] = done.stderr.splitlines()
    return done.returncode, line


def test_a_machine_without_apt_is_told_what_to_install(tmp_path: Path) -> None:
    status, line = without_apt(tmp_path, "servers.sh", "id", "mktemp", "rm", "env")
    assert status == 1
    assert "redis-server mariadb-server-core mariadb-client-core" in line
    assert "install: apt-get install" in line


def test_tests_on_clusters_are_left_to_their_own_target() -> None:
    """They carry the marker `clusters`; a short round on a cluster carries none."""
    assert "-m clusters" in make("-n", "test-clusters")
    for target in ("test-mariadb", "test-mysql"):
        assert "-m 'not clusters'" in make("-n", target)
    assert "-m '(long or random) and not clusters'" in make("-n", "test-long")
