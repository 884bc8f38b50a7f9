"""docs/export.md, and of docs/http.md the parts "Reading" and "Notes on days", are played."""

import re
from pathlib import Path

import pytest

from tests.clients.programs import program
from tests.docs.console import check
from tests.support.processes import PROJECT
from tests.web.serving import serving

URL = "http://127.0.0.1:8321"
"""Where the pages say that it listens."""


def reading() -> str:
    """The parts of docs/http.md."""
    text = (PROJECT / "docs/http.md").read_text("utf-8")
    found = re.search(r"^## Reading\n.*?(?=^## Links\n)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def exporting() -> str:
    """docs/export.md."""
    return (PROJECT / "docs/export.md").read_text("utf-8")


@pytest.mark.parametrize("text", [reading(), exporting()], ids=["http.md", "export.md"])
def test_the_page_goes_as_it_says(
    text: str, redis_url: str, mysql_url: str, tmp_path: Path
) -> None:
    program("curl")
    directory = tmp_path / "shop"
    directory.mkdir()
    page = tmp_path / "page.md"
    variables = {"COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": mysql_url}
    with serving(redis_url, mysql_url) as web:
        page.write_text(text.replace(URL, web.url), "utf-8")
        played = check(page, directory, variables)
    assert played >= 8
