"""The documentation of the command line says what the command line does."""

import re
from pathlib import Path

import pytest

from countersink.cli.errors import Exit
from countersink.logs.formats.line_format import COMBINED
from tests.cli.command import call
from tests.cli.reference import PAGES, commands, page, settings_of
from tests.support.processes import PROJECT

CLI = PAGES["cli"].read_text("utf-8")
CONFIGURATION = PAGES["configuration"].read_text("utf-8")

NOT_SETTINGS = {
    "COUNTERSINK_",
    "COUNTERSINK_X",  # stands for any
    "COUNTERSINK_PRODUCER_",
}


@pytest.mark.parametrize("name", list(PAGES))
def test_the_generated_part_is_up_to_date(name: str) -> None:
    assert PAGES[name].read_text("utf-8") == page(name), "run python -m tests.cli.reference"


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_command_is_documented(path: tuple[str, ...]) -> None:
    assert f"\n### {' '.join(path)}\n" in CLI


def test_the_generated_help_is_what_the_command_prints() -> None:
    shown = call("totals", "--help").out
    assert "\n".join(line.rstrip() for line in shown.splitlines()) in CLI


def test_every_setting_is_documented_with_its_variable() -> None:
    for path, command in commands():
        for option in settings_of(path, command):
            words = [word.upper().replace("-", "_") for word in (*path[1:], str(option.name))]
            assert f"`COUNTERSINK_{'_'.join(words)}`" in CONFIGURATION
            assert option.help


def test_every_variable_that_the_code_reads_is_documented() -> None:
    read: set[str] = set()
    for root in ("producers", "worker", "schedules"):
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


@pytest.mark.parametrize("path", list(PAGES.values()), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        page_text = (path.parent / file).read_text("utf-8") if file else text
        headings = {
            re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", page_text, re.MULTILINE)
        }
        assert not anchor or anchor in headings
