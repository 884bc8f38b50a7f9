"""Programs that are not ours, run as their users run them."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import pytest

from tests.support.processes import PROJECT, child_environment

SECONDS = 300


def program(name: str) -> str:
    """Where it is; the test is skipped if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def output(
    arguments: Sequence[str],
    *,
    said: str = "",
    environment: Mapping[str, str] | None = None,
    status: int = 0,
) -> str:
    """What it prints on stdout, when it reads `said` on stdin and ends as it should."""
    done = subprocess.run(
        [program(arguments[0]), *arguments[1:]],
        input=said,
        env={**child_environment(), **(environment or {})},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def redis_cli(url: str) -> tuple[list[str], dict[str, str]]:
    """The `redis-cli` that talks to the server at `url`, and the environment with its password."""
    at = urlsplit(url)
    where = ["redis-cli", "-e", "-h", str(at.hostname), "-p", str(at.port)]
    return where, {"REDISCLI_AUTH": str(at.password)}
