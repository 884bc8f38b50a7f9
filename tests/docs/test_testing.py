"""The tests that docs/testing.md shows pass as they stand, with the rights that it names."""

import re
from pathlib import Path

from countersink.database.connection import connect
from countersink.database.url import Settings
from tests.docs.console import parts
from tests.support.plugin import run_pytest
from tests.support.processes import PROJECT

PAGE = Path("docs/testing.md")


def test_the_tests_of_the_page_pass(mysql_url: str, tmp_path: Path) -> None:
    grant = re.search(r"``(GRANT .*?)``", (PROJECT / PAGE).read_text("utf-8"))
    assert grant
    for name, content in (part for part in parts(PAGE) if isinstance(part, tuple)):
        (tmp_path / name).write_text(content, "utf-8")
    server = Settings.parse(mysql_url)
    with connect(mysql_url) as root:
        try:
            root.execute("CREATE USER tester@'%' IDENTIFIED BY 'geheim'")
            root.execute(f"{grant[1]} TO tester@'%'")
            url = f"mysql://tester:geheim@{server.where}"
            assert "2 passed" in run_pytest(tmp_path, f"-ocountersink_mysql_url={url}")
        finally:
            root.execute("DROP USER tester@'%'")
