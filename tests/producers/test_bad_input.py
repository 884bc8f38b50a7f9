"""Misuse raises at once, in the caller, and counts nothing."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from countersink.producers import Producer
from tests.producers.helpers import Queue, distinct, entries, totals

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
# What the message names: what raises a ValueError, what a TypeError, and the calls that do.
BAD: dict[str, tuple[Any, Any, tuple[Call, ...]]] = {
    "counter name": (
        *("white space", b"bytes"),
        (lambda p, bad: p.increment(bad), lambda p, bad: p.increment_many(bad, {"a": 1})),
    ),
    "key": (
        *("\ud800", (("a", "b"),)),
        (
            lambda p, bad: p.increment("warm", bad),
            lambda p, bad: p.increment_many("warm", {"good": 1, bad: 1}),
        ),
    ),
    "amount": (
        *(2**63, True),
        (
            lambda p, bad: p.increment("warm", "", bad),
            lambda p, bad: p.increment_many("warm", {"good": 1, "bad": bad}),
        ),
    ),
    "event time": (
        *(datetime(2026, 1, 1), "2026-01-01"),  # noqa: DTZ001
        (
            lambda p, bad: p.increment("warm", at=bad),
            lambda p, bad: p.increment("warm", "", 1, bad),
            lambda p, bad: p.increment_many("warm", {"a": 1}, at=bad),
        ),
    ),
    "an id": (
        *("", 7),
        (
            lambda p, bad: p.increment("warm", id=bad),
            lambda p, bad: p.increment("warm", "", 1, None, bad),
        ),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_raises(producer: Producer, what: str) -> None:
    """All that cannot be: `tests/runtime/test_limits.py`."""
    value, other, calls = BAD[what]
    for error, bad in ((ValueError, value), (TypeError, other)):
        for call in calls:
            with pytest.raises(error, match=what):
                call(producer, bad)
    with pytest.raises(TypeError, match="mapping"):
        producer.increment_many("warm", [("a", 1)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="counter name"):
        producer.increment(["list"])  # type: ignore[arg-type]


def test_every_good_key_name_and_amount_arrives_as_it_is(queue: Queue) -> None:
    with Producer(queue.url) as producer:
        for key in GOOD_KEYS:
            producer.increment("hits", key)
        producer.increment_many("many", dict.fromkeys(GOOD_KEYS, 2))
        for name in ("x" * 64, "A-Za-z0-9_.:-"):
            for amount in (0, -(2**63)):
                producer.increment(name, "", amount)
    assert totals(queue.client) == {
        ("x" * 64, ""): -(2**63),
        ("A-Za-z0-9_.:-", ""): -(2**63),
        **{("hits", key): 1 for key in GOOD_KEYS},
        **{("many", key): 2 for key in GOOD_KEYS},
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
    amounts = [row[3] for entry in distinct(entries(queue.client)) for row in entry.rows]
    assert all(-(2**63) <= amount < 2**63 for amount in amounts)


def test_wrong_urls_raise_without_the_password() -> None:
    for url in ("", "http://x", "localhost", "redis+cluster://h/1", "redis://:secret@h:port/0"):
        with pytest.raises(ValueError, match=r"Redis|redis") as raised:
            Producer(url)
        assert "secret" not in str(raised.value)
    with pytest.raises(TypeError):
        Producer(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"flush_interval": 0}, ValueError),
        ({"flush_interval": True}, TypeError),
        ({"max_rows": 0}, ValueError),
        ({"max_rows_in_memory": 1.5}, TypeError),
        ({"max_stream_length": True}, TypeError),
        ({"spool": ""}, ValueError),
        ({"id_scope": "x" * 65}, ValueError),
        ({"handle_sigterm": "yes"}, TypeError),
    ],
)
def test_bad_options_raise(option: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Producer("redis://127.0.0.1:1/0", **option)
