"""Windows and different members (`unique=true`) by HTTP: what is refused with 422, and answers,
which are as their schema says.
"""

import re
from contextlib import closing
from functools import partial
from itertools import cycle, product
from typing import Any

import jsonschema
import pytest

from countersink.database.connection import connect
from tests.counting.visitors.sightings import seen_entry
from tests.support.entries import applier
from tests.support.examples import MANY
from tests.support.traffic import now_minute
from tests.web.endpoints.test_totals import document, get, rows
from tests.web.serving import Web

VIEWS = "/v1/counters/views"


PATHS = ("totals", "daily", "hourly", "minutely", "top")


@pytest.fixture(scope="module")
def filled(shared: Web) -> Web:
    """`views` counts minutes, and has 3 of now."""
    shared.store.counters.set("views", resolution="minute")
    shared.count("views", "/", 3)
    return shared


def documented(web: Web, path: str, **parameters: Any) -> Any:
    """The document of an answer, which is as its schema says."""
    described = web.ask("GET", "/openapi.json").json()
    operation = described["paths"][re.sub("/counters/[^/]+/", "/counters/{counter}/", path)]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    found = document(web, path, **parameters)
    jsonschema.validate(found, {**schema, "components": described["components"]})
    return found


WRONG: tuple[tuple[dict[str, str], str], ...] = (
    ({"last": "0h"}, "is no window"),
    ({"last": "999999999d"}, "at most 36,500 days"),
    ({"last": "24h", "from": "2026-11-20"}, "not both"),
    ({"from": "2026-11-20T08:00"}, "no time zone"),
    ({"from": "soon"}, "neither a day"),
    ({"from": "2026-11-20T08:00Z", "to": "2026-11-20T07:00Z"}, "before it begins"),
)


@pytest.mark.random
def test_what_is_no_window_is_422_with_a_sentence(shared: Web) -> None:
    """Each once, as every path asks the same reader; by `make test-long` at each path."""
    asked = product(WRONG, PATHS) if MANY else zip(WRONG, cycle(PATHS), strict=False)
    for (given, says), path in asked:
        answer = get(shared, f"{VIEWS}/{path}", **given)
        assert answer.status_code == 422, (path, answer.text)
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert says in answer.text


def test_a_window_that_the_buckets_do_not_make_up_is_422_and_names_what_would(shared: Web) -> None:
    shared.store.counters.set("clicks", resolution="day")
    answer = get(shared, "/v1/counters/clicks/totals", last="24h")
    assert answer.status_code == 422
    assert "--resolution hour" in answer.text


def test_answers_with_and_without_a_window_are_as_their_schema_says(filled: Web) -> None:
    for path in PATHS:
        questions: list[dict[str, str]] = [{}, {"last": "24h"}, {"last": "2d"}]
        if path == "top":
            questions.append({"last": "24h", "against": "previous"})
        for given in questions:
            found = documented(filled, f"{VIEWS}/{path}", **given)
            assert ("window" in found) == bool(given)
            assert sum(row["total"] for row in found["rows"]) == 3


def test_a_time_with_an_offset_may_have_its_plus_unescaped(filled: Web) -> None:
    path = f"{VIEWS}/totals?by=total&from=2026-11-20T08:00"
    for offset in ("+01:00", "%2B01:00", "Z"):
        assert rows(filled, f"{path}{offset}") == [{"total": 3}]


def test_windows_that_begin_before_1970_or_have_none_before_them(filled: Web) -> None:
    answer = get(filled, f"{VIEWS}/totals", last="876000h")
    assert answer.status_code == 422, answer.text
    assert "from 1970-01-01 on" in answer.text
    for given in ({"last": "400000h"}, {"from": "0001-01-01", "to": "2100-01-01"}):
        answer = get(filled, f"{VIEWS}/top", **given, against="previous")
        assert answer.status_code == 200, answer.text
        assert answer.json()["rows"] == [{"key": "/", "total": 3, "previous": None}]


VISITORS = "/v1/counters/visitors"


@pytest.fixture(scope="module")
def visited(shared: Web) -> Web:
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


def test_members_are_told_with_their_bounds(visited: Web) -> None:
    members = partial(rows, visited, unique="true")
    exact = {"total": 3, "estimate": False, "low": 3, "high": 3}
    assert members(f"{VISITORS}/totals", by="total", key="/") == [exact]
    many, few = members(f"{VISITORS}/top")
    assert few == {"key": "/", **exact}
    assert (many["key"], many["estimate"]) == ("/many", True)
    assert many["low"] <= 1000 <= many["high"]
    assert [row["total"] for row in members(f"{VISITORS}/daily", key="/")] == [3]
    assert [row["total"] for row in members(f"{VISITORS}/hourly", key="/")] == [3]


def test_answers_of_members_are_as_their_schema_says(visited: Web) -> None:
    for path in PATHS:
        found = documented(visited, f"{VISITORS}/{path}", unique="true")
        assert set(found["rows"][0]) >= {"total", "estimate", "low", "high"}


def test_what_is_not_told_of_members_is_422(visited: Web) -> None:
    questions: tuple[tuple[str, dict[str, str]], ...] = (
        (f"{VISITORS}/totals", {"include_pending": "true"}),
        (f"{VISITORS}/top", {"against": "previous", "last": "24h"}),
        (f"{VISITORS}/top", {"also": "2026-10-01..2026-10-31"}),
        ("/v1/totals", {}),
    )
    for path, more in questions:
        answer = get(visited, path, unique="true", **more)
        assert answer.status_code == 422, path
        assert "Different members cannot be counted" in answer.text


def test_a_counter_without_members_is_422_and_says_what_to_do(visited: Web) -> None:
    visited.store.counters.set("plain")
    answer = get(visited, "/v1/counters/plain/totals", unique="true")
    assert answer.status_code == 422
    assert "countersink counter set plain --unique" in answer.text


def test_a_damaged_sketch_is_an_error_that_names_it(visited: Web) -> None:
    with connect(visited.options.mysql_url) as session:
        session.execute("UPDATE visitor_slot SET checksum = 1 WHERE counter = 'damaged'")
    path = "/v1/counters/damaged/totals"
    answer = get(visited, path, unique="true", by="total")
    assert answer.status_code == 500
    assert "'damaged', '/' in the bucket" in answer.json()["detail"]
    assert get(visited, path, by="total").json()["rows"] == [{"total": 1}]
