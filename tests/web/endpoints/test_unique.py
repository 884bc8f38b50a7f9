"""Different members by HTTP: `unique=true`, its refusals, and its schema."""

from contextlib import closing
from typing import Any

import pytest

from countersink.store.connection import connect
from tests.store.helpers import applier
from tests.store.visitors.sightings import seen_entry
from tests.support.traffic import now_minute
from tests.web.endpoints.test_totals import document, get
from tests.web.endpoints.test_windows import PATHS, documented
from tests.web.serving import Web

VISITORS = "/v1/counters/visitors"


@pytest.fixture(scope="module")
def filled(shared: Web) -> Web:
    """`visitors` has 3 members of one key, and 1,000 of another; `damaged` has one."""
    now = now_minute()
    for counter in ("visitors", "damaged"):
        shared.store.counters.set(counter, resolution="minute", salt_days=0)
    made = [("visitors", "/", now, f"v{n % 3}") for n in range(7)]
    made += [("visitors", "/many", now, f"v{n}") for n in range(1000)]
    made += [("damaged", "/", now, "v")]
    url = shared.options.mysql_url
    with connect(url) as session, closing(applier(url)) as one:
        one.apply([seen_entry(session, made)])
    return shared


def rows(web: Web, path: str, **parameters: Any) -> Any:
    return document(web, path, unique="true", **parameters)["rows"]


def test_members_are_told_with_their_bounds(filled: Web) -> None:
    exact = {"total": 3, "estimate": False, "low": 3, "high": 3}
    assert rows(filled, f"{VISITORS}/totals", by="total", key="/") == [exact]
    many, few = rows(filled, f"{VISITORS}/top")
    assert few == {"key": "/", **exact}
    assert (many["key"], many["estimate"]) == ("/many", True)
    assert many["low"] <= 1000 <= many["high"]
    assert [row["total"] for row in rows(filled, f"{VISITORS}/daily", key="/")] == [3]
    assert [row["total"] for row in rows(filled, f"{VISITORS}/hourly", key="/")] == [3]


def test_answers_are_as_their_schema_says(filled: Web) -> None:
    for path in PATHS:
        found = documented(filled, f"{VISITORS}/{path}", unique="true")
        assert set(found["rows"][0]) >= {"total", "estimate", "low", "high"}


def test_what_is_not_told_of_members_is_422(filled: Web) -> None:
    questions: tuple[tuple[str, dict[str, str]], ...] = (
        (f"{VISITORS}/totals", {"include_pending": "true"}),
        (f"{VISITORS}/top", {"against": "previous", "last": "24h"}),
        (f"{VISITORS}/top", {"also": "2026-10-01..2026-10-31"}),
        ("/v1/totals", {}),
    )
    for path, more in questions:
        answer = get(filled, path, unique="true", **more)
        assert answer.status_code == 422, path
        assert "Different members are not told" in answer.text


def test_a_counter_without_members_is_422_and_says_what_to_do(filled: Web) -> None:
    filled.store.counters.set("plain")
    answer = get(filled, "/v1/counters/plain/totals", unique="true")
    assert answer.status_code == 422
    assert "countersink counter set plain --unique" in answer.text


def test_a_damaged_sketch_is_an_error_that_names_it(filled: Web) -> None:
    with connect(filled.options.mysql_url) as session:
        session.execute("UPDATE visitor_slot SET checksum = 1 WHERE counter = 'damaged'")
    path = "/v1/counters/damaged/totals"
    answer = get(filled, path, unique="true", by="total")
    assert answer.status_code == 500
    assert "'damaged', '/' in the bucket" in answer.json()["detail"]
    assert get(filled, path, by="total").json()["rows"] == [{"total": 1}]
