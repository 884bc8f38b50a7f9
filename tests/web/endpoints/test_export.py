"""`/v1/export/openmetrics`: what Prometheus scrapes."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import requests
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from countersink.web.endpoints import totals
from tests.support.ledger import post_planted
from tests.support.oracle import Oracle
from tests.web.serving import Web

PATH = "/v1/export/openmetrics"


@pytest.fixture(scope="module")
def filled(shared: Web) -> Web:
    """Three counters, one of them below zero, which no test changes; and `pending`."""
    shared.producer.increment("views", "/", 3)
    shared.producer.increment("views", 'a"b\\c\nd', 2)
    shared.producer.increment("views", "ü", 1)
    shared.producer.increment("clicks", amount=7)
    shared.producer.increment("stock", amount=-4)
    shared.producer.increment("pending", "/", 6)
    shared.apply()
    return shared


parsed: Callable[[str], Iterable[Metric]] = text_string_to_metric_families


def scrape(web: Web, **parameters: Any) -> dict[tuple[str, str, str | None], float]:
    """What a scrape has: (metric, counter, key) and its value."""
    answer = requests.get(f"{web.url}{PATH}", params=parameters, timeout=20)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("\n# EOF\n")
    return {
        (sample.name, sample.labels.get("counter", ""), sample.labels.get("key")): sample.value
        for family in parsed(answer.text)
        for sample in family.samples
    }


def test_totals_of_chosen_counters(filled: Web) -> None:
    """One below zero is no counter of Prometheus."""
    found = scrape(filled, counter=["views", "clicks", "stock"])
    up_to = found.pop(("countersink_events_complete_up_to_timestamp_seconds", "", None))
    assert up_to > 1_700_000_000
    assert found == {
        ("countersink_events_total", "views", None): 6,
        ("countersink_events_total", "clicks", None): 7,
        ("countersink_balance", "stock", None): -4,
    }


def test_keys_are_labels_where_they_are_asked_for(filled: Web) -> None:
    found = scrape(filled, counter="views", key=['a"b\\c\nd', "none"])
    assert found[("countersink_events_total", "views", 'a"b\\c\nd')] == 2
    assert found[("countersink_events_total", "views", "none")] == 0
    found = scrape(filled, counter="views", top=2)
    assert {key for _, counter, key in found if counter} == {"/", 'a"b\\c\nd'}


def test_no_two_keys_have_the_same_labels(filled: Web) -> None:
    with Oracle(filled.options.mysql_url) as oracle:
        oracle.rows(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES"
            " ('odd', '2026-11-21', x'ff', 1, 3), ('odd', '2026-11-21', x'5c786666', 1, 2),"
            " ('odd', '2026-11-21', x'c3bcff', 1, 1)"
        )
        post_planted(oracle)
    answer = requests.get(f"{filled.url}{PATH}?counter=odd&top=9", timeout=20)
    (family, _) = parsed(answer.text)
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"counter": "odd", "key": "\\xff", "key_bytes": "ff"}, 3),
        ({"counter": "odd", "key": "\\xff"}, 2),
        ({"counter": "odd", "key": "ü\\xff", "key_bytes": "c3bcff"}, 1),
    ]


def test_pending_entries_are_added(filled: Web) -> None:
    filled.producer.increment("pending", "/", 10)
    assert filled.producer.flush(timeout=20)
    assert scrape(filled, counter="pending")["countersink_events_total", "pending", None] == 6
    filled.producer.increment("to_come", amount=100)
    assert filled.producer.flush(timeout=20)
    found = scrape(filled, counter=["pending", "to_come"], include_pending="true")
    assert found["countersink_events_total", "pending", None] == 16
    assert found["countersink_events_total", "to_come", None] == 100


def test_a_counter_that_was_not_counted_yet_has_no_sample(filled: Web) -> None:
    for pending in ("false", "true"):
        found = scrape(filled, counter=["nothing", "views", "nor_this"], include_pending=pending)
        found.pop(("countersink_events_complete_up_to_timestamp_seconds", "", None))
        assert found == {("countersink_events_total", "views", None): 6}


def test_what_cannot_be_scraped(filled: Web) -> None:
    for query, status, why in [
        ("", 422, "give 1 to"),
        ("counter=no%20blanks", 422, "A-Z"),
        ("counter=nothing", 404, "include_pending=true includes"),
        ("counter=nothing&counter=nor_this", 404, "None of these counters exists"),
        ("counter=views&key=a&top=2", 422, "not both"),
        ("counter=views&top=1001", 422, "from 1"),
        ("&".join(f"counter=c{number}" for number in range(101)), 422, "100 times at most"),
    ]:
        answer = requests.get(f"{filled.url}{PATH}?{query}", timeout=20)
        assert answer.status_code == status
        assert why in answer.text


def test_a_scrape_has_so_many_samples_at_most(filled: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "MAX_SAMPLES", 3)
    assert len(scrape(filled, counter="views", top=3)) == 4
    answer = requests.get(f"{filled.url}{PATH}?counter=views&counter=clicks&top=2", timeout=20)
    assert answer.status_code == 422
