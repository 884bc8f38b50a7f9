"""docs/backfill.md is played from top to bottom: its story, and an example of each format."""

import re
from pathlib import Path

from countersink.database.connection import connect
from countersink.store.verify import open_session, verify
from tests.cli.command import Servers
from tests.docs.console import check
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


def test_every_option_is_told_of() -> None:
    text = (PROJECT / PAGE).read_text("utf-8")
    reference = (PROJECT / "docs/cli.md").read_text("utf-8")
    help_text = reference.partition("### countersink backfill\n")[2].partition("\n### ")[0]
    options = set(re.findall(r"^  (--[a-z-]+)", help_text, re.MULTILINE))
    shared = {"--redis-url", "--mysql-url"}
    assert len(options) > 20
    assert [option for option in sorted(options - shared) if option not in text] == []
