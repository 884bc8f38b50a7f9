"""What a producer refuses at once and what it lets through; how a long key is counted."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.runtime import limits
from countersink.runtime.limits import check_key, cut_bytes, cut_key
from tests.support.examples import examples

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
UNFINISHED = NAIVE.replace(tzinfo=tzinfo())  # type: ignore[abstract]
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
    (limits.minute_of, ValueError, "time zone of .*, a tzinfo, fails: NotImpl", [UNFINISHED]),
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


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:16]


@examples(few=25, many=100)
@given(TEXT)
def test_a_key_is_cut_to_255_bytes_at_a_character_with_a_digest_of_the_whole(key: str) -> None:
    form = check_key(key)
    assert form == cut_key(key)
    if len(key.encode()) <= 255:
        assert form == key
        return
    start, mark, end = form[:-17], form[-17], form[-16:]
    assert (mark, end) == ("~", digest(key))
    assert key.startswith(start)
    # As much of it as there is room for, to the last character.
    assert len(start.encode()) <= 238 < len(key[: len(start) + 1].encode())


@examples(few=25, many=100)
@given(st.one_of(TEXT.map(str.encode), st.binary(max_size=600)))
def test_bytes_and_text_are_cut_alike_and_once(key: bytes) -> None:
    form = cut_bytes(key)
    assert len(form) <= 255
    assert cut_bytes(form) == form
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return
    assert cut_key(text).encode() == form


@pytest.mark.parametrize(
    ("key", "start", "end"),
    [
        ("x" * 256, "x" * 238, "85e62acd750c4eb5"),
        ("é" * 128, "é" * 119, "e42dd264fd5cf1bc"),
        ("\U0001f600" * 64, "\U0001f600" * 59, "ddcaf348bb60ef25"),
    ],
)
def test_the_form_never_changes_as_rows_stand_under_it(key: str, start: str, end: str) -> None:
    assert cut_key(key) == f"{start}~{end}"


def test_bytes_that_are_no_text_lose_three_at_most() -> None:
    assert cut_bytes(b"\x80" * 256) == b"\x80" * 235 + b"~" + cut_bytes(b"\x80" * 256)[-16:]


def test_a_part_of_a_key_is_cut_in_the_same_way() -> None:
    assert cut_key("x" * 27, 26) == f"{'x' * 9}~{digest('x' * 27)}"
