"""The wire format, as a producer writes it and a worker reads it back: plain rows, rows with
dimensions, and those that bring members."""

import json
import time
from base64 import b64encode
from hashlib import blake2b

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from countersink.runtime.dead_letter import WHOLE_ENTRY
from countersink.runtime.dimensions import MAX_DIMENSIONS, RESERVED, check_row_key
from countersink.runtime.limits import MAX_AMOUNT, MAX_MINUTE, MIN_AMOUNT, latest_minute
from countersink.runtime.members import (
    MAX_HASHES,
    MAX_SALT_NUMBER,
    Salt,
    Seen,
    check_member,
    decode_salts,
    encode_salts,
    member_hash,
)
from countersink.stream.decode import Decoded, decode, decode_payload, decode_rows
from countersink.stream.entry import (
    MAX_MEMBERS_BYTES,
    MAX_ROW_BYTES,
    Delivery,
    Row,
    Sealed,
    encode_rows,
    id_for,
    new_entry_id,
)
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


# In any order, some of them twice: a union is the same.
HASHES = st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=5).map(b"".join)
PLAIN = st.tuples(
    *(COUNTERS, KEYS | st.text(max_size=63)),
    *(st.integers(0, 30_000_000), st.integers(MIN_AMOUNT, MAX_AMOUNT)),
)
MEMBERS = st.tuples(
    *(COUNTERS, KEYS, st.integers(0, 99), st.integers(0, 9), st.integers(0, MAX_SALT_NUMBER)),
    HASHES,
)
# Keys that look like the end of a row that brings members.
LOOK_ALIKES = st.tuples(
    COUNTERS,
    st.sampled_from(
        ['1,"AAAA"]', '"]', "]", '1,"', ",", "1,", '1,"AA"],["a"', {"a": '1,"AA"]'}]
    ).map(check_row_key),
    *(st.integers(0, 99), st.integers(-9, 9)),
)


@examples(few=25, many=100)
@given(st.lists(PLAIN | MEMBERS | LOOK_ALIKES, max_size=6))
@example([("a", '1,"AAAA"]', 1, 1), ("a", "]", 1, 1)])
@example([("a", ",{", 1, 1), ("b", 'x",{', 1, 1)])
def test_rows_come_back_as_they_were_sent(sent: list[Row]) -> None:
    raw = encode_rows(sent)
    good, seen, bad = decode_rows(raw)
    assert [row[1:] for row in good] == [row[:4] for row in sent]
    assert seen == {at: Seen(row[4], row[5]) for at, row in enumerate(sent) if len(row) == 6}
    assert bad == []


def test_the_bytes_of_an_entry_are_these_and_come_back() -> None:
    pairs = check_row_key({"page": "/é", "country": "DE"})
    members: Row = ("a", "k", 3, 4, 7, bytes(7) + b"\1" + b"\xff" * 8)
    sent: list[Row] = [("a", pairs, 3, 4), ("a", "é", 3, 4), members]
    sealed = Sealed(new_entry_id(1), 2, encode_rows(sent))
    rows = (
        '[["a",{"country":"DE","page":"/é"},3,4],["a","é",3,4],'
        '["a","k",3,4,7,"AAAAAAAAAAH//////////w=="]]'
    ).encode()
    assert sealed.fields() == {"v": 1, "id": sealed.id, "at": 2, "rows": rows}
    assert sealed.fields() == sealed.fields()
    fields = (b"v", b"1"), (b"rows", rows)
    for each in (fields, fields[1:]):  # without a version, too
        decoded = decode(Delivery("{countersink:0}:events", "1-0", each))
        assert [row[1:] for row in decoded.rows] == [row[:4] for row in sent]
        assert (decoded.seen, decoded.bad) == ({2: Seen(*members[4:])}, [])


def test_no_row_is_larger_than_is_reckoned_with() -> None:
    values = {f"d{number}".ljust(32, "x"): "\1" * 255 for number in range(8)}
    hashes = b"".join([number.to_bytes(8) for number in range(MAX_HASHES)])
    plain: Row = ("c" * 64, check_row_key(values), MAX_MINUTE, MIN_AMOUNT)
    assert MAX_ROW_BYTES - 1_000 < len(encode_rows([plain])) <= MAX_ROW_BYTES
    row: Row = (*plain[:3], 2**63 - 1, MAX_SALT_NUMBER, hashes)
    assert len(encode_rows([row])) <= MAX_ROW_BYTES + MAX_MEMBERS_BYTES


def test_whoever_writes_json_with_blanks_is_read() -> None:
    good, seen, bad = decode_rows(b'[ ["a", "k", 3, 4, 7, "AAAAAAAAAAE=" ] , ["a","",1,1] ]')
    assert good == [(0, "a", "k", 3, 4), (1, "a", "", 1, 1)]
    assert (seen, bad) == ({0: Seen(7, bytes(7) + b"\1")}, [])


def hashes_of(count: int) -> str:
    return b64encode(b"".join([number.to_bytes(8) for number in range(count)])).decode()


GOOD = '"k",1,1,7,"AAAAAAAAAAE="'
BAD = [
    *(
        (f'"k",1,1,7,{members}', "bad_members", "base64")
        for members in (
            *('"AAAAAAAAAAE"', '"AAAAAAAAA\\nAE="', '["AAAAAAAAAAE="]'),
            *('"é"', '"\\ud800"', "5", "null"),
        )
    ),
    ('"k",1,1,7,""', "bad_members", "not 0 bytes"),
    ('"k",1,1,7,"AAAA"', "bad_members", "not 3 bytes"),
    (f'"k",1,1,7,"{hashes_of(MAX_HASHES + 1)}"', "bad_members", "not 32776 bytes"),
    *(
        (f'"k",1,1,{salt},"AAAAAAAAAAE="', "bad_members", "salt number")
        for salt in ('"7"', "null", "7.0", "true", "-1", "4294967296", "9" * 5000)
    ),
    ('"k",1,-1,7,"AAAAAAAAAAE="', "bad_amount", "must not be below 0"),
    ('"k",1,9223372036854775808,7,"AAAAAAAAAAE="', "bad_amount", "64-bit"),
    ('"k",1,"1",7,"AAAAAAAAAAE="', "bad_amount", "not str"),
    ('"k",-1,1,7,"AAAAAAAAAAE="', "bad_minute", "1970"),
    ('"\\ud800",1,1,7,"AAAAAAAAAAE="', "bad_key", "surrogate"),
    ('{"Page":"/"},1,1,7,"AAAAAAAAAAE="', "bad_key", "characters"),
    ('"k",1,1,7', "not_a_row", "members"),
    (f"{GOOD},1", "not_a_row", "members"),
]


@pytest.mark.parametrize(("row", "reason", "detail"), BAD, ids=[row[:24] for row, _, _ in BAD])
def test_a_bad_row_is_a_dead_letter_of_its_own(row: str, reason: str, detail: str) -> None:
    raw = f'[["a",{GOOD}],["a",{row}],["a","",1,2]]'.encode()
    good, seen, bad = decode_rows(raw)
    assert good == [(0, "a", "k", 1, 1), (2, "a", "", 1, 2)]
    assert seen == {0: Seen(7, bytes(7) + b"\1")}
    assert [(each.position, each.reason) for each in bad] == [(1, reason)]
    assert detail in bad[0].detail
    assert decode_payload(b"[" + bad[0].payload + b"]")[2][0].reason == reason


def test_as_many_members_as_a_row_may_bring_are_read() -> None:
    _, seen, bad = decode_rows(f'[["a","k",1,0,7,"{hashes_of(MAX_HASHES)}"]]'.encode())
    assert (len(seen[0].hashes), bad) == (8 * MAX_HASHES, [])


def test_the_hash_is_this() -> None:
    salt = bytes(range(16))
    expected = blake2b("é".encode(), digest_size=8, key=salt).digest()
    assert member_hash(check_member("é"), salt) == expected
    assert member_hash(check_member("é".encode()), salt) == expected
    assert member_hash(check_member(""), salt) == blake2b(digest_size=8, key=salt).digest()


@pytest.mark.parametrize("member", [None, 5, bytearray(b"a"), ("a",), ["a"]])
def test_a_member_is_text_or_bytes(member: object) -> None:
    with pytest.raises(TypeError, match="a member is a str or bytes, not"):
        check_member(member)


def test_a_member_without_utf_8_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="lone surrogate") as caught:
        check_member("secret\ud800")
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_salts_come_back_as_they_were_published() -> None:
    salts = [Salt(1, -(2**31), 10, bytes(16)), Salt(MAX_SALT_NUMBER, 10, None, bytes(range(16)))]
    assert decode_salts(encode_salts(salts)) == salts
    assert decode_salts(b'[[1,Infinity,null,"00"]]') == []
    assert json.loads(encode_salts(salts))[0] == [1, -(2**31), 10, "00" * 16]


def test_salts_that_are_none_are_as_missing() -> None:
    for raw in (None, b"", b"{}", b"[5]", b"[[1,2,3]]", b'[[1,2,3,"0"]]', b"\xff"):
        assert decode_salts(raw) == []
