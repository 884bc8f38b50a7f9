"""The parts "Sending", "Running it" and "Security" of docs/http.md say what is so."""

import re
from pathlib import Path

import pytest

from countersink.store.api_keys import SCOPES
from countersink.web.endpoints import hits, increments, sequences
from countersink.web.http import Route
from countersink.web.http.answers import MAX_HEADERS
from countersink.web.options import WebOptions
from countersink.web.read_pool import MAX_PENDING_READS, MAX_READS
from countersink.web.server import STOP_WITHIN_S
from countersink.web.server.protocol import MAX_HEAD_BYTES
from tests.cli.command import Servers
from tests.docs.console import check_served
from tests.support.processes import PROJECT

PAGE = (PROJECT / "docs/http.md").read_text("utf-8")
ENDLESS = "$ countersink web\ncountersink web: listening at http://127.0.0.1:8321\n"


def part(title: str) -> str:
    """A part of the page."""
    found = re.search(rf"^## {title}\n.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def test_it_goes_as_the_page_says(servers: Servers, tmp_path: Path) -> None:
    text = part("Running it") + part("Security")
    assert ENDLESS in text  # tests/cli/test_web.py plays this one
    text = text.replace(ENDLESS, "")
    assert check_served(text, servers, tmp_path, without_keys=False) >= 5


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
        f"{MAX_PENDING_READS} of one key may be under way or wait",
        f"of a key: {options.rate_per_key:,.0f} a second",
        f"of an address without one: {options.rate_per_address:,.0f}",
        f"an address: {options.failures_per_minute} a minute",
        f"({STOP_WITHIN_S} s at most)",
    ):
        assert said in table, said


def test_every_scope_is_explained() -> None:
    assert re.findall(r"^\| `(\w+)` \|", part("Security"), re.MULTILINE) == list(SCOPES)


SENDING = part("Sending")
ROUTES = {route.name: route for route in (*increments.ROUTES, *sequences.ROUTES)}


def statuses(part: str) -> set[str]:
    """The statuses that a table of a part of the page explains."""
    return set(re.findall(r"^\| `(\d{3})` \|", part, re.MULTILINE))


def test_every_answer_to_increments_is_explained() -> None:
    part = SENDING.partition("\n### ")[0]
    assert statuses(part) == set(ROUTES["addIncrements"].responses)


def test_the_answers_to_numbers_are_those_of_the_document() -> None:
    part = SENDING.partition("### Numbers that are handed out once")[2]
    told = statuses(part)
    assert told
    # How a body of JSON is refused is told above.
    assert told == set(ROUTES["nextValue"].responses) - {"400", "413", "415"}


def test_every_member_is_explained() -> None:
    told = re.findall(r"^\| `([a-z]+)` \|", SENDING, re.MULTILINE)
    assert told == list(increments.IncrementAsked.__struct_fields__)


@pytest.mark.parametrize("route", hits.ROUTES, ids=lambda route: route.name)
def test_every_way_to_count_a_visit_is_there(route: Route) -> None:
    assert f"`{route.method} {route.path.replace(':path', '')}`" in SENDING


def test_limits_of_sending_are_the_defaults() -> None:
    options = WebOptions(redis_url="", mysql_url="")
    assert f"to {options.max_amount:,} (`--max-amount`)" in SENDING
    assert (
        f"at most {options.max_ahead_s:,.0f} s ahead of the server's clock (`--max-ahead-s`)"
        in SENDING
    )
    assert f"more than {options.max_items:,} increments (`--max-items`)" in SENDING
