"""The form in which a long key is counted."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.runtime.limits import check_key, cut_bytes, cut_key
from tests.support.examples import examples

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
