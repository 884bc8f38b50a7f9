"""The site of the documents and the manual pages, if the packages that build them are there."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.cli.reference import command_pages
from tests.clients.programs import output
from tests.support.processes import PROJECT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built as `make docs` does: a warning, such as of a broken link, is an error."""
    pytest.importorskip("sphinx_copybutton")
    directory = tmp_path_factory.mktemp("docs")
    for builder in ("html", "man"):
        command = [sys.executable, "-m", "sphinx", "-M", builder, str(PROJECT), str(directory)]
        output([*command, "-c", str(PROJECT / "docs"), "-q", "-W", "--keep-going"])
    return directory


def test_the_site_has_search_navigation_and_a_dark_mode(built: Path) -> None:
    site = built / "html"
    assert "docs/index.html" in (site / "index.html").read_text()
    page = (site / "docs/index.html").read_text()
    for needed in ('action="../search.html"', "theme-toggle", 'href="tutorial/django.html"'):
        assert needed in page
    assert "--batch-entries" in (site / "build/commands/countersink-worker.html").read_text()
    assert 'id="countersink.producers.Producer.increment"' in (site / "docs/api.html").read_text()
    assert "copybutton.js" in page
    index = (site / "searchindex.js").read_text()
    assert re.search(r'"count\(\*\)":\[\[\d+,"[^"]*",true\]\]', index)


def test_a_link_to_a_file_that_is_no_page_leads_to_the_repository(built: Path) -> None:
    page = (built / "html/docs/how-to/two-servers.html").read_text()
    assert "/blob/main/ops/systemd" in page


def test_every_command_has_a_manual_page(built: Path) -> None:
    names = {f"{name}.1" for name in command_pages()}
    assert set(os.listdir(built / "man")) == names
    text = (built / "man/countersink-totals.1").read_text()
    assert "countersink-totals \\- Show totals" in text
    assert "\\-\\-include\\-pending" in text
