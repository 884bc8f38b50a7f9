"""The parts "Running it" and "Security" of docs/http.md say what is so."""

import re
from pathlib import Path

from countersink.store.api_keys import SCOPES
from countersink.web.http.headers import MAX_HEADERS
from countersink.web.options import WebOptions
from countersink.web.read_pool import MAX_PENDING_READS, MAX_READS
from countersink.web.server.process import STOP_WITHIN_S
from countersink.web.server.protocol import MAX_HEAD_BYTES
from tests.clients.programs import program
from tests.docs.console import SERVER, comparable, play
from tests.support.processes import PROJECT
from tests.web.serving import serving

PAGE = (PROJECT / "docs/http.md").read_text("utf-8")
ENDLESS = "$ countersink web\ncountersink web: listening at http://127.0.0.1:8321\n"


def part(title: str) -> str:
    """A part of the page."""
    found = re.search(rf"^## {title}\n.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def test_it_goes_as_the_page_says(redis_url: str, mysql_url: str, tmp_path: Path) -> None:
    program("curl")
    directory = tmp_path / "shop"
    directory.mkdir()
    page = tmp_path / "page.md"
    variables = {"COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": mysql_url}
    played = 0
    text = part("Running it") + part("Security")
    assert ENDLESS in text  # tests/cli/test_web.py plays this one
    with serving(redis_url, mysql_url) as web:
        page.write_text(text.replace(ENDLESS, "").replace(SERVER, web.url), "utf-8")
        for step, status, printed in play(page, directory, variables):
            assert comparable(printed) == comparable(step.shown), step
            assert status == step.status, step
            played += 1
            web.look_again()
    assert played >= 6


def test_bounds_are_the_defaults() -> None:
    options = WebOptions(redis_url="", mysql_url="")
    assert (options.max_body_bytes, MAX_HEAD_BYTES) == (1 << 20, 64 << 10)
    table = part("Running it")
    for said in (
        f"{MAX_HEADERS} headers",
        f"as a whole: {options.request_timeout_s:g} s",
        f"at once: {options.max_connections:,}",
        f"wait for its turn: {options.read_timeout_s:g} s",
        f"reads at once: {options.threads}, and beside them {options.threads // 4} of all",
        f"where {MAX_READS} may be under way",
        f"{MAX_PENDING_READS} of one key may wait",
        f"of a key: {options.rate_per_key:,.0f} a second",
        f"of an address without one: {options.rate_per_address:,.0f}",
        f"an address: {options.failures_per_minute} a minute",
        f"({STOP_WITHIN_S} s at most)",
    ):
        assert said in table, said


def test_every_scope_is_explained() -> None:
    assert re.findall(r"^\| `(\w+)` \|", part("Security"), re.MULTILINE) == list(SCOPES)
