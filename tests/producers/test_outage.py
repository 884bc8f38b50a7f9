"""Redis frozen, killed, gone: callers do not notice, memory is bounded, nothing is lost."""

import logging
import threading
from datetime import UTC, datetime

import pytest

from countersink.producers import Producer
from countersink.producers.buffer.events import Mode
from countersink.stream.connection import connect
from countersink.stream.names import PARTITIONS_USED_KEY
from tests.producers.helpers import Queue, distinct, entries, total
from tests.support.factories import RedisFactory
from tests.support.proxies.redis_proxy import RedisProxy
from tests.support.proxies.rules import Deed, Phase
from tests.support.waiting import eventually

# Where rows are counted: by default a row is of the minute it came in, and minutes pass.
ONE_MINUTE = datetime(2026, 9, 14, 12, 34, tzinfo=UTC)


def test_a_frozen_redis_is_not_noticed_by_callers(own_redis_server: RedisFactory) -> None:
    server = own_redis_server()
    with Producer(server.url, flush_interval=0.01, socket_timeout=0.5) as producer:
        producer.increment("hits")
        assert producer.flush()
        server.freeze()
        asked = 60_000
        for number in range(asked):
            producer.increment("hits", f"key-{number % 2000}")
        # The send thread hangs in its command; folding goes on, and coalesces.
        eventually(lambda: producer._events.unfolded() == 0)
        stats = producer.stats()
        assert (stats.accepted, stats.dropped) == (asked + 1, 0)
        assert stats.pending_rows <= 4 * 2000  # distinct rows, times the minutes that passed
        eventually(lambda: producer._link.failures >= 2)
        assert not producer.stats().connected
        server.thaw()
        assert producer.flush(30)
        assert producer.stats().stored == asked + 1
        with connect(server.url) as client:
            assert total(client) == asked + 1


def test_memory_is_bounded_by_rows_and_what_does_not_fit_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Producer("redis://127.0.0.1:1/0", max_rows_in_memory=1000) as producer:
        for number in range(5000):
            producer.increment("hits", str(number), at=ONE_MINUTE)
        stats = producer.stats()
        assert (stats.accepted, stats.dropped, stats.pending_rows) == (1000, 4000, 1000)
        for number in range(5000):
            # those that have a row go on counting
            producer.increment("hits", str(number), at=ONE_MINUTE)
        # A call of increment_many finds room as a whole, or not at all.
        producer.increment_many("hits", dict.fromkeys(map(str, range(2000)), 1), at=ONE_MINUTE)
        producer.increment_many("hits", dict.fromkeys(map(str, range(1000)), 1), at=ONE_MINUTE)
        producer.increment("new", id="no room")
        stats = producer.stats()
        assert (stats.accepted, stats.dropped, stats.pending_rows) == (3000, 10_001, 1000)
        eventually(lambda: _logged(caplog, "dropped"))
        producer.close(timeout=0.05)
    assert producer.stats().accepted == 0
    assert producer.stats().dropped == 13_001
    assert len([r for r in caplog.records if getattr(r, "action", "") == "dropped"]) == 1, (
        "once a minute"
    )


def _logged(caplog: pytest.LogCaptureFixture, action: str) -> bool:
    return any(getattr(record, "action", "") == action for record in caplog.records)


def test_a_killed_and_restarted_redis_gets_everything(own_redis_server: RedisFactory) -> None:
    server = own_redis_server(appendfsync="always")
    with Producer(server.url, flush_interval=0.005) as producer:
        asked = 0
        for _ in range(3):
            for _ in range(20):
                for number in range(500):
                    producer.increment("hits", str(number))
                asked += 500
                producer.stats()
            server.kill()
            for number in range(500):
                producer.increment("hits", str(number))
            asked += 500
            server.start()
        assert producer.flush(30)
        stats = producer.stats()
        assert (stats.accepted, stats.stored, stats.dropped) == (asked, asked, 0)
        with connect(server.url) as client:
            assert total(client) == asked
            distinct(entries(client))


def test_callers_wait_while_there_is_much_to_fold(
    monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setattr("countersink.producers.buffer.fold_thread.MAX_UNFOLDED", 1000)
    with Producer(redis_url) as producer:
        events = producer._events
        with events.lock:  # the fold thread has to wait
            for _ in range(5000):
                producer.increment("hits")
            producer._fold_thread.wake()
        eventually(lambda: events.unfolded() == 0 and events.mode is not Mode.FULL)
        producer.increment("hits")
        assert producer.stats().accepted == 5001


def test_a_bug_in_a_thread_is_logged_and_the_thread_goes_on(
    redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(redis_url, flush_interval=0.01) as producer:
        core = producer
        happened = threading.Event()
        original = core._outbox.stamp

        def broken(limit: int) -> object:
            if not happened.is_set():
                happened.set()
                raise ZeroDivisionError("a bug")
            return original(limit)

        monkeypatch.setattr(core._outbox, "stamp", broken)
        producer.increment("hits")
        assert happened.wait(20)
        assert producer.flush(20)
        assert producer.stats().stored == 1
    (record,) = [r for r in caplog.records if getattr(r, "action", "") == "internal_error"]
    assert record.exc_info is not None


def test_no_thread_to_be_had_is_no_reason_to_lose_anything(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    producer = Producer(redis_url)
    for number in range(5000):
        producer.increment("hits", str(number % 7))
    assert producer.stats().accepted == 5000
    assert producer.close()
    with connect(redis_url) as client:
        assert total(client) == 5000


def test_what_lies_in_a_partition_that_could_not_be_noted_is_sent_again(redis_url: str) -> None:
    """Nobody would look there, once partitions are fewer."""
    with RedisProxy.to(redis_url) as proxy, connect(redis_url) as client:
        rule = proxy.when("SADD", Phase.BEFORE, Deed.ERROR, error="NOPERM no SADD", times=2)
        with Producer(proxy.url(redis_url)) as producer:
            producer.increment("hits")
            assert producer.flush(timeout=30)
            assert rule.acted == 2
            assert len({entry["id"] for entry in entries(client)}) == 1
            assert client.smembers(PARTITIONS_USED_KEY) == {b"0"}
            assert producer.stats().stored == 1


def test_a_full_redis_is_logged_once_and_so_is_its_end(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Producer(queue.url, flush_interval=0.01) as producer:
        queue.client.config_set("maxmemory", 1)
        try:
            producer.increment("hits")
            eventually(lambda: producer._link.failures >= 4)
        finally:
            queue.client.config_set("maxmemory", 0)
        assert producer.flush(20)
    records = [r for r in caplog.records if r.name == "countersink.producers"]
    full, over = (record.getMessage() for record in records)
    assert full.startswith("Redis is full: ")
    assert over == "Redis accepts entries again"
