"""Batches: all of a batch or nothing of it, and under one id once."""

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from countersink.producers import Increment, InvalidBatch, Producer, engine
from countersink.stream.connection import connect
from countersink.stream.entry import id_for
from tests.producers.helpers import Queue, distinct, entries, total, totals
from tests.support.entries import together
from tests.support.factories import RedisFactory
from tests.support.producing import recorder
from tests.support.servers import RedisServer

AT = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
MINUTE = int(AT.timestamp()) // 60


def test_a_batch_without_an_id_coalesces_with_everything_else(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=60) as producer:
        for _ in range(3):
            assert producer.increment_batch(
                [
                    Increment("hits", "a", at=AT),
                    Increment("hits", "a", 4, at=AT),
                    Increment("hits", "b", -2, at=AT),
                    Increment("hits", "c", 2**62, at=AT),
                    Increment("clicks", amount=0, at=AT),
                ]
            )
        producer.increment("hits", "a", at=AT)
        assert producer.stats().accepted == 16
    (entry,) = entries(queue.client)
    assert Counter(dict(totals(queue.client))) == {
        ("hits", "a"): 16,
        ("hits", "b"): -6,
        ("hits", "c"): 3 * 2**62,
        ("clicks", ""): 0,
    }
    assert all(-(2**63) <= amount < 2**63 for *_, amount in entry.rows)


def test_a_batch_with_an_id_is_one_entry_under_that_id_wherever_it_is_sent(queue: Queue) -> None:
    batch = [Increment("hits", str(number), number, AT) for number in range(1_000)]
    for _ in range(2):  # two processes, say
        with Producer(queue.url, id_scope="shop", flush_interval=60) as producer:
            producer.increment("hits", "other")
            assert producer.increment_batch(batch, id="order 1")
            assert producer.increment_batch(batch, id="order 1")
            assert producer.increment_batch(batch[:2], id="order 2")
            assert producer.stats().accepted == 2_003
    by_id: dict[str, list[Any]] = {}
    for entry in entries(queue.client):
        by_id.setdefault(entry["id"], []).append(entry.rows)
    rows = [("hits", str(number), MINUTE, number) for number in range(1_000)]
    assert by_id.pop(id_for("shop", "order 1")) == [rows] * 4
    assert by_id.pop(id_for("shop", "order 2")) == [rows[:2]] * 2
    others = [row[:2] + row[3:] for (rows,) in by_id.values() for row in rows]
    assert others == [("hits", "other", 1)] * 2


def test_of_batches_under_one_id_the_first_is_the_first_that_is_sent(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=60) as producer:
        for amount in range(1, 6):
            producer.increment_batch([Increment("hits", "a", amount)], id="order")
    assert [row[3] for entry in entries(queue.client) for row in entry.rows] == [1, 2, 3, 4, 5]


def test_increments_of_a_batch_may_have_ids_of_their_own(queue: Queue) -> None:
    with Producer(queue.url, id_scope="shop") as producer:
        for _ in range(2):
            assert producer.increment_batch(
                [Increment("hits", "a", 5, id="one"), Increment("hits", "a", 7, id="two")]
            )
        producer.increment("hits", "a", 5, id="one")
    ids = {entry["id"] for entry in entries(queue.client)}
    assert ids == {id_for("shop", "hits", "one"), id_for("shop", "hits", "two")}


def test_the_id_of_a_batch_is_never_that_of_an_increment() -> None:
    assert len({id_for("s", "c", "i"), id_for("s", "i"), id_for("s", "1:c,1:i"), id_for("")}) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        Increment("no such name!"),
        Increment("hits", "\ud800"),
        Increment("hits", "", True),
        Increment("hits", at=AT.replace(tzinfo=None)),
        Increment("hits", id=""),
        ("hits",),
        {"counter": "hits"},
        {},
    ],
)
def test_one_that_cannot_be_lets_nothing_of_the_batch_be_counted(
    queue: Queue, wrong: Increment
) -> None:
    good = Increment("hits", "good")
    with Producer(queue.url) as producer:
        with pytest.raises(InvalidBatch) as caught:
            producer.increment_batch([good, wrong, good, wrong])
        assert [position for position, _ in caught.value.errors] == [1, 3]
        assert producer.stats().accepted == 0
    assert entries(queue.client) == []


def test_ids_and_sizes_that_cannot_be_are_refused(redis_url: str) -> None:
    one = Increment("hits")
    with Producer(redis_url) as producer:
        assert producer.increment_batch([])
        for id in ("", "x" * 1_001):
            with pytest.raises(ValueError, match="an id must have 1 to 1000 characters"):
                producer.increment_batch([one], id=id)
        with pytest.raises(TypeError):
            producer.increment_batch([one], id=7)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="at most 1,000"):
            producer.increment_batch([one] * 1_001)
        with pytest.raises(InvalidBatch, match="both have an id: give one"):
            producer.increment_batch([one, Increment("hits", id="mine")], id="all")
        assert producer.stats().accepted == 0
    with pytest.raises(RuntimeError, match="closed"):
        producer.increment_batch([one])


def test_what_was_accepted_is_stored_and_what_was_refused_is_not_whatever_comes_beside_it(
    own_redis_server: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "DRAINING_SECONDS", 0.1)
    server: RedisServer = own_redis_server()
    producer = Producer(server.url, max_rows_in_memory=2_000, flush_interval=0.05)
    server.freeze()
    accepted: list[Counter[str]] = [Counter() for _ in range(4)]
    refused = [0] * 4

    def batches(number: int) -> None:
        for turn in range(300):
            keys = [f"{number}:{turn}:{item}" for item in range(1 + turn % 7)]
            rows = [Increment("batches", key) for key in keys]
            if producer.increment_batch(rows, id=f"{number}:{turn}" if turn % 2 else None):
                accepted[number].update(keys)
            else:
                refused[number] += 1
            # What may be dropped takes the room that is left, but none that was promised.
            producer.increment("others", keys[0])

    together(*(partial(batches, number) for number in range(4)))
    assert any(refused), "the memory was to become full"
    assert producer.stats().pending_rows <= 2_000
    server.thaw()
    complete = producer.close(timeout=30)
    assert complete is (producer.stats().dropped == 0), "of the others some were dropped"
    assert producer.stats().pending_rows == 0
    with connect(server.url) as client:
        found = {key: n for (name, key), n in totals(client).items() if name == "batches"}
        assert found == dict(sum(accepted, Counter()))
        assert all(entry["v"] == "1" for entry in distinct(entries(client)))


def test_a_full_memory_takes_batches_again_once_redis_is_back(
    own_redis_server: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "DRAINING_SECONDS", 0.1)
    server: RedisServer = own_redis_server()
    with Producer(server.url, max_rows_in_memory=10, flush_interval=0.05) as producer:
        server.freeze()
        first = [Increment("hits", str(number)) for number in range(10)]
        assert producer.increment_batch(first, id="first")
        assert not producer.increment_batch([Increment("hits", "more")], id="more")
        assert not producer.increment_batch([Increment("hits", "0")])
        assert producer.stats().dropped == 0, "nothing was taken that could be dropped"
        server.thaw()
        assert producer.flush(timeout=30)
        assert producer.increment_batch([Increment("hits", "more")], id="more")
        assert producer.flush(timeout=30)
        with connect(server.url) as client:
            assert total(client) == 11


def test_batches_are_spooled_and_replayed_under_their_id(
    own_redis_server: RedisFactory, tmp_path: Any
) -> None:
    server: RedisServer = own_redis_server()
    batch = [Increment("hits", str(number)) for number in range(100)]
    server.stop()
    with Producer(server.url, spool=tmp_path, flush_interval=0.05) as producer:
        assert producer.increment_batch(batch, id="mine")
        assert producer.flush(timeout=10)
        assert producer.stats().spooled == 100
    server.start()
    with Producer(server.url, spool=tmp_path, flush_interval=0.05) as producer:
        assert producer.increment_batch(batch, id="mine")
        assert producer.flush(timeout=10, applied=False)
        with connect(server.url) as client:
            found = entries(client)
            assert {entry["id"] for entry in found} == {id_for("", "mine")}
            assert [len(entry.rows) for entry in found] == [100, 100]


def test_the_recording_producer_counts_a_batch_of_one_id_once() -> None:
    producer = recorder()
    for _ in range(2):
        assert producer.increment_batch([Increment("hits", "a"), Increment("hits", "b")], id="1")
        assert producer.increment_batch([Increment("hits", "c", id="1")])
    producer.assert_counted("hits", {"a": 1, "b": 1, "c": 1})
