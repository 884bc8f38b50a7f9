"""docs/clients.md is played from top to bottom."""

import os
import shlex
import subprocess
from pathlib import Path

from tests.cli.command import call
from tests.clients.programs import program, redis_cli
from tests.docs.console import Step, comparable, parts
from tests.support.processes import PROJECT, child_environment
from tests.web.serving import Web

PAGE = Path("docs/clients.md")
SERVER = "http://127.0.0.1:8321"


def test_the_page_goes_as_it_says(web: Web, tmp_path: Path) -> None:
    for name in ("curl", "node", "redis-cli"):
        program(name)
    variables = {
        **redis_cli(web.options.redis_url)[1],
        "COUNTERSINK_REDIS_URL": web.options.redis_url,
        "COUNTERSINK_MYSQL_URL": web.options.mysql_url,
        "PATH": path_with_redis_cli(web.options.redis_url, tmp_path / "bin"),
    }
    (tmp_path / "docs").symlink_to(PROJECT / "docs")
    played = 0
    for part in parts(PAGE):
        if not isinstance(part, Step):
            name, content = part
            (tmp_path / name).write_text(content, "utf-8")
            continue
        assert web.producer.flush(20)
        status, printed = run(part.command.replace(SERVER, web.url), tmp_path, variables)
        where = f"{PAGE}:{part.line}: {part.command}\n{printed}"
        assert comparable(printed) == comparable(part.shown), where
        assert status == part.status, where
        played += 1
    assert played > 12


def run(command: str, directory: Path, variables: dict[str, str]) -> tuple[int, str]:
    """How a command ends, and what it prints on stdout."""
    words = shlex.split(command)
    if words[0] == "countersink":
        ended = call(*words[1:], **variables)  # in this process: that is quicker
        return ended.status, ended.out
    done = subprocess.run(
        ["bash", "-c", command],
        env={**child_environment(), **variables},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")


def path_with_redis_cli(redis_url: str, directory: Path) -> str:
    """A PATH on which there is a `redis-cli` that finds the tests' server."""
    directory.mkdir()
    (name, *where), _ = redis_cli(redis_url)
    wrapper = directory / name
    wrapper.write_text(f'#!/bin/sh\nexec {program(name)} {shlex.join(where)} "$@"\n')
    wrapper.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"
