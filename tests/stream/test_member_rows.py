"""Rows that bring members on the wire: six items, in entries of version 3."""

import json
from base64 import b64encode
from hashlib import blake2b

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from countersink.runtime.dimensions import check_row_key
from countersink.runtime.limits import MAX_AMOUNT, MAX_MINUTE, MIN_AMOUNT
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
from countersink.stream.decode import decode, decode_payload, decode_rows
from countersink.stream.entry import (
    MAX_MEMBERS_BYTES,
    MAX_ROW_BYTES,
    Delivery,
    Row,
    Sealed,
    encode_rows,
    new_entry_id,
)
from tests.stream.test_dimension_rows import COUNTERS, KEYS
from tests.support.examples import examples

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
        (f'"k",1,1,{salt},"AAAAAAAAAAE="', "bad_members", "number of a salt")
        for salt in ('"7"', "null", "7.0", "true", "-1", "4294967296", "9" * 5000)
    ),
    ('"k",1,-1,7,"AAAAAAAAAAE="', "bad_amount", "not negative"),
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
    assert json.loads(encode_salts(salts))[0] == [1, -(2**31), 10, "00" * 16]


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"{}",
        b"5",
        b"[5]",
        b'["a"]',
        b"[[1,2,3]]",
        b'[[1,2,3,"0"]]',
        b'[[1,"x",3,"00"]]',
        b"\xff",
    ],
)
def test_salts_that_are_none_are_as_missing(raw: bytes | None) -> None:
    assert decode_salts(raw) == []
