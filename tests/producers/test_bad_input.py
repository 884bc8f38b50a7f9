"""Misuse raises at once, in the caller, and counts nothing."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from countersink.producers import Producer
from tests.producers.helpers import Queue, entries, totals

GOOD_KEYS = [
    "",
    "k" * 255,
    "é" * 127,
    "nul\0inside",
    "new\nline",
    "trailing ",
    "trailing",
    "🎉" * 63,
    "\u00e1",
    "a\u0301",
    "A",
    "a",
    '"\\',
    "\x7f",
]
GOOD_AMOUNTS = [0, -1, 2**63 - 1, -(2**63)]


@pytest.fixture(scope="module")
def opened() -> Iterator[Producer]:
    made = Producer("redis://127.0.0.1:1/0")
    yield made
    made.close(0)


@pytest.fixture
def producer(opened: Producer) -> Iterator[Producer]:
    opened.increment("warm", "")  # so that the fast way is tried too
    opened.increment("warm", "")
    accepted = opened.stats().accepted
    yield opened
    stats = opened.stats()
    assert (stats.accepted, stats.dropped) == (accepted, 0), "bad input counted"


Call = Callable[[Producer, Any], object]
BAD_TIMES = [
    datetime(2026, 1, 1),  # noqa: DTZ001
    *(datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
    *(datetime(1969, 12, 31, 23, 59, tzinfo=UTC), datetime(9999, 12, 26, tzinfo=UTC)),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
]
# What the message names: values that raise a ValueError, or a TypeError, in each of these calls.
BAD: dict[str, tuple[list[Any], list[Any], tuple[Call, ...]]] = {
    "counter name": (
        ["", "x" * 65, "white space", "new\n", "slash/", "ünïcode", "٣"],
        [None, b"bytes", 7, ["list"]],
        (lambda p, bad: p.increment(bad), lambda p, bad: p.increment_many(bad, {"a": 1})),
    ),
    "key": (
        ["\ud800", "ok\udfff"],
        [None, b"bytes", 7],
        (
            lambda p, bad: p.increment("warm", bad),
            lambda p, bad: p.increment_many("warm", {"good": 1, bad: 1}),
        ),
    ),
    "amount": (
        [2**63, -(2**63) - 1],
        [True, False, 1.0, Decimal(1), "1", None],
        (
            lambda p, bad: p.increment("warm", "", bad),
            lambda p, bad: p.increment_many("warm", {"good": 1, "bad": bad}),
        ),
    ),
    "event time": (
        BAD_TIMES,
        [1_700_000_000, "2026-01-01"],
        (
            lambda p, bad: p.increment("warm", at=bad),
            lambda p, bad: p.increment_many("warm", {"a": 1}, at=bad),
        ),
    ),
    "an id": (["", "x" * 1001], [7, b"id"], (lambda p, bad: p.increment("warm", id=bad),)),
    "mapping": (
        [],
        [[("a", 1)], None, "ab", {"a", "b"}],
        (lambda p, bad: p.increment_many("warm", bad),),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_raises(producer: Producer, what: str) -> None:
    values, others, calls = BAD[what]
    for error, bad in [
        *((ValueError, bad) for bad in values),
        *((TypeError, bad) for bad in others),
    ]:
        for call in calls:
            with pytest.raises(error, match=what):
                call(producer, bad)


def test_every_good_key_arrives_as_it_is(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        for key in GOOD_KEYS:
            producer.increment("hits", key)
        producer.increment_many("many", dict.fromkeys(GOOD_KEYS, 2))
    assert totals(queue.client) == {
        **{("hits", key): 1 for key in GOOD_KEYS},
        **{("many", key): 2 for key in GOOD_KEYS},
    }


def test_every_good_amount_and_counter_name_arrives(queue: Queue) -> None:
    names = ["x", "x" * 64, "A-Za-z0-9_.:-"]
    with Producer(queue.url) as producer:
        for name in names:
            for amount in GOOD_AMOUNTS:
                producer.increment(name, str(amount), amount)
    assert totals(queue.client) == {
        (name, str(amount)): amount for name in names for amount in GOOD_AMOUNTS
    }


def test_sums_beyond_64_bits_travel_as_several_rows(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        for _ in range(3):
            producer.increment("big", "up", 2**63 - 1)
            producer.increment("big", "down", -(2**63))
        producer.increment_many("big", {"up": 2**63 - 1, "down": -1})
        for _ in range(5):
            producer.increment("big", "up")
        assert producer.stats().accepted == 13
    assert totals(queue.client) == {
        ("big", "up"): 4 * (2**63 - 1) + 5,
        ("big", "down"): -3 * 2**63 - 1,
    }
    amounts = [row[3] for entry in entries(queue.client) for row in entry.rows]
    assert all(-(2**63) <= amount < 2**63 for amount in amounts)


@pytest.mark.parametrize(
    ("at", "minute"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 11, 21, 8, 0, 59, tzinfo=UTC), 29_920_800),
        (datetime(2026, 11, 21, 9, 0, 59, tzinfo=timezone(timedelta(hours=1))), 29_920_800),
        (datetime(2027, 11, 21, 23, 59, tzinfo=UTC), 30_447_359),
    ],
)
def test_event_times_from_1970_to_a_year_ahead(queue: Queue, at: datetime, minute: int) -> None:
    with Producer(queue.url) as producer:
        producer.increment("hits", at=at)
    (entry,) = entries(queue.client)
    assert entry.rows == [("hits", "", minute, 1)]


def test_wrong_urls_raise_without_the_password() -> None:
    for url in ("", "http://x", "localhost", "redis+cluster://h/1", "redis://:secret@h:port/0"):
        with pytest.raises(ValueError, match=r"Redis|redis") as raised:
            Producer(url)
        assert "secret" not in str(raised.value)
    with pytest.raises(TypeError):
        Producer(None)  # type: ignore[arg-type]


def test_repr_hides_the_password() -> None:
    with Producer("redis://user:secret@127.0.0.1:1/0") as producer:
        assert "secret" not in repr(producer)
        producer.close(timeout=0.05)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"flush_interval": 0}, ValueError),
        ({"flush_interval": float("nan")}, ValueError),
        ({"flush_interval": "1"}, TypeError),
        ({"flush_interval": True}, TypeError),
        ({"max_rows": 0}, ValueError),
        ({"max_rows_in_memory": 1.5}, TypeError),
        ({"max_stream_length": True}, TypeError),
        ({"spool": ""}, ValueError),
        ({"spool": 7}, TypeError),
        ({"spool_max_bytes": -1}, ValueError),
        ({"id_scope": "x" * 65}, ValueError),
        ({"handle_sigterm": "yes"}, TypeError),
    ],
)
def test_bad_options_raise(option: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Producer("redis://127.0.0.1:1/0", **option)
