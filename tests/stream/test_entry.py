"""The wire format, as a producer writes it and a worker reads it back."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.runtime.dead_letter import WHOLE_ENTRY
from countersink.runtime.limits import MAX_AMOUNT, MAX_MINUTE, MIN_AMOUNT, latest_minute
from countersink.stream.decode import Decoded, decode, decode_payload, decode_rows
from countersink.stream.entry import Delivery, id_for, new_entry_id
from tests.support.examples import examples

STREAM = "{countersink:0}:events"


def delivered(fields: dict[bytes, bytes]) -> Decoded:
    return decode(Delivery(STREAM, "1700000000000-0", tuple(fields.items())))


def whole_fault(fields: dict[bytes, bytes]) -> str:
    decoded = delivered(fields)
    assert decoded.rows == []
    (bad,) = decoded.bad
    assert bad.position == WHOLE_ENTRY
    return bad.reason


rows = st.lists(
    st.tuples(
        st.from_regex(r"[A-Za-z0-9_.:\-]{1,64}", fullmatch=True),
        st.text(max_size=63),
        st.integers(0, MAX_MINUTE),
        st.integers(MIN_AMOUNT, MAX_AMOUNT),
    )
)


@examples(few=25, many=100)
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_for_rows_are_read_or_set_apart(raw: bytes) -> None:
    good, _, bad = decode_rows(raw)
    assert good or bad or json.loads(raw) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@examples(few=25, many=100)
@given(st.lists(json_values | rows.flatmap(lambda r: st.sampled_from([*r, None])), max_size=8))
def test_every_item_is_either_a_row_or_set_apart_at_its_position(items: list[object]) -> None:
    good, seen, bad = decode_rows(json.dumps(items).encode())
    assert sorted([row[0] for row in good] + [b.position for b in bad]) == list(range(len(items)))
    assert set(seen) <= {row[0] for row in good}


@examples(few=25, many=100)
@given(st.dictionaries(st.sampled_from([b"v", b"id", b"at", b"rows", b"x"]), st.binary()))
def test_no_entry_makes_decoding_fail(fields: dict[bytes, bytes]) -> None:
    decoded = delivered(fields)
    assert len(decoded.id) == 32


def nested(depth: int) -> bytes:
    return b"[" * depth + b'"],["' + b"]" * depth


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (rb'["a","\ud800",1,1]', "bad_key"),
        (b'["a","\xff",1,1]', "bad_key"),
        (b'["a","",-1,1]', "bad_minute"),
        (b'["a","",1,1.5]', "bad_amount"),
        (b'["a","",1,%s]' % (b"9" * 5000), "bad_amount"),
        (b'["",1]', "not_a_row"),
        (nested(500), "not_a_row"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_one_bad_row_leaves_the_others(row: bytes, reason: str) -> None:
    good, _, bad = decode_rows(b'[["a","",1,1], ' + row + b' ,["a",",]\\"[",1,2]]')
    assert good == [(0, "a", "", 1, 1), (2, "a", ',]"[', 1, 2)]
    assert [(b.position, b.reason) for b in bad] == [(1, reason)]
    if reason == "bad_key" and row.isascii():
        assert bad[0].payload == row


def test_an_event_more_than_a_year_ahead_is_set_apart() -> None:
    """Of now, or of when its entry was sent, whichever is later."""
    latest = latest_minute()
    raw = f'[["a","",{latest - 1},1],["b","",{latest + 2},1],["c",{{"d":"e"}},{latest + 2},1]]'
    good, _, bad = decode_rows(raw.encode())
    assert [row[0] for row in good] == [0]
    assert [(one.position, one.reason) for one in bad] == [(1, "bad_minute"), (2, "bad_minute")]
    assert "366 days" in bad[0].detail
    good, _, bad = decode_rows(raw.encode(), int(time.time() * 1000) + 180_000)
    assert (len(good), bad) == (3, [])


def test_whole_entry_faults_have_their_reason() -> None:
    rows = b'[["a","",1,1]]'
    assert whole_fault({b"foo": b"bar"}) == "bad_entry"
    assert whole_fault({b"rows": b"[["}) == "bad_entry"
    assert whole_fault({b"rows": b"[" * 200_000}) == "bad_entry"
    assert whole_fault({b"rows": b'[["a","",1,1],%s]' % nested(100_000)}) == "bad_entry"
    assert whole_fault({b"rows": b"{}"}) == "bad_entry"
    assert whole_fault({b"rows": b" " * (4 * 1024 * 1024 + 1)}) == "too_large"
    assert whole_fault({b"rows": b"[" + b"0," * 10_000 + b"0]"}) == "too_many_rows"
    assert whole_fault({b"rows": rows, b"v": b"4"}) == "newer_version"
    assert whole_fault({b"rows": rows, b"v": b"x"}) == "bad_entry"
    assert whole_fault({b"rows": rows, b"id": b"12"}) == "bad_entry"
    assert whole_fault({b"rows": rows, b"at": b"-1"}) == "bad_entry"
    assert whole_fault({b"rows": rows, b"at": b"9" * 15}) == "bad_entry"


def test_a_dead_entry_of_a_newer_version_is_not_read_by_the_rules_of_this_one() -> None:
    rows = b'[["a","",1,1]]'
    (bad,) = delivered({b"v": b"4", b"rows": rows, b"x": b"\xff"}).bad
    again, _, still = decode_payload(bad.payload)
    assert (again, still[0].reason) == ([], "newer_version")
    assert decode_payload(bad.payload.replace(b'"v":"4"', b'"v":"1"')) == (
        [(0, "a", "", 1, 1)],
        {},
        [],
    )


@examples(few=25, many=100)
@given(st.binary() | st.just(b"{" * 100_000) | st.just(b'{"rows":5}'))
def test_no_payload_makes_decoding_fail(payload: bytes) -> None:
    good, _, bad = decode_payload(payload)
    assert good or bad or json.loads(payload) == []


def test_missing_fields_have_their_defaults() -> None:
    decoded = delivered({b"rows": b'[["a","k",5,7]]'})
    assert decoded.at == 1_700_000_000_000
    assert decoded.rows == [(0, "a", "k", 5, 7)]
    assert decoded.id == delivered({b"rows": b'[["a","k",5,7]]'}).id
    assert decoded.id != delivered({b"rows": b'[["a","k",5,8]]'}).id


def test_an_id_is_kept_whatever_else_there_is() -> None:
    for more in ({}, {b"trace": b"x"}, {b"v": b"4"}):
        decoded = delivered({b"rows": b"[]", b"id": b"AB" * 16, **more})
        assert decoded.id == "ab" * 16
        assert bool(decoded.bad) == (b"v" in more)


def test_entry_ids_are_ordered_by_time_and_never_repeat() -> None:
    ids = [new_entry_id(ms) for ms in (1, 2, 2, 3)]
    assert ids[0] < min(ids[1:3]) <= max(ids[1:3]) < ids[3]
    assert len({new_entry_id(5) for _ in range(10_000)}) == 10_000


def test_an_id_of_the_apps_own_depends_on_all_its_parts() -> None:
    assert id_for("s", "c", "1") == id_for("s", "c", "1")
    parts = [
        ("s", "c", "1"),
        ("sc", "", "1"),
        ("", "sc", "1"),
        ("s", "c1", ""),
        ("s", "c", "\ud800"),
    ]
    assert len({id_for(*p) for p in parts}) == len(parts)
