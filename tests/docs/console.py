"""Pages that can be played: their files are written and their commands run, in a directory.

A file is a fenced block after a line that is its name alone: `` `orders.csv`: ``. Commands are the
lines with ``$ `` of ``console`` blocks; a comment ``# status 3`` behind one says how it ends (0, if
nothing is said). What follows is what it prints, on stderr and then on stdout.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import Servers, call
from tests.clients.programs import program
from tests.support.processes import PROJECT, child_environment
from tests.web.serving import serving

DIRECTORY = "/srv/shop"
"""What the pages call the directory they are played in."""
SERVER = "http://127.0.0.1:8321"
"""Where the pages say that it listens."""
WIDTH = "120"
_FENCE = re.compile(
    r"(?:^`(?P<file>[\w.-]+)`:\n\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_REDIRECTIONS = {">": ("1", "w"), ">>": ("1", "a"), "2>": ("2", "w")}
"""Operator → stream, and how its file is opened."""
_TIME = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page.

    Attributes:
        command: as it stands there, without its comment.
        status: how the page says that it ends.
        shown: what the page says that it prints.
        line: where it stands in the page, from 1.
        endless: it goes on until it is ended: the comment says to leave it running.
    """

    command: str
    status: int
    shown: str
    line: int
    endless: bool = False


def blocks(page: Path | str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    text = (PROJECT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def parts(page: Path) -> Iterator[tuple[str, str] | Step]:
    """The files (name, content) and the commands of a page, from top to bottom."""
    text = (PROJECT / page).read_text("utf-8")
    for fence in _FENCE.finditer(text):
        if fence["file"]:
            yield fence["file"], fence["text"]
        elif fence["language"] == "console":
            line = text.count("\n", 0, fence.start("text")) + 1
            yield from _steps(fence["text"], line)


def _steps(block: str, line: int) -> Iterator[Step]:
    for piece in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
        if piece.startswith("$ "):
            first, _, shown = piece.partition("\n")
            command, _, comment = first[2:].partition("  #")
            status = re.search(r"status (\d+)", comment)
            yield Step(
                command.strip(),
                int(status[1]) if status else 0,
                shown.rstrip("\n"),
                line,
                "leave it running" in comment,
            )
        line += piece.count("\n")


def check(
    page: Path,
    directory: Path,
    variables: Mapping[str, str],
    then: Callable[[], object] = lambda: None,
) -> int:
    """Play a page, each command of which has to print and to end as it says; how many there are.

    Args:
        page: from the root of the repository.
        directory: where its commands run.
        variables: their environment.
        then: called after each.
    """
    command = directory.parent / "bin" / "countersink"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "from countersink.cli.entry import main\n"
        "sys.exit(main())\n"
    )
    command.chmod(0o755)
    search = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    played = 0
    for part in parts(page):
        if not isinstance(part, Step):
            name, content = part
            (directory / name).write_text(content, "utf-8")
            continue
        with contextlib.chdir(directory):
            status, printed = _run(part.command, {**variables, "PATH": search, "COLUMNS": WIDTH})
        printed = printed.replace(str(directory), DIRECTORY)
        where = f"{page}:{part.line}: {part.command}\n{printed}"
        assert comparable(printed) == comparable(part.shown), where
        assert status == part.status, where
        played += 1
        then()
    return played


def check_served(text: str, servers: Servers, directory: Path, *, without_keys: bool = True) -> int:
    """Play the text of a page while the server that it speaks of runs."""
    program("curl")
    shop, page = directory / "shop", directory / "page.md"
    shop.mkdir()
    with serving(servers.redis_url, servers.mysql_url, without_keys=without_keys) as web:
        page.write_text(text.replace(SERVER, web.url), "utf-8")
        return check(page, shop, servers.variables(), web.look_again)


def _run(command: str, variables: Mapping[str, str]) -> tuple[int, str]:
    words = shlex.split(command)
    if words[0] != "countersink":
        return _by_bash(command, variables)
    if "|" in words:
        ended = call(*words[1 : words.index("|")], **variables)
        return _by_bash(command.partition(" | ")[2], variables, ended.out)
    files: list[tuple[str, str]] = []
    while words[-2] in _REDIRECTIONS:
        words, (operator, name) = words[:-2], words[-2:]
        files.append((operator, name))
    ended = call(*words[1:], **variables)  # in this process: there are many
    texts = {"2": ended.err, "1": ended.out}
    for operator, name in files:
        stream, mode = _REDIRECTIONS[operator]
        with open(name, mode, newline="") as file:
            file.write(texts.pop(stream))
    return ended.status, "".join(texts.values())


def _by_bash(command: str, variables: Mapping[str, str], said: str = "") -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-c", command],
        env={**child_environment(), **variables},
        input=said.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode()


def comparable(text: str) -> list[str]:
    """Lines without what differs each time: times, and spaces at their ends."""
    return [_TIME.sub("TIME", line).rstrip() for line in text.splitlines()]
