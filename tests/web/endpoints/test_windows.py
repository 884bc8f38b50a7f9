"""Windows by HTTP: what is none is 422, and an answer with one is as its schema says."""

import re
from itertools import cycle, product
from typing import Any

import jsonschema
import pytest

from tests.support.examples import MANY
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
