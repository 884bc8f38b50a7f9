"""docs/backfill.md is played from top to bottom: its story, and an example of each format."""

import re
from pathlib import Path

import pytest

from countersink.backfill.options import INPUT_FORMATS
from countersink.logs.formats.detection import detect
from countersink.store.connection import connect
from countersink.store.verify import open_session, verify
from tests.cli.command import Servers
from tests.docs.console import Step, check, parts
from tests.support.processes import PROJECT

PAGE = Path("docs/backfill.md")


def test_the_page_goes_as_it_says(servers: Servers, tmp_path: Path) -> None:
    with connect(servers.mysql_url) as session:
        session.execute("ALTER TABLE backfill_run AUTO_INCREMENT = 1")  # runs are named by number
    directory = tmp_path / "shop"
    directory.mkdir()
    assert check(PAGE, directory, servers.variables()) > 20
    with open_session(servers.mysql_url) as session:
        assert verify(session).differences == []


@pytest.mark.parametrize("name", [name for name in INPUT_FORMATS if name != "auto"])
def test_every_format_has_an_example(name: str) -> None:
    found = list(parts(PAGE))
    files = dict(part for part in found if not isinstance(part, Step))
    commands = [part.command for part in found if isinstance(part, Step)]
    backfills = [command for command in commands if "countersink backfill " in command]
    told = set()
    for command in backfills:
        for word in command.split():
            if word in files and "-format" not in command:
                detected = detect(files[word].encode().splitlines())
                told.add(None if detected is None else detected.input_format)
    assert name in told or any(f"--input-format {name} " in f"{each} " for each in backfills)


def test_every_option_is_told_of() -> None:
    text = (PROJECT / PAGE).read_text("utf-8")
    reference = (PROJECT / "docs/cli.md").read_text("utf-8")
    help_text = reference.partition("### countersink backfill\n")[2].partition("\n### ")[0]
    options = set(re.findall(r"^  (--[a-z-]+)", help_text, re.MULTILINE))
    shared = {"--redis-url", "--mysql-url"}
    assert len(options) > 20
    assert [option for option in sorted(options - shared) if option not in text] == []
