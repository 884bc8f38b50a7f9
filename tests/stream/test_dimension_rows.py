"""Rows with dimensions on the wire: objects in the place of keys, in entries of version 2."""

import json

import pytest
from hypothesis import strategies as st

from countersink.runtime.dimensions import MAX_DIMENSIONS, RESERVED, check_row_key
from countersink.stream.decode import decode_rows

TEXT = st.text(
    st.one_of(
        st.sampled_from('",[{:}]\\\0\1'),
        st.characters(exclude_categories=["Cs"], max_codepoint=999),
    ),
    max_size=12,
)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True).filter(
    lambda name: name not in RESERVED
)
KEYS = st.one_of(
    TEXT,
    st.sampled_from([",{", 'x",{', ",[[", 'x",[[', '"', "\\"]),
    st.dictionaries(NAMES, TEXT, max_size=MAX_DIMENSIONS).map(check_row_key),
)
COUNTERS = st.from_regex(r"[A-Za-z0-9_.:\-]{1,64}", fullmatch=True)


def test_the_order_of_names_on_the_wire_does_not_matter() -> None:
    raw = b'[["a",{"page":"/","country":"DE"},1,1],["a", {"country":"DE","page":"/"}, 1, 1]]'
    good, _, bad = decode_rows(raw)
    key = (("country", "DE"), ("page", "/"))
    assert (good, bad) == ([(0, "a", key, 1, 1), (1, "a", key, 1, 1)], [])


def test_an_empty_object_is_the_empty_key() -> None:
    assert decode_rows(b'[["a",{},1,1]]') == ([(0, "a", "", 1, 1)], {}, [])


BAD_KEYS = [
    ('{"page":1}', "a value is a str, not int"),
    ('{"page":{"a":"b"}}', "a value is a str, not dict"),
    ('{"page":"\\ud800"}', "lone surrogate"),
    ('{"Page":"/"}', "1 to 32 characters"),
    ('{"day":"/"}', "--by"),
    ('[["page","/"]]', "a str or a mapping of dimensions, not list"),
    ("null", "a str or a mapping of dimensions, not NoneType"),
    ("5", "a str or a mapping of dimensions, not int"),
]


@pytest.mark.parametrize(("key", "detail"), BAD_KEYS, ids=[key[:20] for key, _ in BAD_KEYS])
def test_bad_dimensions_make_a_dead_letter_of_their_row_alone(key: str, detail: str) -> None:
    raw = f'[["a",{{"page":"/"}},1,1],["a",{key},1,1],["a","",1,2]]'.encode()
    good, _, bad = decode_rows(raw)
    assert good == [(0, "a", (("page", "/"),), 1, 1), (2, "a", "", 1, 2)]
    assert [(each.position, each.reason) for each in bad] == [(1, "bad_key")]
    assert detail in bad[0].detail
    assert json.loads(bad[0].payload) == json.loads(f'["a",{key},1,1]')


def test_a_long_value_is_cut_on_its_way_in() -> None:
    raw = json.dumps([["a", {"page": "x" * 300}, 1, 1]]).encode()
    (row,), _, bad = decode_rows(raw)
    assert row[2] == check_row_key({"page": "x" * 300})
    assert bad == []


def test_many_good_rows_of_eight_dimensions_survive_a_bad_one() -> None:
    key = {f"d{number}": "x" for number in range(8)}
    items = [["a", key, 1, 1] for _ in range(9_999)]
    good, _, bad = decode_rows(json.dumps([*items, 5]).encode())
    assert len(good) == 9_999
    assert [each.reason for each in bad] == ["not_a_row"]
