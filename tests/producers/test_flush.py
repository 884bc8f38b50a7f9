"""Storing: lost replies, refusals, back-pressure, partitions, and what `flush` and `close` say."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from countersink.producers import Producer, redis_link
from countersink.producers.options import warn_of_variables
from countersink.producers.redis_link import Checkpoint, Trail
from countersink.stream import names
from countersink.stream.decode import entry_id_of
from countersink.stream.group import Group
from countersink.stream.names import PARTITIONS_KEY, stream_key
from tests.producers.helpers import STREAM, Queue, Worker, distinct, entries, new_log, total
from tests.support.proxies import Deed, Phase, RedisProxy
from tests.support.waiting import eventually


@pytest.fixture
def proxy(redis_url: str) -> Iterator[RedisProxy]:
    with RedisProxy.to(redis_url) as proxy:
        yield proxy


def test_flush_is_true_when_redis_has_it(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=3600) as producer:
        assert producer.flush(), "nothing to store is stored"
        producer.increment("hits")
        assert producer.flush()
        assert total(queue.client) == 1
        stats = producer.stats()
        assert (stats.accepted, stats.stored, stats.pending_rows) == (1, 1, 0)
        assert stats.connected
        assert stats.last_error is None


def test_a_mark_is_applied_when_all_up_to_it_is_acknowledged(redis_client: redis.Redis) -> None:
    trail, checkpoints = Trail(new_log()), []
    group = Group(redis_client, ["a", "b"], "w")
    for stream in ("a", "b", "c"):
        trail.follow(redis_client, stream)
    for stream, id in (("a", "9-5"), ("b", "7-0"), ("a", "10-0")):
        redis_client.xadd(stream, {"x": "1"}, id=id)
        trail.stored(stream, id)
        checkpoints.append(trail.checkpoint(0))
    assert trail.applied(redis_client, [*checkpoints, Checkpoint({}, 0)]) == [
        False,
        False,
        False,
        True,
    ]
    first, second, third = sorted(group.read(9, 0), key=lambda d: (d.stream, len(d.stream_id)))
    group.acknowledge([(first.stream, first.stream_id, entry_id_of(first))])
    assert trail.applied(redis_client, checkpoints) == [True, False, False]
    group.acknowledge([(third.stream, third.stream_id, entry_id_of(third))])
    assert trail.applied(redis_client, checkpoints) == [True, True, False]
    group.acknowledge([(second.stream, second.stream_id, entry_id_of(second))])
    assert trail.applied(redis_client, checkpoints) == [True, True, True]
    assert trail.checkpoint(0) == Checkpoint({}, 0), "nothing is left to be waited for"

    added = redis_client.xadd("c", {"x": "1"})
    assert isinstance(added, bytes)
    trail.stored("c", added.decode())
    checkpoint = trail.checkpoint(0)
    redis_client.set("c", "not a stream")
    assert trail.applied(redis_client, [checkpoint]) == [None]


def test_a_lost_reply_resends_the_same_bytes(queue: Queue, proxy: RedisProxy) -> None:
    lost = proxy.when("XADD", Phase.AFTER, Deed.CUT, times=3)
    with Producer(proxy.url(queue.url), flush_interval=0.01) as producer:
        for number in range(2500):
            producer.increment("hits", str(number))
        assert lost.done.wait(20)
        producer.increment("hits", "while the first are in doubt")
        assert producer.flush(20)
        stats = producer.stats()
    assert lost.acted == 3
    found = entries(queue.client)
    copies = len(found) - len(distinct(found))  # which also compares the copies byte by byte
    assert copies >= 3
    assert total(queue.client) == stats.stored == stats.accepted == 2501
    assert stats.resent >= 1000
    assert stats.last_error is not None


def test_at_is_the_first_attempt_on_redis_clock(queue: Queue, proxy: RedisProxy) -> None:
    proxy.when("XADD", Phase.BEFORE, Deed.CUT, times=2)
    seconds, micros = queue.client.time()
    with Producer(proxy.url(queue.url), flush_interval=0.01) as producer:
        producer.increment("hits")
        assert producer.flush(20)
    (entry,) = distinct(entries(queue.client))
    began = seconds * 1000 + micros // 1000
    arrived = int(entry.stream_id.partition("-")[0])
    assert began - 50 <= int(entry["at"]) <= arrived + 50
    assert int(entry["id"][:12], 16) == pytest.approx(int(entry["at"]), abs=60_000)


def test_a_refused_entry_is_kept_and_the_others_of_its_pipeline_are_stored(
    queue: Queue, proxy: RedisProxy
) -> None:
    refused = proxy.when(
        "XADD", Phase.BEFORE, Deed.ERROR, skip=1, error="OOM command not allowed when used memory"
    )
    with Producer(proxy.url(queue.url), flush_interval=0.01, max_rows=100_000) as producer:
        with producer._events.lock:  # one flush for all three entries
            for number in range(3000):
                producer.increment("hits", str(number))
        assert producer.flush(20)
        stats = producer.stats()
    assert refused.acted == 1
    assert stats.last_error is not None
    assert "used memory" in stats.last_error
    assert total(queue.client) == 3000
    assert len(distinct(entries(queue.client))) == len(entries(queue.client))


def test_a_stream_that_is_too_long_holds_entries_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "HELD_BACK_SECONDS", 0.05)
    for _ in range(6):
        queue.client.xadd(STREAM, {"id": "0" * 32, "rows": "[]"})
    with Producer(queue.url, flush_interval=0.01, max_stream_length=5) as producer:
        for _ in range(100):
            producer.increment("hits")
        assert not producer.flush(0.3)
        stats = producer.stats()
        assert not stats.connected
        assert "the limit is 5" in (stats.last_error or "")
        assert (stats.stored, stats.pending_rows, stats.dropped) == (0, 1, 0)
        assert queue.client.xlen(STREAM) == 6
        queue.client.xtrim(STREAM, maxlen=0)
        assert producer.flush(20)
        assert producer.stats().connected
    assert total(queue.client) == 100


def test_a_producer_sticks_to_one_partition(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.client.set(PARTITIONS_KEY, 4)
    shares, used = iter((0.7, 0.1, 0.9, 0.4)), []
    drawn = SimpleNamespace(random=lambda: next(shares))
    monkeypatch.setattr(names, "SystemRandom", lambda: drawn)
    for _ in range(4):
        with Producer(queue.url) as producer:
            for _ in range(3):
                producer.increment("hits")
                assert producer.flush()
        lengths = [queue.client.xlen(stream_key(partition)) for partition in range(4)]
        assert sorted(lengths) == [0, 0, 0, 3]
        used.append(lengths.index(3))
        queue.client.delete(*[stream_key(partition) for partition in range(4)])
    assert used == [2, 0, 3, 1]


def test_flush_applied_waits_until_the_workers_have_removed_the_entry(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        producer.increment("hits")
        assert not producer.flush(0.3, applied=True)
        ended = threading.Event()
        answers: list[bool] = []

        def wait() -> None:
            answers.append(producer.flush(20, applied=True))
            ended.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        Worker(queue.client).work()
        assert ended.wait(20)
        waiting.join()
        assert answers == [True]
        queue.client.xadd(STREAM, {"another": "producer's, later"})
        assert producer.flush(5, applied=True)


def test_flush_never_raises_for_a_redis_that_is_not_there(redis_url: str) -> None:
    with Producer("redis://127.0.0.1:1/0") as producer:
        producer.increment("hits")
        assert not producer.flush(0.2)
        assert not producer.flush(0)
        assert not producer.flush(0.2, applied=True)
        stats = producer.stats()
        assert (stats.accepted, stats.stored, stats.dropped, stats.pending_rows) == (1, 0, 0, 1)
        assert "reached" in (stats.last_error or "")
        producer.close(timeout=0.1)


def test_a_wrong_password_is_waited_for_and_told_without_it(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "countersink.producers")
    host = redis_url.rpartition("@")[2]
    with Producer(f"redis://:wrong-secret@{host}") as producer:
        producer.increment("hits")
        assert not producer.flush(0.5)
        assert producer.stats().last_error is not None
        producer.close(timeout=0.1)
    shown = caplog.text + str(producer.stats())
    assert "wrong-secret" not in shown


def test_close_stores_and_refuses_from_then_on(queue: Queue) -> None:
    before = threading.enumerate()  # those of other tests in this process
    producer = Producer(queue.url, flush_interval=3600)
    producer.increment("hits")
    assert producer.close()
    assert producer.close(), "closing again does nothing"
    assert total(queue.client) == 1
    with pytest.raises(RuntimeError, match="closed"):
        producer.increment("hits")
    with pytest.raises(RuntimeError, match="closed"):
        producer.increment("hits", amount=2)
    with pytest.raises(RuntimeError, match="closed"):
        producer.increment("hits", id="x")
    with pytest.raises(RuntimeError, match="closed"):
        producer.increment_many("hits", {"a": 1})
    assert producer.flush()
    stats = producer.stats()
    assert (stats.accepted, stats.stored, stats.dropped) == (1, 1, 0)
    after = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not any(name.startswith("countersink") for name in after)


def test_what_cannot_be_stored_at_close_is_counted_as_dropped_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = Producer("redis://127.0.0.1:1/0")
    producer.increment("hits", "a", 7)
    producer.increment_many("hits", {"a": 1, "b": 1})
    assert not producer.close(timeout=0.1)
    stats = producer.stats()
    assert (stats.accepted, stats.dropped, stats.pending_rows) == (0, 3, 0)
    actions = [getattr(record, "action", None) for record in caplog.records]
    assert "left_over" in actions
    assert "unavailable" in actions


def test_settings_come_from_the_environment(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "url"
    secret.write_text(queue.url + "\n")
    monkeypatch.delenv("COUNTERSINK_REDIS_URL", raising=False)
    monkeypatch.setenv("COUNTERSINK_REDIS_URL_FILE", str(secret))
    monkeypatch.setenv("COUNTERSINK_PRODUCER_FLUSH_INTERVAL", "3600")
    monkeypatch.setenv("COUNTERSINK_PRODUCER_MAX_ROWS", "7")
    monkeypatch.setenv("COUNTERSINK_PRODUCER_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("COUNTERSINK_PRODUCER_HANDLE_SIGTERM", "no")
    with Producer.from_env() as producer:
        options = producer._options
        assert (options.flush_interval, options.max_rows) == (3600, 7)
        assert (options.spool, options.handle_sigterm) == (str(tmp_path / "spool"), False)
        producer.increment("hits")
    assert total(queue.client) == 1


def test_the_log_warns_once_of_a_variable_that_nothing_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_variables.cache_clear()
    monkeypatch.setenv("COUNTERSINK_REDIS_URL", "off://")
    for name in ("SPOL", "SPOOL", "MAX_ROWS_FILE", "NONE_SUCH"):
        monkeypatch.setenv(f"COUNTERSINK_PRODUCER_{name}", "")
    for _ in range(2):
        Producer.from_env()
    assert [text for text in caplog.messages if "not a setting" in text] == [
        "COUNTERSINK_PRODUCER_NONE_SUCH is not a setting",
        "COUNTERSINK_PRODUCER_SPOL is not a setting; did you mean COUNTERSINK_PRODUCER_SPOOL?",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("COUNTERSINK_REDIS_URL", "", "set COUNTERSINK_REDIS_URL"),
        ("COUNTERSINK_REDIS_URL_FILE", "/nonexistent/x", "are both set: unset one"),
        ("COUNTERSINK_PRODUCER_MAX_ROWS", "many", "MAX_ROWS must be a whole number, not 'many'"),
        ("COUNTERSINK_PRODUCER_FLUSH_INTERVAL", "1s", "FLUSH_INTERVAL must be a number of seconds"),
        ("COUNTERSINK_PRODUCER_HANDLE_SIGTERM", "maybe", "HANDLE_SIGTERM must be true or false"),
        ("COUNTERSINK_PRODUCER_MAX_ROWS", "0", "max_rows must be at least 1"),
        ("COUNTERSINK_PRODUCER_MAX_ROWS_FILE", "/x", "cannot read /x"),
        ("COUNTERSINK_PRODUCER_MAX_ROWS_FILE", sys.executable, "it is not UTF-8"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv("COUNTERSINK_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=said):
        Producer.from_env()


def test_a_question_that_fails_leaves_no_other_without_an_answer(redis_url: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return go_on.wait(10)

    with Producer(redis_url) as producer, ThreadPoolExecutor() as callers:
        ask = producer._fold_thread.ask
        producer.increment("hits")
        held = callers.submit(ask, hold, 10)
        assert begun.wait(10)
        failing = callers.submit(ask, lambda: 1 // 0, 0.5)
        eventually(lambda: producer._fold_thread._wakeups.qsize() == 1)
        answered = callers.submit(ask, lambda: "an answer", 5)
        eventually(lambda: producer._fold_thread._wakeups.qsize() == 2)
        go_on.set()
        assert (held.result(), answered.result(), failing.result()) == (True, "an answer", None)


def test_a_question_is_answered_by_the_next_pass_if_folding_fails(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(redis_url) as producer, ThreadPoolExecutor() as callers:
        events, failures = producer._fold_thread._events, [MemoryError("once")]
        fold_all = events.fold_all

        def fail_once(allowed: Callable[[], int]) -> None:
            if failures:
                raise failures.pop()
            fold_all(allowed)

        monkeypatch.setattr(events, "fold_all", fail_once)
        producer.increment("hits")
        assert callers.submit(producer._fold_thread.ask, lambda: "an answer", 10).result()
        assert not failures
