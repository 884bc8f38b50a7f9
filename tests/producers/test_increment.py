"""What an increment becomes: rows that coalesce, times, ids, and figures that add up."""

import sys
from datetime import UTC, datetime
from functools import partial

import pytest

from countersink.producers import Producer
from countersink.stream.entry import id_for
from tests.producers.helpers import STREAM, Queue, distinct, entries, play, total, totals
from tests.support.entries import together
from tests.support.examples import MANY
from tests.support.waiting import eventually

AT = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


def send_first(producer: Producer) -> None:
    """Have the producer send, so that it keeps what follows for its flush interval."""
    producer.increment("first")
    # A flush() may begin to send once more after it has returned, what comes next included.
    eventually(lambda: producer.stats().stored == 1)


def test_increments_of_one_key_become_one_row(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=60) as producer:
        send_first(producer)
        for _ in range(10_000):
            producer.increment("hits", "/home", at=AT)
        producer.increment("hits", "/home", 5, at=AT)
        producer.increment("hits", "/home", -2, at=AT)
    _, entry = distinct(entries(queue.client))
    assert entry.rows == [("hits", "/home", int(AT.timestamp()) // 60, 10_003)]


def test_entries_hold_at_most_1000_rows(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=60, max_rows=100_000) as producer:
        send_first(producer)
        for number in range(2_500):
            producer.increment("hits", str(number), at=AT)
    _, *found = distinct(entries(queue.client))
    assert sorted(len(entry.rows) for entry in found) == [500, 1000, 1000]
    assert len({entry["id"] for entry in found}) == 3
    assert all(entry["v"] == "1" and len(entry["id"]) == 32 for entry in found)


def test_the_first_increment_of_an_idle_producer_goes_out_at_once(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=3600) as producer:
        producer.increment("hits", "first")
        # blocks until the entry is there
        assert queue.client.xread({STREAM: "0"}, block=4000)
        eventually(lambda: producer.stats().stored == 1)
        producer.increment("hits", "second")
        assert producer.stats().pending_rows == 1
    assert len(distinct(entries(queue.client))) == 2


def test_many_rows_are_flushed_before_the_interval_ends(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=3600, max_rows=100) as producer:
        send_first(producer)
        for number in range(100):
            producer.increment("hits", str(number))
        # blocks until the entry is there
        assert queue.client.xread({STREAM: "0"}, block=4000)
        producer.close()


def test_a_flush_comes_by_itself_and_an_idle_producer_counts_again(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=0.05) as producer:
        for number in range(1, 4):
            producer.increment("hits")
            eventually(lambda: total(queue.client) == number)  # noqa: B023
            if number == 2:  # when the fold thread has gone idle, callers have to wake it
                eventually(lambda: not producer._events.fast)
        producer.increment("hits")
        producer.increment("hits")
        eventually(lambda: total(queue.client) == 5)


def test_an_own_id_gives_the_entry_its_id(queue: Queue) -> None:
    with Producer(queue.url, id_scope="shop", flush_interval=60) as producer:
        producer.increment("orders", "paid", 3, id="order-1")
        producer.increment("orders", "paid", 3, id="order-1")
        producer.increment("orders", "paid", 4, id="order-2", at=AT)
        producer.increment("orders", "paid")
        assert producer.stats().accepted == 4
    by_id = {entry["id"]: entry.rows for entry in entries(queue.client)}
    assert len(by_id) == 3
    (row,) = by_id[id_for("shop", "orders", "order-1")]
    assert (row[0], row[1], row[3]) == ("orders", "paid", 3)
    assert by_id[id_for("shop", "orders", "order-2")] == [
        ("orders", "paid", int(AT.timestamp()) // 60, 4)
    ]


def test_increment_many_counts_each_item(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        producer.increment_many("hits", {})
        producer.increment_many("hits", {"a": 3, "b": -1, "c": 0, "á": 2**40})
        producer.increment_many("hits", {"a": 1, "b": 1}, at=AT)
        producer.increment_many("hits", {str(n): n for n in range(3000)})
        assert producer.stats().accepted == 3006
        assert producer.flush()
        assert producer.stats().stored == 3006
    found = totals(queue.client)
    assert found["hits", "a"] == 4
    assert found["hits", "b"] == 0
    assert found["hits", "á"] == 2**40
    assert found["hits", "2999"] == 2999


def test_counters_beyond_those_with_a_list_of_their_own_are_counted(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        for _ in range(2):
            for number in range(17_000):
                producer.increment(f"counter-{number}")
        assert producer.flush(60)
    counted = totals(queue.client)
    assert len(counted) == 17_000
    assert set(counted.values()) == {2}


@pytest.mark.random
def test_threads_lose_nothing(queue: Queue) -> None:
    calls, workers = 20_000 if MANY else 5_000, 8
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Producer(queue.url, flush_interval=0.01) as producer:

            def work(number: int) -> None:
                for turn in range(calls):
                    producer.increment("hits", f"{turn % 7}")
                    if turn % 100 == 0:
                        producer.increment_many(f"many-{number}", {"a": 1, "b": 2})
                        producer.increment("hits", "two", 2)

            together(*(partial(work, number) for number in range(workers)))
            asked = workers * (calls + calls // 100 * 3)
            assert producer.stats().accepted == asked
            assert producer.flush(20)
            assert producer.stats().stored == asked
    finally:
        sys.setswitchinterval(switch)
    assert total(queue.client) == workers * (calls + calls // 100 * 2)
    assert total(queue.client, "many-3") == calls // 100 * 3


@pytest.mark.random
def test_a_finalizer_and_a_signal_handler_may_count(queue: Queue) -> None:
    # Both run between any two instructions of the same thread, also in the midst of increment().
    script = """
    import gc, signal, sys
    from countersink.producers import Producer
    producer = Producer(sys.argv[1], flush_interval=0.001)
    counted = 0
    class Counting:
        def __del__(self):
            global counted
            producer.increment(f"finalizer-{counted % 7}", "", 1 + counted % 2)
            counted += 1
    def handler(*_):
        global counted
        producer.increment("handler")
        producer.increment_many("handler", {"a": 1})
        counted += 2
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    gc.set_threshold(1)
    for number in range(int(sys.argv[2])):
        garbage = Counting()
        garbage.itself = garbage
        del garbage
        producer.increment(f"plain-{number % 600}", str(number % 10))
        counted += 1
        if number % 100 == 0:
            producer.stats()
            producer._events.switch(type(producer._events.mode).IDLE)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.set_threshold(700)
    gc.collect()
    assert producer.flush(20)
    stats = producer.stats()
    assert stats.accepted == stats.stored == counted, (stats, counted)
    assert producer.close()
    """
    play(script, queue.url, "20000" if MANY else "6000")
