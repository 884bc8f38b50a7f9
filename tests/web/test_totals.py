"""`/v1/counters/…`: the totals of `countersink totals`, by HTTP."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
import requests

from countersink.producers import Producer
from tests.web.serving import Web

DAYS = [
    (date(2026, 11, 18), "/a", 5),
    (date(2026, 11, 18), "/b", 2),
    (date(2026, 11, 20), "/a", 1),
    (date(2026, 11, 21), "/c", 5),
]
DAILY = [
    {"day": "2026-11-18", "total": 7},
    {"day": "2026-11-19", "total": 0},
    {"day": "2026-11-20", "total": 1},
    {"day": "2026-11-21", "total": 5},
]


def noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


def count(producer: Producer, *events: tuple[date, str, int], counter: str = "views") -> None:
    for day, key, amount in events:
        producer.increment(counter, key, amount, at=noon(day))


def get(web: Web, path: str, *, status: int = 200, **parameters: Any) -> Any:
    answer = requests.get(f"{web.url}{path}", params=parameters, timeout=20)
    assert answer.status_code == status, answer.text
    return answer.json()


def rows(web: Web, path: str, **parameters: Any) -> Any:
    return get(web, path, **parameters)["rows"]


@pytest.fixture
def filled(web: Web) -> Web:
    """Two counters with known totals."""
    count(web.producer, *DAYS)
    count(web.producer, (date(2026, 11, 19), "", -4), counter="clicks")
    web.apply()
    return web


def test_days(filled: Web) -> None:
    document = get(filled, "/v1/counters/views/daily")
    assert document["rows"] == DAILY
    print(document)
    print(get(filled, "/v1/counters"))
    print(get(filled, "/v1/counters/views/top", search="a"))
    print(get(filled, "/v1/counters/views"))
    print(get(filled, "/v1/totals"))
