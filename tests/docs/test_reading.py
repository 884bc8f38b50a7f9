"""docs/export.md, and of docs/http.md the parts "Reading" and "Notes on days", are played."""

import re
from pathlib import Path

import pytest

from tests.cli.command import Servers
from tests.docs.console import check_served
from tests.support.processes import PROJECT


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
def test_the_page_goes_as_it_says(text: str, servers: Servers, tmp_path: Path) -> None:
    assert check_served(text, servers, tmp_path) >= 8
