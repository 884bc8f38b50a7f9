"""What docs/http.md says of sending is what the routes say of themselves."""

import re

import pytest

from countersink.web.endpoints import hits, increments, sequences
from countersink.web.http.route import Route
from countersink.web.options import WebOptions
from tests.support.processes import PROJECT

PAGE = (PROJECT / "docs/http.md").read_text("utf-8")
SENDING = PAGE.partition("\n## Sending\n")[2].partition("\n## ")[0]
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


def test_limits_are_the_defaults() -> None:
    options = WebOptions(redis_url="", mysql_url="")
    assert f"to {options.max_amount:,} (`--max-amount`)" in SENDING
    assert (
        f"at most {options.max_ahead_s:,.0f} s ahead of the server's clock (`--max-ahead-s`)"
        in SENDING
    )
    assert f"more than {options.max_items:,} increments (`--max-items`)" in SENDING
