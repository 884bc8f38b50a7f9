"""The documentation of the command line says what the command line does."""

import re
import shlex
from pathlib import Path

import click
import pytest

from countersink.cli.app import app
from countersink.cli.errors import Exit
from countersink.logs.formats.line_format import COMBINED
from tests.cli.command import call
from tests.cli.reference import PAGES, commands, help_of, page
from tests.support.processes import PROJECT

CLI = PAGES["cli"].read_text("utf-8")
CONFIGURATION = PAGES["configuration"].read_text("utf-8")

NOT_SETTINGS = {
    "COUNTERSINK_",
    "COUNTERSINK_X",  # stands for any
    "COUNTERSINK_PRODUCER_",
    "COUNTERSINK_COMPLETE",  # set by the shell itself, with a _ before it
}


@pytest.mark.parametrize("name", list(PAGES))
def test_the_generated_part_is_up_to_date(name: str) -> None:
    assert PAGES[name].read_text("utf-8") == page(name), "run python -m tests.cli.reference"


def test_the_generated_help_is_what_the_command_prints() -> None:
    shown = call("totals", "--help").out
    assert "\n".join(line.rstrip() for line in shown.splitlines()) in CLI


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in commands()]
)
def test_the_help_of_each_command_has_two_examples_that_parse(
    path: tuple[str, ...], command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spool").mkdir()
    help = help_of(path, command)
    examples = help.partition("\nExamples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) == len(set(examples)) == 2
    for example in examples:
        assert len(example) <= 60
        words = shlex.split(example.partition(">")[0])
        assert isinstance(command, click.Group) or tuple(words[: len(path)]) == path
        parse(app, words)


def parse(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """Parse a command and its arguments as the command line does, and run nothing."""
    with command.make_context(words[0], words[1:], parent, obj=set()) as context:
        if isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            _, found, _ = command.resolve_command(context, rest)
            assert found is not None
            parse(found, rest, context)


def test_every_variable_that_the_code_reads_is_documented() -> None:
    read: set[str] = set()
    for root in ("producers", "worker", "schedules", "interfaces"):
        for source in (PROJECT / root).rglob("*.py"):
            read.update(re.findall(r"COUNTERSINK_[A-Z_]*", source.read_text("utf-8")))
    names = {name.removesuffix("_FILE") for name in read} - NOT_SETTINGS
    missing = [name for name in sorted(names) if f"`{name}`" not in CONFIGURATION]
    assert not missing


def test_the_exit_statuses_are_documented() -> None:
    statuses = set(Exit)
    rows = re.findall(r"^\| ([\d, ]+) \|", CLI, re.MULTILINE)
    documented = {int(number) for row in rows for number in row.split(",")}
    assert documented == statuses


def test_every_field_of_the_combined_format_is_documented() -> None:
    for kind in COMBINED:
        assert f"`{kind}`" in CLI
