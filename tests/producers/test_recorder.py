"""Producers without Redis: ``memory://`` for tests of applications, ``off://``."""

from datetime import UTC, datetime

import pytest

from countersink.producers import Increment, Producer
from countersink.producers.recorder import _warn
from tests.producers.helpers import play
from tests.support.producing import recorder

AT = datetime(2026, 11, 21, tzinfo=UTC)


def test_it_remembers_what_was_counted() -> None:
    with recorder() as producer:
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


def test_a_long_key_is_asked_for_as_it_was_counted() -> None:
    with Producer("memory://long") as producer:
        producer.increment("c", "x" * 300)
        assert producer.count("c", "x" * 300) == 1
        assert producer.count("c", "x" * 301) == 0


def test_the_same_id_counts_once_per_counter() -> None:
    producer = recorder()
    for _ in range(3):
        producer.increment("orders", id="order-1")
        producer.increment("refunds", id="order-1")
    assert producer.totals() == {("orders", ""): 1, ("refunds", ""): 1}


def test_failed_assertions_show_both_sides() -> None:
    producer = recorder()
    producer.assert_nothing_counted()
    producer.increment("hits", "a")
    with pytest.raises(AssertionError, match=r"counted \{'a': 1\}, expected \{'b': 1\}"):
        producer.assert_counted("hits", {"b": 1})
    home = {"page": "/home", "country": "DE"}
    hits = r"counted \[\('a', 1\), \(\{'country': 'DE', 'page': '/home'\}, 2\)"
    producer.increment("hits", home, 2)
    producer.assert_counted("hits", [(dict(reversed(home.items())), 2), ("a", 1)])
    with pytest.raises(AssertionError, match=rf"{hits}\], expected \{{'': 3\}}"):
        producer.assert_counted("hits", {"": 3})
    with pytest.raises(AssertionError, match="expected nothing"):
        producer.assert_nothing_counted()
    producer.clear()
    producer.assert_nothing_counted()


def test_it_is_a_producer_that_is_closed_as_one_is() -> None:
    """So all that the real one refuses is refused here, by the same code."""
    producer = recorder()
    assert isinstance(producer, Producer)
    with pytest.raises(ValueError, match="key"):
        producer.increment_many("hits", {"good": 1, "\ud800": 1})
    producer.assert_nothing_counted()
    producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.increment("hits")


def test_producers_of_one_url_count_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of one Redis do: a test finds what a producer of the application has counted."""
    monkeypatch.setenv("COUNTERSINK_REDIS_URL", "memory://one-place")
    monkeypatch.setenv("COUNTERSINK_PRODUCER_SPOOL", "/nonexistent")  # neither read nor made
    of_app, of_test = Producer.from_env(), Producer("memory://one-place")
    other = Producer("memory://another")
    for producer in (of_app, of_test, other):
        producer.increment("orders", "paid", id="1")
        producer.increment("hits")
    assert of_test.totals() == {("orders", "paid"): 1, ("hits", ""): 2}
    assert of_app.stats().stored == 2
    of_app.close()
    of_test.clear()
    of_test.increment("orders", "paid", id="1")
    of_test.assert_counted("orders", {"paid": 1})
    other.assert_counted("hits", {"": 1})


def test_every_counter_may_have_members_and_no_thread_starts() -> None:
    producer = recorder()
    assert producer.counts_members("visitors")
    assert not producer.awaits_salt("visitors")
    producer.seen("visitors", "/", "ann")
    assert not producer._started


def test_a_child_that_is_forked_during_an_increment_counts() -> None:
    script = """
    import os, signal, threading
    from countersink.producers import Producer, recorder
    producer = Producer("memory://")
    held, forking = threading.Event(), threading.Event()
    def count():
        with recorder._lock:
            held.set()
            forking.wait()
    os.register_at_fork(before=forking.set)
    thread = threading.Thread(target=count)
    thread.start()
    held.wait()
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
        thread.join()
    else:
        signal.alarm(5)  # ends a child that waits for ever
    producer.increment("hits")
    assert producer.count("hits") == 1
    os._exit(0)
    """
    play(script)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "off://"])
def test_other_producers_cannot_be_asked(url: str) -> None:
    for question in (Producer.totals, Producer.assert_nothing_counted, Producer.clear):
        with Producer(url) as it, pytest.raises(RuntimeError, match="_URL=memory:// first"):
            question(it)


def test_a_producer_that_is_off_checks_what_it_gets_and_counts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COUNTERSINK_REDIS_URL", raising=False)
    with pytest.raises(ValueError, match=r"set COUNTERSINK_REDIS_URL .*memory:// in tests"):
        Producer.from_env()
    with pytest.raises(ValueError, match="missing must be 'error' or 'off', not 'warn'"):
        Producer.from_env(missing="warn")  # type: ignore[arg-type]
    producer = Producer.from_env(missing="off")
    producer.increment("hits", id="1")
    producer.seen("visitors", "/", "ann")
    assert producer.increment_batch([Increment("hits")])
    with pytest.raises(ValueError, match="counter name"):
        producer.increment("no spaces")
    assert producer.flush(applied=True)
    assert producer.stats().accepted == 0
    assert producer.close()
    monkeypatch.setenv("COUNTERSINK_REDIS_URL", "memory://set")
    assert Producer.from_env(missing="off").totals() == {}


def test_the_log_warns_once_that_increments_go_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    _warn.cache_clear()  # what other tests have seen
    for url in ("memory://", "memory://other", "off://", "memory://", "off://"):
        Producer(url)
    actions = [(record.levelname, vars(record)["action"]) for record in caplog.records]
    assert actions == [("WARNING", "memory"), ("WARNING", "off")]
    assert "memory:// is for tests" in caplog.text
    assert "COUNTERSINK_REDIS_URL is missing" in caplog.text
