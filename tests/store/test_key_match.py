"""Keys by prefix and substring: what SQL picks is what Python would pick, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from countersink.store import Store
from countersink.store.key_match import ANY, KeyMatch
from countersink.store.keys import key_bytes, key_text
from countersink.store.totals_sql import by_key
from tests.support.oracle import Oracle

KEYS = (
    *("", "a", "A", "ab", "a%", "a_", "a\\", "a'", "b", "ü", "u\u0308", "😀", "a ", " a", "\x00"),
    *(key_text(raw) for raw in (b"\xff", b"\xff\xff", b"\xff\xffz", b"a\xff", b"a\xffb")),
)


@pytest.fixture
def counted(mysql_url: str) -> Iterator[Store]:
    """A row for each of the keys."""
    with Oracle(mysql_url) as oracle:
        for number, key in enumerate(KEYS):
            oracle.rows(
                "INSERT INTO counter_slot VALUES"
                f" ('views', '2026-10-18', UNHEX('{key_bytes(key).hex()}'), 1, {number})"
            )
    with Store(mysql_url) as store:
        yield store


def test_sql_and_python_pick_the_same(counted: Store) -> None:
    parts = [*KEYS, "nothing", "\\", "%"]
    for match in (
        *(KeyMatch(prefix=part) for part in parts),
        *(KeyMatch(contains=part) for part in parts),
        *(KeyMatch(prefix="a", contains=part) for part in parts),
    ):
        found = counted.snapshot(partial(by_key, counter="views", match=match))
        assert {key for key, _ in found} == {key for key in KEYS if key in match}, match


def test_no_condition_is_no_condition() -> None:
    assert ANY.condition() == ("", ())
    assert all(key in ANY for key in KEYS)


def test_the_end_of_a_prefix() -> None:
    assert KeyMatch(prefix="a").condition()[1] == (b"a", b"b")
    assert KeyMatch(prefix=key_text(b"a\xff")).condition()[1] == (b"a\xff", b"b")
    assert KeyMatch(prefix=key_text(b"\xff\xff")).condition()[1] == (b"\xff\xff",)
