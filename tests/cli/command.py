"""Running the command: as a subprocess, or, where many runs would take long, in this process."""

import io
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countersink.cli.app import run
from tests.support.processes import COUNTERSINK, PROJECT, Child, child_environment

Start = Callable[..., Child]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of ours, and with ``variables``."""
    return {**child_environment(), "COLUMNS": "80", **variables}


def countersink(
    *arguments: str,
    stdin: bytes = b"",
    directory: Path = PROJECT,
    variables: Mapping[str, str] | None = None,
    **more: str,
) -> Result:
    """Run ``countersink ARGUMENTS`` with these environment variables, and wait for its end."""
    done = subprocess.run(
        [*COUNTERSINK, *arguments],
        input=stdin,
        capture_output=True,
        cwd=directory,
        env=environment(**(variables or {}), **more),
        timeout=90,
        check=False,
    )
    return Result(
        done.returncode,
        done.stdout.decode("utf-8", "surrogateescape"),
        done.stderr.decode("utf-8", "surrogateescape"),
    )


def call(*arguments: str, **variables: str) -> Result:
    """Run ``countersink ARGUMENTS`` in this process: the same code from the arguments on."""
    kept = dict(os.environ)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    os.environ.clear()
    os.environ.update(environment(**{"XDG_STATE_HOME": kept["XDG_STATE_HOME"], **variables}))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status = run(list(arguments))
    finally:
        os.environ.clear()
        os.environ.update(kept)
    texts = []
    for stream in (out, err):
        stream.flush()
        raw = stream.buffer
        assert isinstance(raw, io.BytesIO)
        texts.append(raw.getvalue().decode("utf-8", "surrogateescape"))
    return Result(status, *texts)


@dataclass(frozen=True, slots=True)
class Servers:
    """A command's two servers."""

    redis_url: str
    mysql_url: str

    def run(self, *arguments: str, stdin: bytes = b"", **variables: str) -> Result:
        """Run ``countersink ARGUMENTS`` on them, as a subprocess."""
        return countersink(*arguments, stdin=stdin, variables=self.variables(**variables))

    def call(self, *arguments: str, **variables: str) -> Result:
        """Run ``countersink ARGUMENTS`` on them, in this process."""
        return call(*arguments, **self.variables(**variables))

    def variables(self, **more: str) -> dict[str, str]:
        """The environment that names them."""
        urls = {
            "COUNTERSINK_REDIS_URL": self.redis_url,
            "COUNTERSINK_MYSQL_URL": self.mysql_url,
        }
        return {**urls, **more}

    def apply(self) -> None:
        """Let a worker apply all that is in the queue."""
        done = self.call("worker", "--drain")
        assert done.status == 0, done.err


def one_sentence(result: Result, status: int | None = None) -> str:
    """What the command said on stderr: one line, no traceback, nothing on stdout. It ended with
    this status."""
    assert status in (None, result.status)
    assert result.out == ""
    assert "Traceback" not in result.err
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("countersink: ")
    return lines[0]
