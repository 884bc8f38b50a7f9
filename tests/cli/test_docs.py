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
from tests.cli.reference import (
    CONFIGURATION,
    WIDTH,
    command_pages,
    commands,
    configuration_page,
    help_of,
)
from tests.support.processes import PROJECT

COMMAND_LINE = (PROJECT / "docs/command-line.md").read_text("utf-8")
SETTINGS = CONFIGURATION.read_text("utf-8")

NOT_SETTINGS = {
    "COUNTERSINK_",
    "COUNTERSINK_X",  # stands for any
    "COUNTERSINK_PRODUCER_",
    "COUNTERSINK_COMPLETE",  # set by the shell itself, with a _ before it
}


def test_the_table_of_settings_is_up_to_date() -> None:
    assert configuration_page() == SETTINGS, "run python -m tests.cli.reference"


def test_every_command_has_a_page_with_its_help() -> None:
    pages = command_pages()
    for path, _ in commands():
        description, text = pages["-".join(path[:2])]
        assert description
        assert f"# {' '.join(path)}\n\n```text\nUsage: {' '.join(path)} " in text


@pytest.mark.parametrize("words", [("totals",), ("counter", "set")], ids=" ".join)
def test_the_help_on_a_page_is_what_the_command_prints(words: tuple[str, ...]) -> None:
    _, page = command_pages()[f"countersink-{words[0]}"]
    shown = call(*words, "--help", COLUMNS=str(WIDTH + 2)).out
    assert "\n".join(line.rstrip() for line in shown.splitlines()) in page


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
    missing = [name for name in sorted(names) if f"`{name}`" not in SETTINGS]
    assert not missing


def test_the_exit_statuses_are_documented() -> None:
    statuses = set(Exit)
    rows = re.findall(r"^\| ([\d, ]+) \|", COMMAND_LINE, re.MULTILINE)
    documented = {int(number) for row in rows for number in row.split(",")}
    assert documented == statuses


def test_every_field_of_the_combined_format_is_documented() -> None:
    for kind in COMBINED:
        assert f"`{kind}`" in COMMAND_LINE
