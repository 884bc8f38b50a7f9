"""Increments with dimensions: what becomes of them on the wire, whatever way they take."""

import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
import redis

from countersink.producers import Increment, InvalidBatch, Producer
from countersink.producers.buffer import fold_thread
from countersink.runtime import dimensions
from countersink.runtime.dimensions import KnownDimensions, RowKey, check_dimensions, check_row_key
from countersink.stream.decode import decode_rows
from countersink.stream.entry import MAX_ROWS_BYTES
from tests.producers.helpers import Queue, distinct, entries
from tests.producers.test_increment import send_first
from tests.support.examples import MANY
from tests.support.producing import recorder
from tests.support.waiting import eventually

AWAY = "redis://127.0.0.1:1/0"
AT = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
HOME = {"page": "/home", "country": "DE"}
PAIRS = (("country", "DE"), ("page", "/home"))


def counted(client: redis.Redis) -> dict[tuple[str, RowKey], int]:
    """(counter, row key) → what a worker would count; every entry must be readable."""
    sums: Counter[tuple[str, RowKey]] = Counter()
    for entry in distinct(entries(client)):
        raw = entry["rows"].encode()
        rows, _, bad = decode_rows(raw)
        assert bad == []
        assert entry["v"] == "1"
        for _, counter, key, _, amount in rows:
            sums[counter, key] += amount
    return dict(sums)


def test_increments_with_the_same_values_become_one_row(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=60) as producer:
        send_first(producer)
        for _ in range(500):
            producer.increment("hits", {"page": "/home", "country": "DE"}, at=AT)
            producer.increment("hits", {"country": "DE", "page": "/home"}, at=AT)
        producer.increment("hits", HOME, -3, at=AT)
        producer.increment("hits", "/home", at=AT)
    _, entry = distinct(entries(queue.client))
    minute = int(AT.timestamp()) // 60
    rows, _, _ = decode_rows(entry["rows"].encode())
    assert [row[1:] for row in rows] == [
        ("hits", PAIRS, minute, 997),
        ("hits", "/home", minute, 1),
    ]


def test_an_empty_mapping_counts_under_the_empty_key(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        producer.increment("hits", {})
        producer.increment("hits")
    assert counted(queue.client) == {("hits", ""): 2}


def test_a_mapping_may_change_after_the_call(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        given = {"page": "a"}
        for value in "abcab":
            given["page"] = value
            producer.increment("hits", given)
        given["page"] = "never"
    assert counted(queue.client) == {
        ("hits", (("page", "a"),)): 2,
        ("hits", (("page", "b"),)): 2,
        ("hits", (("page", "c"),)): 1,
    }


def test_other_mappings_count_as_dicts_do_and_are_not_changed(queue: Queue) -> None:
    missing: defaultdict[str, str] = defaultdict(str, page="/home", other="x")
    with Producer(queue.url) as producer:
        for given in (HOME, MappingProxyType(HOME), OrderedDict(HOME), defaultdict(str, HOME)):
            producer.increment("hits", given)
            producer.increment("hits", given)
        producer.increment("hits", missing)
    assert counted(queue.client) == {
        ("hits", PAIRS): 8,
        ("hits", (("other", "x"), ("page", "/home"))): 1,
    }
    assert dict(missing) == {"page": "/home", "other": "x"}


BAD: list[tuple[Any, type[Exception], str]] = [
    ({"page": 1}, TypeError, "dimension 'page': a value is a str, not int"),
    ({"Page": "/"}, ValueError, "1 to 32 characters"),
    ({"page": "\ud800"}, ValueError, "lone surrogate"),
    (PAIRS, TypeError, "a key is a str or a mapping of dimensions, not tuple"),
]


@pytest.mark.parametrize(("key", "error", "message"), BAD)
def test_what_is_no_mapping_of_names_to_values_is_refused_in_the_caller(
    queue: Queue, key: Any, error: type[Exception], message: str
) -> None:
    with Producer(queue.url) as producer:
        for _ in range(2):  # the second time, other mappings of the counter are known
            with pytest.raises(error, match=message):
                producer.increment("hits", key)
            with pytest.raises(InvalidBatch, match=message):
                producer.increment_batch([Increment("hits", HOME), Increment("hits", key)])
            producer.increment("hits", HOME)
            producer.increment("hits", {"page": "/"})
    assert counted(queue.client) == {("hits", PAIRS): 2, ("hits", (("page", "/"),)): 2}


@pytest.mark.random
def test_random_increments_of_all_ways_add_up(queue: Queue) -> None:
    rng = random.Random(7)
    expected: Counter[tuple[str, RowKey]] = Counter()

    def key() -> str | dict[str, str]:
        if rng.random() < 0.3:
            return rng.choice(["", "/home", ",{", 'x",{'])
        names = rng.sample(["page", "country", "device", "plan"], rng.randint(0, 4))
        return {name: rng.choice(["", "a", "b", "\0", "é", "x" * 300]) for name in names}

    with Producer(queue.url, flush_interval=0.05) as producer:
        for number in range(3_000 if MANY else 1_000):
            counter, given = rng.choice(["hits", "views"]), key()
            amount = rng.choice([1, 1, 1, 5, -2])
            way = rng.randrange(4)
            if way == 0:
                batch = [Increment(counter, key(), amount, rng.choice([None, AT]))]
                batch.append(Increment(counter, given, 1, id=f"{number}"))
                assert producer.increment_batch(batch)
                expected[counter, check_row_key(batch[0].key)] += amount
                amount = 1
            elif way == 1:
                assert producer.increment_batch([Increment(counter, given, amount)], id=f"{number}")
            elif way == 2:
                producer.increment(counter, given, amount, id=f"own-{number}")
            else:
                producer.increment(counter, given, amount, at=rng.choice([None, AT]))
            expected[counter, check_row_key(given)] += amount
    assert counted(queue.client) == dict(expected)


@pytest.fixture
def few_known(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many mappings are known at most in this test."""
    monkeypatch.setattr(dimensions, "MOST_KNOWN", 1_000)
    return 1_000


def test_more_values_than_are_known_add_up(queue: Queue, few_known: int) -> None:
    with Producer(queue.url, max_rows=100_000) as producer:
        for number in range(few_known + 500):
            given = {"page": str(number % (few_known + 200)), "country": "DE"}
            producer.increment("hits", given)
            producer.increment("hits", given)
        producer.increment("hits", {"page": "0"})
    found = counted(queue.client)
    assert len(found) == few_known + 201
    assert sum(found.values()) == 2 * (few_known + 500) + 1
    assert found["hits", (("country", "DE"), ("page", "3"))] == 4


def test_what_is_known_is_bounded(few_known: int) -> None:
    known = KnownDimensions()
    tables: dict[int, dict[Any, Any]] = {}
    for number in range(3 * few_known):
        given = {f"d{number % 7}": str(number), "e": "x"}
        for _ in range(2):  # names become known, then values
            assert known.row_key(f"c{number % 11}", given) == check_dimensions(given)
        tables |= {id(row[1]): row[1] for rows in known.by_counter.values() for row in rows}
        assert sum(map(len, tables.values())) <= few_known or len(tables) > 8
    there = {id(row[1]) for rows in known.by_counter.values() for row in rows}
    assert sum(len(table) for at, table in tables.items() if at in there) <= few_known


def test_known_dimensions_wake_an_idle_producer_and_are_refused_by_a_closed_one(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IDLE_AFTER_SECONDS", "IDLE_FOLD_SECONDS"):
        monkeypatch.setattr(fold_thread, name, 0.1)
    given, row = {"page": "/", "country": "DE"}, (("country", "DE"), ("page", "/"))
    with Producer(queue.url, flush_interval=0.01) as producer:
        events = producer._events
        for _ in range(2):
            for _ in range(3):
                producer.increment("hits", given)
            eventually(lambda: not events.fast and not events.fast_dimensions)
        producer.increment("hits", given)
        eventually(lambda: counted(queue.client) == {("hits", row): 7})
        producer.increment("hits", given)
    with pytest.raises(RuntimeError, match="closed"):
        producer.increment("hits", given)
    assert counted(queue.client) == {("hits", row): 8}


def test_the_largest_rows_are_sent_in_entries_that_are_read(queue: Queue) -> None:
    worst = [
        {f"d{n}".ljust(32, "x"): f"{row:03}".ljust(255, "\1") for n in range(8)}
        for row in range(700)
    ]
    with Producer(queue.url, flush_interval=60, max_bytes_in_memory=1 << 28) as producer:
        producer.increment("first")
        assert producer.flush(20)
        for given in worst:
            producer.increment("hits", given, at=AT)
    _, *found = distinct(entries(queue.client))
    assert max(len(entry["rows"].encode()) for entry in found) <= MAX_ROWS_BYTES
    assert len(found) > 1
    assert len(counted(queue.client)) == 701


def test_a_batch_with_an_id_that_no_entry_would_hold_is_refused(queue: Queue) -> None:
    def batch(rows: int) -> list[Increment]:
        return [
            Increment(
                "hits", {f"d{n}".ljust(32, "x"): f"{row:03}".ljust(255, "\1") for n in range(8)}
            )
            for row in range(rows)
        ]

    with Producer(queue.url, max_bytes_in_memory=1 << 28) as producer:
        with pytest.raises(ValueError, match=r"at most 4,194,304 bytes: split it"):
            producer.increment_batch(batch(1_000), id="a")
        assert producer.increment_batch(batch(300), id="b")
    assert sum(counted(queue.client).values()) == 300


def test_the_recording_producer_counts_by_some_of_the_values() -> None:
    producer = recorder()
    producer.increment("hits", HOME)
    producer.increment("hits", {"page": "/home", "country": "FR"}, 4)
    producer.increment_batch([Increment("hits", {"page": "x" * 300})])
    producer.increment("hits", "/home", 10)
    producer.increment("hits", amount=100)
    wanted: list[tuple[str | Mapping[str, str] | None, int]] = [
        (None, 116),
        ("", 106),
        ("/home", 10),
        ({"page": "/home"}, 5),
        ({"page": "/home", "country": "FR"}, 4),
        ({"page": "x" * 300}, 1),
        ({"page": "/home", "device": ""}, 5),
        ({"country": ""}, 101),
        ({"country": "IT"}, 0),
    ]
    for key, total in wanted:
        assert producer.count("hits", key) == total, key
    dimensioned: list[tuple[str | Mapping[str, str], int]] = [
        (HOME, 1),
        ({"page": "/home", "country": "FR"}, 4),
        ({"page": "x" * 300}, 1),
    ]
    producer.assert_counted("hits", [*dimensioned, ("/home", 10), ("", 100)])
