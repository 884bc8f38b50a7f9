"""Running the command: as a subprocess, or, where many runs would take long, in this process."""

import io
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countersink.cli.app import run
from countersink.database.connection import connect
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


def countersink(*arguments: str, **variables: str) -> Result:
    """Run ``countersink ARGUMENTS`` with these environment variables, and wait for its end."""
    done = subprocess.run(
        [*COUNTERSINK, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=PROJECT,
        env=environment(**variables),
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
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, newline="") for _ in range(2))
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
        texts.append(raw.getvalue().decode(encoding, "surrogateescape"))
    return Result(status, *texts)


@contextmanager
def redirected(source: int | Path) -> Iterator[None]:
    """Let descriptor 0, which commands of this process read, be this file or descriptor."""
    kept = os.dup(0)
    with open(source, "rb") as file:
        os.dup2(file.fileno(), 0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


@contextmanager
def piped(content: bytes) -> Iterator[None]:
    """Let it be a pipe that this comes through."""

    def feed() -> None:
        with suppress(BrokenPipeError), open(writer, "wb") as file:
            file.write(content)

    reader, writer = os.pipe()
    feeder = threading.Thread(target=feed)
    with redirected(reader):
        feeder.start()
        yield
    feeder.join()


def answered(answer: str, *arguments: str, **variables: str) -> Result:
    """Run ``countersink ARGUMENTS`` in this process, at a terminal where somebody types a line."""
    ours, theirs = pty.openpty()
    kept = sys.stdin
    try:
        os.write(ours, f"{answer}\n".encode())
        with open(theirs, encoding="utf-8") as sys.stdin:
            return call(*arguments, **variables)
    finally:
        sys.stdin = kept
        os.close(ours)


@dataclass(frozen=True, slots=True)
class Servers:
    """A command's two servers."""

    redis_url: str
    mysql_url: str

    def run(self, *arguments: str, **variables: str) -> Result:
        """Run ``countersink ARGUMENTS`` on them, as a subprocess."""
        return countersink(*arguments, **self.variables(**variables))

    def call(self, *arguments: str, **variables: str) -> Result:
        """Run ``countersink ARGUMENTS`` on them, in this process."""
        return call(*arguments, **self.variables(**variables))

    def json(self, *arguments: str, **variables: str) -> Any:
        """The document of ``countersink ARGUMENTS``, which succeeds."""
        done = self.call(*arguments, "--format", "json", **variables)
        assert done.status == 0, done.out + done.err
        return done.json

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """The rows of ``countersink totals ARGUMENTS``, which has nothing to say on stderr."""
        done = self.call("totals", *arguments, "--format", "json")
        assert (done.status, done.err) == (0, "")
        found: list[dict[str, Any]] = done.json["rows"]
        return found

    def execute(self, *statements: str) -> None:
        """Do this in the database."""
        with connect(self.mysql_url) as session:
            for statement in statements:
                session.execute(statement)

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


NOWHERE = Servers("redis://127.0.0.1:1/0", "mysql://nobody@127.0.0.1:1/x")
"""Servers that are not there: what is refused on them is refused before they are asked."""


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
