"""What a producer refuses at once, and what it lets through."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from countersink.runtime import limits

GOOD: list[tuple[Callable[[Any], object], list[object]]] = [
    (limits.check_counter, ["a", "page_views", "shop:eu.orders-2026", "0", "x" * 64]),
    (limits.check_key, ["", "a", "a ", "A", "\x00", "a\nb", "é", "e\u0301", "\U0001f600"]),
    (limits.check_key, ["x" * 255, "é" * 127 + "x"]),
    (limits.check_amount, [0, 1, -1, 2**63 - 1, -(2**63)]),
]
EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
OUT_OF_RANGE = [
    *(datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=EAST)),
    datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    *(datetime(9999, 12, 26, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=WEST)),
]
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - the naive one is the point
NO_NAMES = ["", "x" * 65, "a b", "a\n", "é", "a;DROP TABLE", "a/b", "a`b", "١", "x" * 10_000]
NO_AMOUNTS = [True, False, 1.0, float("nan"), Decimal(1), "1", None]
Refusal = tuple[Callable[[Any], object], type[Exception], str, Sequence[object]]
BAD: list[Refusal] = [
    (limits.check_counter, ValueError, "use 1 to 64 characters of A-Z a-z 0-9", NO_NAMES),
    (limits.check_counter, TypeError, "a counter name is a str, not", [None, b"a", 1, ["a"]]),
    (limits.check_key, ValueError, "lone surrogate", ["\ud800", "a\udfff", "x" * 300 + "\ud800"]),
    (limits.check_key, TypeError, "a key is a str, not", [None, b"a", 1, 1.0]),
    (limits.check_amount, ValueError, "signed 64-bit", [2**63, -(2**63) - 1, 10**100]),
    (limits.check_amount, TypeError, "an amount is an int, not", NO_AMOUNTS),
    (limits.minute_of, ValueError, "between 1970-01-01 and 9999-12-25", OUT_OF_RANGE),
    (limits.minute_of, ValueError, "needs a time zone", [NAIVE]),
    (limits.minute_of, TypeError, "is an aware datetime", [None, 0, "2026-01-01", 1.5]),
]


@pytest.mark.parametrize(("check", "values"), GOOD)
def test_what_is_good_is_returned_as_it_is(
    check: Callable[[Any], object], values: list[object]
) -> None:
    for value in values:
        assert check(value) == value


@pytest.mark.parametrize(("check", "error", "message", "values"), BAD)
def test_what_is_not_is_refused_in_a_few_words(
    check: Callable[[Any], object], error: type[Exception], message: str, values: Sequence[object]
) -> None:
    for value in values:
        with pytest.raises(error, match=message) as caught:
            check(value)
        assert len(str(caught.value)) < 300


def test_the_minute_of_an_event_time_is_whole_and_in_utc() -> None:
    east = timezone(timedelta(hours=5, minutes=45))
    assert limits.minute_of(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert limits.minute_of(datetime(1970, 1, 2, 0, 0, 59, 999_999, tzinfo=UTC)) == 1440
    assert limits.minute_of(datetime(1970, 1, 1, 5, 46, tzinfo=east)) == 1


def test_a_year_of_the_future_is_taken() -> None:
    now = datetime.now(UTC)
    ahead = limits.minute_of(now + timedelta(days=366) - timedelta(minutes=1))
    assert ahead == round(now.timestamp() // 60) + limits.MAX_AHEAD - 1
    for days in (367, 3_000_000 - now.toordinal()):
        with pytest.raises(ValueError, match="at most 366 days ahead"):
            limits.minute_of(now + timedelta(days=days))
    assert limits.latest_minute(limits.MAX_MINUTE * 60_000) == limits.MAX_MINUTE
    assert limits.latest_minute(4_000_000_000_000) == 66_666_666 + limits.MAX_AHEAD
