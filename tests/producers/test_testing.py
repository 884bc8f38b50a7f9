"""The stand-in for apps' own tests."""

from datetime import UTC, datetime

import pytest

from countersink.producers import Producer
from countersink.producers.testing import Increment, RecordingProducer

AT = datetime(2026, 11, 21, tzinfo=UTC)


def test_it_remembers_what_was_counted() -> None:
    with RecordingProducer() as producer:
        producer.increment("page_views", "/home")
        producer.increment("page_views", "/home", 2, at=AT)
        producer.increment_many("page_views", {"/about": 1, "/home": 4})
        producer.increment("orders")
        producer.increment("orders", "declared", 0)
        assert producer.count("page_views", "/home") == 7
        assert producer.count("page_views") == 8
        assert producer.count("never") == 0
        assert producer.totals("orders") == {("orders", ""): 1, ("orders", "declared"): 0}
        assert producer.totals()["page_views", "/about"] == 1
        producer.assert_counted("page_views", {"/home": 7, "/about": 1})
        assert producer.increments[1] == Increment(
            counter="page_views", key="/home", amount=2, at=AT
        )
        assert producer.flush(applied=True)
        assert producer.stats().accepted == producer.stats().stored == 6


def test_the_same_id_counts_once_per_counter() -> None:
    producer = RecordingProducer()
    for _ in range(3):
        producer.increment("orders", id="order-1")
        producer.increment("refunds", id="order-1")
    assert producer.totals() == {("orders", ""): 1, ("refunds", ""): 1}


def test_failed_assertions_show_both_sides() -> None:
    producer = RecordingProducer()
    producer.assert_nothing_counted()
    producer.increment("hits", "a")
    with pytest.raises(AssertionError, match=r"counted \{'a': 1\}, expected \{'b': 1\}"):
        producer.assert_counted("hits", {"b": 1})
    with pytest.raises(AssertionError, match="expected nothing"):
        producer.assert_nothing_counted()
    producer.reset()
    producer.assert_nothing_counted()


def test_it_is_a_producer_that_is_closed_as_one_is() -> None:
    """So all that the real one refuses is refused here, by the same code."""
    producer = RecordingProducer()
    assert isinstance(producer, Producer)
    with pytest.raises(ValueError, match="key"):
        producer.increment_many("hits", {"good": 1, "\ud800": 1})
    producer.assert_nothing_counted()
    producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.increment("hits")
