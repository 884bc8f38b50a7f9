"""The tutorials are played from top to bottom: their files, their commands, what these print.

A command with the comment ``# leave it running`` is started beside the others, and again after
files of the page have changed, as the reloaders of its frameworks do. The servers and the worker
that ``countersink up`` starts for the reader are those of the tests.
"""

import os
import re
import shlex
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from countersink.cli.private_server import free_port
from countersink.store import Store
from tests.cli.command import Servers
from tests.clients.programs import program
from tests.clients.test_page import run
from tests.docs.console import Step, comparable, parts
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

PAGES: Final = ("docs/tutorial/django.md", "docs/tutorial/fastapi.md")
PROVIDED: Final = ("pip install", "countersink up", ". countersink-data/", "export ")
"""What the tests have done already."""
SITE: Final = "127.0.0.1:8000"
DAY: Final = re.compile(r"\b20\d\d-\d\d-\d\d\b(?!T)")


class Tutorial:
    """The directory, the environment and the site of a reader.

    Args:
        servers: what ``countersink up`` would have started.
        directory: an empty one.
        children: takes the site.
    """

    def __init__(self, servers: Servers, directory: Path, children: Children) -> None:
        self._directory = directory
        self._children = children
        self._port = free_port()
        self._command: list[str] = []
        self._site: Child | None = None
        self._variables = {
            **servers.variables(),
            "DJANGO_SETTINGS_MODULE": "settings",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def write(self, name: str, text: str) -> None:
        """Write a file, which ends the site: it begins anew with the next command."""
        (self._directory / name).write_text(text, "utf-8")
        if self._site is not None:
            self._site.terminate()
            self._site.wait()
            self._site = None

    def leave_running(self, command: str) -> None:
        """Take this as the command that starts the site."""
        words = shlex.split(command.replace("8000", str(self._port)).replace(" --reload", ""))
        self._command = [*words, *(["--noreload"] if "runserver" in words else [])]

    def run(self, command: str) -> tuple[int, str]:
        """Run a command; how it ends, and what it prints on stdout."""
        if self._command and self._site is None:
            self._site = self._children.start(
                self._command, environment=self._variables, directory=self._directory
            )
            eventually(self._listens, 60.0, message=self._site.output)
        command = command.replace(SITE, f"127.0.0.1:{self._port}")
        return run(command, self._directory, self._variables)

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0


@pytest.mark.parametrize("page", PAGES)
def test_the_tutorial_goes_as_it_says(page: str, servers: Servers, tmp_path: Path) -> None:
    program("curl")
    views = steps = 0
    with Children() as children, Store(servers.mysql_url) as store:
        store.counters.set_defaults(resolution="hour")  # as `up` does
        children.worker(servers.redis_url, servers.mysql_url)
        tutorial = Tutorial(servers, tmp_path, children)
        for part in parts(Path(page)):
            if not isinstance(part, Step):
                tutorial.write(*part)
            elif part.command.startswith(PROVIDED):
                continue
            elif part.endless:
                tutorial.leave_running(part.command)
            else:
                eventually(partial(_views_are, store, views))  # a reader is slower than a worker
                status, printed = tutorial.run(part.command)
                where = f"{page}:{part.line}: {part.command}\n{printed}"
                assert _without_days(printed) == _without_days(part.shown), where
                assert status == part.status, where
                views += "/articles/" in part.command
                steps += 1
    assert steps > 10


def _views_are(store: Store, views: int) -> bool:
    return store.totals.counters().get("page_views", 0) == views


def _without_days(text: str) -> list[str]:
    return comparable(DAY.sub("DAY", text))
