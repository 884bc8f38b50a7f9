"""Keys are bytes: what looks alike stays apart."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.totals import sums
from countersink.store.totals.answer import answer
from countersink.store.totals.query import Query
from countersink.store.totals.selection import Selection
from countersink.store.totals.snapshot import Snapshot
from tests.store.helpers import entry, keys, rows
from tests.support.examples import examples

LOOKALIKES = [
    "",
    " ",
    "a",
    "A",
    "a ",
    " a",
    "a  ",
    "a\0",
    "a\n",
    "a\r\n",
    "a\t",
    "á",
    unicodedata.normalize("NFD", "á"),
    "Á",
    "à",
    "ß",
    "ss",
    "ﬁ",
    "fi",
    "\N{GRINNING FACE}",
    "\N{GRINNING FACE} ",
    "\0",
    "\0\0",
    "'",
    '"',
    "\\",
    "\\'",
    "%s",
    "%",
    "_",
    ";",
    "--",
    "k" * 255,
    "é" * 127,
    "\N{GRINNING FACE}" * 63,
    "\x1a",
    "\x7f",
    "\u200b",
    "\ufeff",
    "\u202e",
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
