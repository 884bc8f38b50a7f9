"""Dimensions and composite keys: what is refused, and that keys can be read back and sort as their
values do."""

from datetime import date
from itertools import chain
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from countersink.cli.commands import read
from countersink.counting.totals.query import COLUMNS, DIMENSIONS, EXPORTED, Query
from countersink.counting.totals.selection import Selection
from countersink.runtime.dimensions import (
    MAX_DIMENSIONS,
    RESERVED,
    RowKey,
    check_dimensions,
    check_row_key,
    composite,
    part,
    values_of,
    width,
)
from countersink.runtime.limits import cut_key
from countersink.web.endpoints import totals
from tests.support.examples import examples

CHARACTERS = st.one_of(
    st.sampled_from("\0\1\2~ aé\U0001f600"), st.characters(exclude_categories=["Cs"])
)
TEXT = st.text(CHARACTERS, max_size=400)
SHORT = st.text(CHARACTERS, max_size=3)


def values(elements: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(elements, min_size=1, max_size=MAX_DIMENSIONS)


@pytest.mark.parametrize(
    ("key", "row_key"),
    [
        ("x" * 300, cut_key("x" * 300)),
        (MappingProxyType({"page": "/", "country": "DE"}), (("country", "DE"), ("page", "/"))),
        ({}, ""),
        ({"page": ""}, (("page", ""),)),  # its name is checked later
        ({"page": "é" * 200}, (("page", cut_key("é" * 200)),)),
        *(({name: "x"}, ((name, "x"),)) for name in ("a", "utm_source", "a1", "x" * 32)),
        (EIGHT := {f"d{number}": "x" for number in range(8)}, tuple(EIGHT.items())),
    ],
)
def test_a_row_key_is_a_text_or_a_mapping(key: Any, row_key: RowKey) -> None:
    assert check_row_key(key) == row_key


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ([("page", "/")], TypeError, "a key is a str or a mapping of dimensions, not list"),
        ({1: "x"}, TypeError, "a dimension's name is a str, not int"),
        ({"page": None}, TypeError, "dimension 'page': a value is a str, not NoneType"),
        (EIGHT | {"d8": "x"}, ValueError, "at most 8 dimensions, not 9"),
        ({"page": "a\ud800"}, ValueError, "lone surrogate"),
    ],
)
def test_what_is_none_is_refused(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_row_key(key)
    if not isinstance(key, dict):
        with pytest.raises(TypeError, match="a mapping of names to values, not"):
            check_dimensions(key)


@pytest.mark.parametrize(
    "name",
    ["", "x" * 33, "Page", "1a", "_a", "a-b", "a.b", "a b", "page\n", "é", "a=b", "a,b", "x" * 999],
)
def test_a_bad_name_says_what_is_allowed(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 32 characters of a-z 0-9 _") as caught:
        check_dimensions({name: "x"})
    assert len(str(caught.value)) < 250


def test_every_name_that_stands_beside_dimensions_in_an_answer_is_reserved() -> None:
    """Else a value of the dimension would be overwritten in JSON, CSV and tables."""
    every = Query(Selection("c"), by=DIMENSIONS, dimensions=(), unique=True).columns
    compared = Query(
        Selection("c", start=date(2026, 11, 21), end=date(2026, 11, 21)),
        by=DIMENSIONS,
        against_previous=True,
    ).columns
    used = {
        *Query(Selection(), by="key").columns,
        *every,
        *compared,
        *chain.from_iterable(COLUMNS.values()),
        *chain.from_iterable(EXPORTED.values()),
        *totals.TotalRow.__struct_fields__,
        *read.FIGURES,
        read.CHANGE,
    }
    assert {"counter", "total", "previous", "change", "also", "estimate", "low", "high"} <= used
    assert used <= RESERVED


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_words_of_by_and_columns_of_answers_are_no_names(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*--by"):
        check_dimensions({name: "x"})


@pytest.mark.parametrize(
    ("given_values", "key"),
    [
        (["/home"], "/home"),
        ([""], ""),
        (["/home", "DE"], "/home\0DE"),
        (["", "DE", ""], "\0DE\0"),
        (["a\0b", "c\1d"], "a\1\1b\0c\1\2d"),
    ],
)
def test_composite_keys_never_change_as_rows_stand_under_them(
    given_values: list[str], key: str
) -> None:
    assert composite(given_values) == key
    assert values_of(key) == tuple(given_values)


@examples(few=25, many=100)
@given(values(SHORT))
def test_a_composite_key_can_be_read_back(given_values: list[str]) -> None:
    assert values_of(composite(given_values)) == tuple(given_values)


@examples(few=25, many=100)
@given(st.data())
def test_keys_sort_as_their_values_do(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, MAX_DIMENSIONS))
    some = st.lists(SHORT, min_size=number, max_size=number)
    first, second = data.draw(some), data.draw(some)
    in_bytes = [[value.encode() for value in one] for one in (first, second)]
    keys = composite(first).encode(), composite(second).encode()
    assert (keys[0] < keys[1]) == (in_bytes[0] < in_bytes[1])
    assert (keys[0] == keys[1]) == (first == second)


@examples(few=25, many=100)
@given(st.lists(SHORT, min_size=2, max_size=MAX_DIMENSIONS), SHORT)
def test_a_prefix_finds_the_keys_with_a_first_value_and_no_others(
    given_values: list[str], wanted: str
) -> None:
    prefix = part(wanted, len(given_values)) + "\0"
    assert composite(given_values).startswith(prefix) == (given_values[0] == wanted)


@examples(few=25, many=100)
@given(values(TEXT))
@example(["\0" * 255])
@example(["\1" * 300, "é" * 200])
@example(["x" * 400] * 8)
def test_a_key_fits_the_column_and_is_cut_once(given_values: list[str]) -> None:
    key = composite(given_values)
    assert len(key.encode()) <= 255
    assert key.count("\0") == len(given_values) - 1
    assert composite(values_of(key)) == key


@examples(few=25, many=100)
@given(TEXT, values(TEXT), values(TEXT))
def test_a_value_has_one_form_whatever_the_others_are(
    value: str, some: list[str], others: list[str]
) -> None:
    count = min(len(some), len(others))
    first = values_of(composite([value, *some[1:count]]))[0]
    second = values_of(composite([value, *others[1:count]]))[0]
    assert first == second
    # A producer has cut it at 255 bytes; who asks for it may not have.
    assert part(cut_key(value), count) == part(value, count)


@examples(few=25, many=100)
@given(TEXT, st.integers(1, MAX_DIMENSIONS))
def test_a_value_that_fits_its_width_stays_whole(value: str, count: int) -> None:
    form = values_of(composite([value] * count))[0]
    escaped = value.replace("\1", "\1\2").replace("\0", "\1\1")
    assert (form == value) == (len(escaped.encode()) <= width(count))


def test_the_widths_are_those_that_are_documented() -> None:
    assert [width(count) for count in range(1, 9)] == [255, 127, 84, 63, 50, 41, 35, 31]


@pytest.mark.parametrize("key", ["\1", "a\1", "\1\3", "\0\0", "\1\1\1"])
def test_a_damaged_key_is_read_without_an_error(key: str) -> None:
    assert isinstance(values_of(key), tuple)
