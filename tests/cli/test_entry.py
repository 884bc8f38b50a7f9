"""Starting the command: help, version, a missing extra, and how it ends."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from countersink.cli.app import GROUPS, app
from countersink.cli.errors import scrub
from tests.cli.command import Servers, call, environment
from tests.logs.tailing import write
from tests.support.processes import COUNTERSINK

COMMANDS = {name: text for _, commands in GROUPS.values() for name, text in commands.items()}
"""With the line of each."""


def test_help_lists_the_commands_under_what_they_are_for() -> None:
    assert call("--version").out.startswith("countersink ")
    listed = call("--help").out.partition("  -h, --help")[2].partition("\nExamples:\n")[0]
    found: dict[str, dict[str, str]] = {}
    for heading, text in re.findall(r"^(\w.*):\n((?:  .*\n)+)", listed, re.MULTILINE):
        found[heading] = dict(re.findall(r"^  (\S+) +(\S+)", text, re.MULTILINE))
    assert found == {
        heading: {name: text.split()[0] for name, text in commands.items()}
        for heading, (_, commands) in GROUPS.items()
    }
    assert list(found) == ["Run", "Count", "Read", "Check and repair", "Look after"]
    assert "totals" in found["Read"]


def python(script: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program."""
    command = [sys.executable, *options, "-c", script]
    given = {"env": environment(), "capture_output": True, "text": True, "check": False, **more}
    return subprocess.run(command, **given)


def test_help_imports_no_command() -> None:
    script = (
        "import sys\nfrom countersink.cli.app import run\nrun(['--help'])\n"
        "heavy = {'redis', 'pymysql', 'msgspec', 'rich', 'countersink.store'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = python(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_list_of_commands_says_what_each_ones_help_says(name: str) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    assert command.name == name
    assert (
        (command.help or "")
        .split("\n\n")[0]
        .replace("\n", " ")
        .startswith(COMMANDS[name].removesuffix("."))
    ), command.help
    shown = call(name, "-h")
    assert shown.status == 0
    assert shown.out.startswith(f"Usage: countersink {name}")


def test_without_the_server_extra_an_import_of_the_store_says_what_to_install() -> None:
    done = python("import sys; sys.modules['pymysql'] = None; from countersink.store import Store")
    assert done.stderr.endswith(
        "ModuleNotFoundError: countersink.store needs PyMySQL: pip install 'countersink[server]'\n"
    )


def test_a_reader_that_goes_away_ends_it_quietly(servers: Servers) -> None:
    for number in range(3):
        assert servers.call("increment", "c", f"/{number}").status == 0
    servers.apply()
    read, write = os.pipe()
    os.close(read)  # as `| true` does
    with subprocess.Popen(
        [*COUNTERSINK, "totals", "c", "--by", "key"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=environment(**servers.variables()),
    ) as process:
        os.close(write)
        assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    "closed", ["<&- >&- 2>&-", pytest.param(">&-", marks=pytest.mark.long("one of the three"))]
)
def test_what_is_closed_is_missed_by_nobody(servers: Servers, log: Path, closed: str) -> None:
    """Least of all does a connection come to stand where standard output was."""
    write(log, "/a")

    def run(*arguments: str) -> int:
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *COUNTERSINK, *arguments],
            capture_output=True,
            env=environment(**servers.variables()),
            check=False,
        )
        for word in (b"Traceback", b"failed", b"unexpected"):
            assert word not in done.stderr, (arguments, done)
        return done.returncode

    assert run("backfill", str(log), "--counter", "c") == 0
    assert len(servers.rows("c", "--by", "key")) == 1
    assert run("totals", "c") == 0
    if "<" in closed:
        assert run("backfill", "-", "--counter", "c") == 1


def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COUNTERSINK, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_ctrl_c_ends_it_quietly_with_130(servers: Servers) -> None:
    with subprocess.Popen(
        [*COUNTERSINK, "info", "--watch", "--every", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(COUNTERSINK_REDIS_URL=servers.redis_url),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"backlog")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == b""


@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "127.0.0.1:1,[::1]:1"])
def test_debug_shows_the_traceback_without_the_password(hosts: str) -> None:
    url = f"mysql://root:pass%23word@{hosts}/x"
    quiet = call("migrate", "--mysql-url", url)
    loud = call("migrate", "--mysql-url", url, COUNTERSINK_DEBUG="1")
    assert quiet.status == loud.status == 1
    assert "Traceback" in loud.err
    assert loud.err.splitlines()[-1] == quiet.err.strip()
    for secret in ("pass%23word", "pass#word"):
        assert secret not in loud.err + quiet.err


@pytest.mark.parametrize("hosts", ["db1", "[::1]:1", "db1,[::1]:1,db2", "[::1]:1,db2"])
def test_the_password_of_a_url_is_in_no_message(hosts: str) -> None:
    urls = f"mysql://user:in%23visible@{hosts}/x", "redis://:un%23seen/0"  # where a port stands
    assert scrub(f"mysql://user:other@{hosts}/x", urls) == f"mysql://user:***@{hosts}/x"
    assert scrub("said in#visible, in%23visible", urls) == "said ***, ***"
    assert scrub("no port: un%23seen, un#seen", urls) == "no port: ***, ***"


@pytest.mark.parametrize("arguments", [[], ["sequence"]])
def test_without_a_command_the_help_is_shown_as_it_is(arguments: list[str]) -> None:
    shown = call(*arguments)
    assert (shown.status, shown.out) == (2, "")
    assert shown.err == call(*arguments, "--help").out
