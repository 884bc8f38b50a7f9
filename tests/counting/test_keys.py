"""Keys are bytes: what looks alike stays apart, and what SQL picks by prefix and substring is what
Python would pick."""

import unicodedata
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.counting.apply.applier import Applier
from countersink.counting.totals import sums
from countersink.counting.totals.answer import answer
from countersink.counting.totals.query import Query
from countersink.counting.totals.selection import ANY, KeyMatch, Selection, wanted_keys
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.totals.sums import by_key
from countersink.database.session import Session
from countersink.runtime.limits import key_bytes, key_text
from countersink.store import Store
from tests.support.asking import exported
from tests.support.entries import entry, keys, rows
from tests.support.examples import examples
from tests.support.ledger import post_planted
from tests.support.oracle import Oracle

LOOKALIKES = [
    "",
    " ",
    "a",
    "A",
    "a ",
    " a",
    "a\0",
    "a\n",
    "á",
    unicodedata.normalize("NFD", "á"),
    "ß",
    "ss",
    "\N{GRINNING FACE}",
    "\0",
    "\\'",
    "%s",
    "_",
    "k" * 255,
    "é" * 127,
    "\N{GRINNING FACE}" * 63,
    "\u200b",
]


def test_keys_that_look_alike_are_counted_apart(session: Session, applier: Applier) -> None:
    counted = {key: number + 1 for number, key in enumerate(LOOKALIKES)}
    assert len(counted) == len(LOOKALIKES)
    applier.apply([entry(rows(*counted.items()))])
    applier.apply([entry(rows(*counted.items()))])
    assert keys(session) == {key.encode(): 2 * amount for key, amount in counted.items()}
    doubled = {key: 2 * amount for key, amount in counted.items()}
    assert sums.many(Snapshot(session), Selection("views", keys=LOOKALIKES)) == doubled
    assert dict(sums.by_key(Snapshot(session), Selection("views"))) == doubled
    for key, amount in doubled.items():
        assert sums.total(Snapshot(session), Selection("views", keys=[key])) == amount, repr(key)


def test_undecodable_bytes_come_back_as_they_are(session: Session, applier: Applier) -> None:
    applier.apply([entry(rows(("\ufffd", 1)))])
    session.execute("UPDATE counter_slot SET counter_key = %s", (b"\xff\xfe",))
    ((key, amount),) = sums.by_key(Snapshot(session), Selection("views"))
    assert (key, amount) == ("\udcff\udcfe", 1)
    assert sums.many(Snapshot(session), Selection("views", keys=[key])) == {key: 1}


def test_names_are_case_sensitive(session: Session, applier: Applier) -> None:
    applier.apply([entry(rows(("k", 1))), entry(rows(("k", 2), counter="Views"))])
    found = answer(Snapshot(session), Query(Selection(), by="counter"))
    assert found.rows == [("Views", 2), ("views", 1)]


@examples(few=10, many=40)
@given(chosen=st.sets(st.text(st.characters(codec="utf-8"), max_size=60), min_size=1, max_size=20))
def test_any_text_is_a_key(session: Session, applier: Applier, chosen: set[str]) -> None:
    counter = f"c{session.query('SELECT COUNT(*) FROM applied_entry')[0][0]}"
    content = dict.fromkeys(chosen, 3)
    applier.apply([entry(rows(*content.items(), counter=counter))])
    assert dict(sums.by_key(Snapshot(session), Selection(counter))) == content


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
                "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES"
                f" ('views', '2026-10-18', UNHEX('{key_bytes(key).hex()}'), 1, {number})"
            )
        post_planted(oracle)
    with Store(mysql_url) as store:
        yield store


def test_sql_and_python_pick_the_same(counted: Store) -> None:
    parts = [*KEYS, "nothing", "\\", "%"]
    for match in (
        *(KeyMatch(prefix=part) for part in parts),
        *(KeyMatch(contains=part) for part in parts),
        *(KeyMatch(prefix="a", contains=part) for part in parts),
        *(KeyMatch(exclude_keys=[part, "a"]) for part in parts),
        *(KeyMatch(exclude_prefix=[part, "b"]) for part in parts if part),
        *(KeyMatch(prefix=[part, "ü"], keys=["b"], exclude_prefix="a") for part in parts if part),
    ):
        found = counted.snapshot(
            partial(
                lambda session, match: by_key(Snapshot(session), Selection("views", keys=match)),
                match=match,
            )
        )
        assert {key for key, _ in found} == {key for key in KEYS if key in match}, match


@pytest.mark.parametrize(
    "chosen",
    [("a", "b", "nobody's"), (), KeyMatch(prefix="a"), KeyMatch(keys=["b"], exclude_prefix="a")],
)
def test_exports_hold_the_keys_that_are_chosen(
    counted: Store, chosen: tuple[str, ...] | KeyMatch
) -> None:
    wanted = {key: number for number, key in enumerate(KEYS) if key in chosen}
    selection = Selection("views", keys=chosen)
    for by in ("key", "key-day", "key-month", "total"):
        rows = counted.snapshot(partial(exported, by=by, selection=selection))
        if by == "total":
            assert sum(total for (total,) in rows) == sum(wanted.values())
        else:
            assert {row[-2]: row[-1] for row in rows} == wanted, by


def test_keys_and_a_match_are_put_together() -> None:
    assert wanted_keys(None, None) is None
    assert wanted_keys("a", None) == ["a"]
    assert wanted_keys(None, ["a", "b"], KeyMatch(exclude_keys=["b"])) == ["a"]
    assert wanted_keys(None, [], KeyMatch(exclude_keys=["b"])) == []
    assert wanted_keys("a", None, KeyMatch(prefix="b")) == KeyMatch(keys=["a"], prefix="b")
    assert wanted_keys(None, None, KeyMatch(keys=["a", "b"], prefix="")) == ["a", "b"]
    assert KeyMatch(prefix="a") == KeyMatch(prefix=["a", "a"])
    assert hash(KeyMatch(prefix="a")) == hash(KeyMatch(prefix=["a"]))


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="exclude all keys"):
        KeyMatch(exclude_prefix=["a", ""])
    with pytest.raises(ValueError, match="at most 1,000"):
        KeyMatch(exclude_keys=[str(n) for n in range(1_001)])
    with pytest.raises(TypeError, match="keys is a sequence"):
        KeyMatch(keys="abc")
    with pytest.raises(ValueError, match="not both"):
        wanted_keys("a", ["b"], ANY)
