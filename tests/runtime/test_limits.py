"""What a producer refuses at once, and what it lets through."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from countersink.runtime import limits
from countersink.runtime.limits import cut_key


@pytest.mark.parametrize("name", ["a", "page_views", "shop:eu.orders-2026", "0", "x" * 64])
def test_a_good_counter_name_is_returned(name: str) -> None:
    assert limits.check_counter(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 65, "a b", "a\n", "é", "a;DROP TABLE", "a/b", "a`b", "١", "x" * 10_000],
    ids=["empty", "65", "space", "newline", "accent", "sql", "slash", "backtick", "digit", "huge"],
)
def test_a_bad_counter_name_says_what_is_allowed(name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 64 characters of A-Z a-z 0-9") as caught:
        limits.check_counter(name)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", [None, b"a", 1, ["a"]])
def test_a_counter_name_of_another_type_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match="a counter name is a str, not"):
        limits.check_counter(name)


@pytest.mark.parametrize(
    "key",
    ["", "a", "a ", "A", "\x00", "a\nb", "é", "e\u0301", "\U0001f600", "x" * 255, "é" * 127 + "x"],
)
def test_a_good_key_is_returned_as_it_is(key: str) -> None:
    assert limits.check_key(key) == key


@pytest.mark.parametrize("key", ["x" * 256, "é" * 128, "\U0001f600" * 64, "x" * 1_000_000])
def test_a_key_over_255_bytes_is_cut(key: str) -> None:
    assert limits.check_key(key) == cut_key(key) != key


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", "x" * 300 + "\ud800"])
def test_a_lone_surrogate_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        limits.check_key(key)


@pytest.mark.parametrize("key", [None, b"a", 1, 1.0])
def test_a_key_of_another_type_is_refused(key: Any) -> None:
    with pytest.raises(TypeError, match="a key is a str, not"):
        limits.check_key(key)


@pytest.mark.parametrize("amount", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_good_amount_is_returned(amount: int) -> None:
    assert limits.check_amount(amount) == amount


@pytest.mark.parametrize("amount", [2**63, -(2**63) - 1, 10**100])
def test_an_amount_over_64_bits_is_refused(amount: int) -> None:
    with pytest.raises(ValueError, match="signed 64-bit"):
        limits.check_amount(amount)


@pytest.mark.parametrize("amount", [True, False, 1.0, float("nan"), Decimal(1), "1", None])
def test_an_amount_of_another_type_is_refused(amount: Any) -> None:
    with pytest.raises(TypeError, match="an amount is an int, not"):
        limits.check_amount(amount)


def test_the_minute_of_an_event_time_is_whole_and_in_utc() -> None:
    east = timezone(timedelta(hours=5, minutes=45))
    assert limits.minute_of(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert limits.minute_of(datetime(1970, 1, 2, 0, 0, 59, 999_999, tzinfo=UTC)) == 1440
    assert limits.minute_of(datetime(1970, 1, 1, 5, 46, tzinfo=east)) == 1


@pytest.mark.parametrize(
    "at",
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(9999, 12, 26, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12))),
    ],
)
def test_an_event_time_out_of_range_is_refused(at: datetime) -> None:
    with pytest.raises(ValueError, match="between 1970-01-01 and 9999-12-25"):
        limits.minute_of(at)


def test_the_future_is_taken() -> None:
    assert limits.minute_of(datetime(9999, 12, 25, 23, 59, tzinfo=UTC)) == limits.MAX_MINUTE


def test_a_naive_event_time_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        limits.minute_of(datetime(2026, 1, 1))  # noqa: DTZ001 - the naive one is the point


@pytest.mark.parametrize("at", [None, 0, "2026-01-01", 1.5])
def test_an_event_time_of_another_type_is_refused(at: Any) -> None:
    with pytest.raises(TypeError, match="an event time is an aware datetime"):
        limits.minute_of(at)
