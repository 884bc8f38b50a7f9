"""Thousands of counters in one producer: each has the fast way of the first ones."""

from countersink.producers import Producer
from tests.producers.helpers import Queue, totals
from tests.support.waiting import eventually


def test_each_of_ten_thousand_counters_has_the_fast_way(redis_url: str) -> None:
    names = [f"counter-{number}" for number in range(10_000)]
    with Producer(redis_url) as producer:
        producer.increment("first")
        assert producer.flush(20)
        events = producer._events

        def counted() -> bool:
            for name in names:
                producer.increment(name)
            return all(name in events.fast for name in names)

        eventually(counted)


def test_counters_beyond_those_with_a_list_of_their_own_are_counted(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        for _ in range(2):
            for number in range(17_000):
                producer.increment(f"counter-{number}")
        assert producer.flush(60)
    counted = totals(queue.client)
    assert len(counted) == 17_000
    assert set(counted.values()) == {2}
