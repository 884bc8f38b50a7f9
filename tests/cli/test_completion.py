"""Completion by a real shell, and the names that errors suggest."""

import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from countersink.database.connection import connect
from countersink.runtime.texts import did_you_mean
from tests.cli.command import NOWHERE, Servers, call, environment, one_sentence
from tests.logs.tailing import write
from tests.support.processes import COUNTERSINK

BASH = """\
eval "$(countersink completion bash)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_countersink_completion countersink
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def named(module_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Servers:
    """Servers with names of each kind."""
    log = tmp_path_factory.mktemp("log") / "access.log"
    write(log, "/home")
    for line in (
        "counter set page_views",
        "counter set downloads",
        "sequence next invoices",
        "sequence next $(date)",
        "sequence next \x1b[31mred",
        "key create grafana --scope read",
        f"backfill {log} --counter downloads",
    ):
        assert module_servers.call(*line.split()).status == 0
    module_servers.execute(
        "INSERT INTO job (name, cron, time_zone) VALUES ('compact', 'off', 'UTC')",
        "INSERT INTO tracked_table (counter, table_schema, table_name, by_columns, app_slots,"
        " triggers, created) VALUES ('paid', 'shop', 'orders', '[]', 1, 't', UTC_TIMESTAMP())",
    )
    return module_servers


def completed(tmp_path: Path, line: str, **variables: str) -> list[str]:
    """The completions of the last word of a line by bash, which has nothing to say on stderr."""
    program = tmp_path / "countersink"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COUNTERSINK)} "$@"\n')
    program.chmod(0o700)
    variables = environment(**variables)
    variables["PATH"] = f"{tmp_path}:{variables['PATH']}"
    words = ["countersink", *line.split(" ")]
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", *words],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("counter show ", ["downloads", "page_views"]),
        ("totals pa", ["page_views"]),
        ("increment --amount 2 pa", ["page_views"]),
        ("compact --counter=d", ["downloads"]),
        ("sequence peek ", ["invoices"]),
        ("schedule pause ", ["compact"]),
        ("key revoke gr", ["grafana"]),
        ("untrack ", ["paid", "shop.orders"]),
        ("counter sh", ["show"]),
        ("completion f", ["fish"]),
    ],
)
def test_a_real_bash_completes_commands_and_names(
    tmp_path: Path, named: Servers, line: str, names: list[str]
) -> None:
    assert completed(tmp_path, line, **named.variables()) == names


def test_the_numbers_of_backfills_are_completed(tmp_path: Path, named: Servers) -> None:
    # Not always 1: a transaction that was tried again has taken a number more.
    with connect(named.mysql_url) as session:
        ((number,),) = session.query("SELECT id FROM backfill_run")
    assert completed(tmp_path, "backfills show ", **named.variables()) == [str(number)]


def test_no_server_and_no_answer_complete_nothing_and_say_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mysql://u@127.0.0.1:{silent.getsockname()[1]}/x"
        for variables in ({}, NOWHERE.variables(), {"COUNTERSINK_MYSQL_URL": url}):
            assert completed(tmp_path, "totals p", **variables) == []


def test_a_settings_file_names_the_database_and_a_wrong_one_is_no_noise(
    tmp_path: Path, named: Servers
) -> None:
    toml = tmp_path / "countersink.toml"
    toml.write_text(f"mysql_url = '{named.mysql_url}'\n")
    assert completed(tmp_path, f"--config {toml} increment pa") == ["page_views"]
    toml.write_text("[increment]\nnonsense = 1\n")
    assert completed(tmp_path, f"--config {toml} increment pa") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_there_are_scripts_for_other_shells(shell: str) -> None:
    done = call("completion", shell)
    assert done.status == 0
    assert f"_COUNTERSINK_COMPLETE={shell}_complete" in done.out


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("totals page_veiws", "page_views"),
        ("counter show donwloads", "downloads"),
        ("counter delete donwloads --yes", "downloads"),
        ("sequence delete invocies --yes", "invoices"),
        ("sequence delete [31mred --yes", "\\x1b[31mred"),
        ("schedule run compcat", "compact"),
        ("runs --job compcat", "compact"),
        ("key revoke grafanna", "grafana"),
        ("untrack shop.ordres", "shop.orders"),
        ("verify shop.ordres", "shop.orders"),
        ("totls page_views", "'totals'"),
        ("counter shw page_views", "'show'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_most_similar_one(
    named: Servers, line: str, meant: str
) -> None:
    said = one_sentence(named.call(*line.split()))
    assert f"id you mean {meant}?" in said


def test_of_very_many_names_only_the_neighbours_are_compared() -> None:
    names = [f"page.{number}" for number in range(30_000)]
    assert did_you_mean("page.2999x", names) == "did you mean page.2999?"


def test_a_name_that_resembles_none_gets_the_advice(named: Servers) -> None:
    said = one_sentence(named.call("totals", "xyz"), 1)
    assert said.endswith("countersink totals --all lists what was counted")
