"""docs/how-to/missed-day.md and docs/backfill.md are played from top to bottom."""

import re
from pathlib import Path

import pytest

from countersink.database.connection import connect
from countersink.store.verify import open_session, verify
from tests.cli.command import Servers
from tests.cli.reference import command_pages
from tests.docs.console import Step, check, parts
from tests.support.processes import PROJECT

PAGE = Path("docs/backfill.md")
MISSED_DAY = Path("docs/how-to/missed-day.md")


@pytest.mark.parametrize("page", [MISSED_DAY, PAGE], ids=["missed-day", "backfill"])
def test_the_page_goes_as_it_says(page: Path, servers: Servers, tmp_path: Path) -> None:
    with connect(servers.mysql_url) as session:
        session.execute("ALTER TABLE backfill_run AUTO_INCREMENT = 1")  # runs are named by number
    directory = tmp_path / "shop"
    directory.mkdir()
    name, log = next(part for part in parts(MISSED_DAY) if not isinstance(part, Step))
    (directory / name).write_text(log)  # both pages are about this one
    assert check(page, directory, servers.variables()) >= 7
    with open_session(servers.mysql_url) as session:
        assert verify(session).differences == []


def test_every_option_is_told_of() -> None:
    text = "".join((PROJECT / page).read_text("utf-8") for page in (MISSED_DAY, PAGE))
    _, help_text = command_pages()["countersink-backfill"]
    options = set(re.findall(r"^  (--[a-z-]+)", help_text, re.MULTILINE))
    shared = {"--redis-url", "--mysql-url"}
    assert len(options) > 20
    assert [option for option in sorted(options - shared) if option not in text] == []
