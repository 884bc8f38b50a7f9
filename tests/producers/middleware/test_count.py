"""Keys are bounded in length and number, and nothing is ever raised."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.producers import Producer
from countersink.producers.middleware.count import BEYOND, KeyCounter, cut_name
from countersink.runtime.limits import MAX_KEY_BYTES, check_key
from tests.support.entries import together
from tests.support.examples import examples
from tests.support.producing import recorder

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=400)


@examples(few=25, many=100)
@given(before=ANY_TEXT, name=ANY_TEXT, after=ANY_TEXT)
def test_whatever_the_parts_are_it_counts_one(before: str, name: str, after: str) -> None:
    producer = recorder()
    KeyCounter(producer, "requests").add(before, name, after)
    assert producer.count("requests") == 1


def test_parts_are_one_key(producer: Producer) -> None:
    tally = KeyCounter(producer, "requests")
    tally.add("GET", "/users/{id}", "200")
    tally.add("GET", "/users/{id}", "200")
    tally.add("", "shop.charge", "failed")
    producer.assert_counted("requests", {"GET /users/{id} 200": 2, "shop.charge failed": 1})


@pytest.mark.parametrize("letter", ["a", "é", "汉", "🦉"])
def test_long_names_are_cut_between_characters_and_told_apart(letter: str) -> None:
    names = [cut_name(letter * 300), cut_name(letter * 300 + "!")]
    assert len(set(names)) == 2
    for name in names:
        assert name.startswith(letter * 10)
        assert check_key(key := f"{'b' * 26} {name} {'a' * 26}") == key
        assert len(key.encode()) <= MAX_KEY_BYTES
    assert cut_name("/" + "a" * 199) == "/" + "a" * 199


def test_names_beyond_the_limit_share_a_key_and_known_ones_go_on(
    producer: Producer,
) -> None:
    tally = KeyCounter(producer, "requests", max_names=2)
    for number in range(10_000):
        tally.add("GET", f"/{number}", "200")
    for _ in range(2):
        tally.add("GET", "/1", "200")
    tally.add("GET", "/1", "404")
    producer.assert_counted(
        "requests",
        {
            "GET /0 200": 1,
            "GET /1 200": 3,
            "GET /1 404": 1,
            f"GET {BEYOND} 200": 9_998,
        },
    )
    assert len(tally._keys) <= 3  # what clients ask for does not decide how much is remembered


def test_many_threads_count_exactly_and_within_the_limit(producer: Producer) -> None:
    tally = KeyCounter(producer, "requests", max_names=10)

    def count() -> None:
        for number in range(1_000):
            tally.add("GET", f"/{number % 50}", "200")

    together(*[count] * 4)
    assert producer.count("requests") == 4_000
    assert len(producer.totals()) == 11


def test_a_closed_producer_is_logged_once_and_never_raised(
    producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    tally = KeyCounter(producer, "requests")
    producer.close()
    with caplog.at_level(logging.INFO, "countersink.producers"):
        for _ in range(100):
            tally.add("GET", "/", "200")
    assert [record.__dict__["action"] for record in caplog.records] == ["internal_error"]


def test_misuse_is_raised_at_once() -> None:
    with pytest.raises(ValueError, match="counter name"):
        KeyCounter(recorder(), "no spaces")
    with pytest.raises(TypeError, match="counter name"):
        KeyCounter(recorder(), None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a Producer, not str"):
        KeyCounter("redis://localhost", "requests")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        KeyCounter(recorder(), "requests", max_names=0)


def test_parts_are_the_values_of_dimensions_that_name_them(producer: Producer) -> None:
    tally = KeyCounter(producer, "requests", dimensions={"page": "route", "code": "status"})
    for _ in range(3):
        tally.add("GET", "/users/{id}", "200")
    tally.add("POST", "/users/{id}", "404")
    tally.add("POST", "/caf\udce9" + "x" * 300, "200")
    assert producer.count("requests") == 5
    assert producer.count("requests", {"page": "/users/{id}"}) == 4
    assert producer.count("requests", {"page": "/users/{id}", "code": "404"}) == 1
    assert producer.count("requests", {"code": "200"}) == 4
    assert producer.count("requests", {"method": "GET"}) == 0


@pytest.mark.parametrize(
    ("dimensions", "error", "message"),
    [
        ({"page": "path"}, ValueError, "no field 'path'; the fields are method, route, status"),
        ({"page": ""}, ValueError, "no field ''"),
        ({"Page": "route"}, ValueError, "1 to 32 characters"),
        ({"key": "route"}, ValueError, "--by"),
        ({"page": 1}, TypeError, "a value is a str"),
        (["route"], TypeError, "a mapping of names to values"),
    ],
)
def test_dimensions_that_cannot_be_are_refused_at_once(
    producer: Producer, dimensions: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        KeyCounter(producer, "requests", dimensions=dimensions)
