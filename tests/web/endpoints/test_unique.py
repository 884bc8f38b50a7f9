"""Different members by HTTP: `unique=true`, its refusals, and its schema."""

from contextlib import closing
from typing import Any

import jsonschema
import pytest
import requests

from countersink.store.connection import Session
from tests.store.helpers import applier
from tests.store.visitors.sightings import seen_entry
from tests.support.traffic import now_minute
from tests.web.serving import Web

VISITORS = "/v1/counters/visitors"


@pytest.fixture
def filled(web: Web, session: Session, mysql_url: str) -> Web:
    """`visitors` has 3 members of one key, and 1,000 of another."""
    web.store.counters.set("visitors", resolution="minute", salt_days=0)
    now = now_minute()
    made = [("visitors", "/", now, f"v{n % 3}") for n in range(7)]
    made += [("visitors", "/many", now, f"v{n}") for n in range(1000)]
    with closing(applier(mysql_url)) as one:
        one.apply([seen_entry(session, made)])
    return web


def get(web: Web, path: str, **parameters: Any) -> requests.Response:
    return requests.get(f"{web.url}{path}", params=parameters, timeout=20)


def rows(web: Web, path: str, **parameters: Any) -> Any:
    answer = get(web, path, unique="true", **parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"]


def test_members_are_told_with_their_bounds(filled: Web) -> None:
    exact = {"total": 3, "estimate": False, "low": 3, "high": 3}
    assert rows(filled, f"{VISITORS}/totals", by="total", key="/") == [exact]
    many, few = rows(filled, f"{VISITORS}/top")
    assert few == {"key": "/", **exact}
    assert (many["key"], many["estimate"]) == ("/many", True)
    assert many["low"] <= 1000 <= many["high"]
    assert [row["total"] for row in rows(filled, f"{VISITORS}/daily", key="/")] == [3]
    assert [row["total"] for row in rows(filled, f"{VISITORS}/hourly", key="/")] == [3]


@pytest.mark.parametrize("path", ["totals", "daily", "hourly", "minutely", "top"])
def test_answers_are_as_their_schema_says(filled: Web, path: str) -> None:
    document = requests.get(f"{filled.url}/openapi.json", timeout=20).json()
    operation = document["paths"][f"/v1/counters/{{counter}}/{path}"]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    answer = get(filled, f"{VISITORS}/{path}", unique="true")
    assert answer.status_code == 200, answer.text
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    assert set(answer.json()["rows"][0]) >= {"total", "estimate", "low", "high"}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (f"{VISITORS}/totals", {"include_pending": "true"}),
        (f"{VISITORS}/top", {"against": "previous", "last": "24h"}),
        (f"{VISITORS}/top", {"also": "2026-10-01..2026-10-31"}),
        ("/v1/totals", {}),
    ],
)
def test_what_is_not_told_of_members_is_422(filled: Web, path: str, more: dict[str, str]) -> None:
    answer = get(filled, path, unique="true", **more)
    assert answer.status_code == 422
    assert "different members are not told" in answer.text


def test_a_counter_without_members_is_422_and_says_what_to_do(filled: Web) -> None:
    filled.store.counters.set("plain")
    answer = get(filled, "/v1/counters/plain/totals", unique="true")
    assert answer.status_code == 422
    assert "countersink counter set plain --unique" in answer.text


def test_a_damaged_sketch_is_an_error_that_names_it(filled: Web, session: Session) -> None:
    session.execute("UPDATE visitor_slot SET checksum = 1 WHERE counter_key = '/'")
    answer = get(filled, f"{VISITORS}/totals", unique="true", by="total")
    assert answer.status_code == 500
    assert "'visitors', '/' in the bucket" in answer.json()["detail"]
    assert get(filled, f"{VISITORS}/totals", by="total").json()["rows"] == [{"total": 1007}]
