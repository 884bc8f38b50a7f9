"""Members are united with the sketches of cells in the transaction that counts their sightings."""

import json
from base64 import b64encode
from dataclasses import replace
from itertools import pairwise

import pytest

from countersink.counting.apply.applier import Applier
from countersink.counting.apply.dead_retry import retry
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.counting.totals import unions as module_of_unions
from countersink.counting.visitors import Visitors
from countersink.database.session import Session
from countersink.runtime.members import Seen
from countersink.stream.decode import decode_payload
from tests.counting.visitors.sightings import (
    NOON,
    TODAY,
    dead_rows,
    hashed,
    numbers,
    salt_at,
    seen_entry,
    sightings,
    unions,
)
from tests.support.entries import Database, keys
from tests.support.sketches import registers, sketch_of

pytestmark = pytest.mark.usefixtures("store")


def test_sightings_are_counted_and_members_once(db: Database) -> None:
    db.applier.apply([seen_entry(db.session, sightings("/home", "a", "b", "a"))])
    db.applier.apply([seen_entry(db.session, sightings("/home", "b", "c") + sightings("/x", "a"))])
    assert db.keys("visitors") == {b"/home": 5, b"/x": 1}
    assert numbers(db.session, "visitors") == {(TODAY, "/home"): 3, (TODAY, "/x"): 1}


def test_members_of_overflowing_keys_go_along(db: Database) -> None:
    db.store.counters.set("visitors", max_keys=2)
    db.applier.apply([seen_entry(db.session, sightings("/1", "a") + sightings("/2", "b"))])
    made = sightings("/1", "b") + sightings("/3", "a", "c") + sightings("/4", "c", "d")
    db.applier.apply([seen_entry(db.session, made)])
    assert db.keys("visitors") == {b"/1": 2, b"/2": 1, OVERFLOW.encode(): 4}
    assert numbers(db.session, "visitors") == {
        (TODAY, "/1"): 2,
        (TODAY, "/2"): 1,
        (TODAY, OVERFLOW): 3,
    }


def test_members_of_a_counter_that_counts_none_are_dead_and_can_be_retried(db: Database) -> None:
    number, salt = salt_at(db.session, "visitors", NOON)
    entry = seen_entry(db.session, sightings("/", "a"), ("other", "/", NOON, 7))
    entry = replace(entry, rows=[(0, "plain", "/", NOON, 1), entry.rows[1]])
    db.applier.apply([entry])
    (row,) = dead_rows(db.session)
    assert row.reason == "not_unique"
    assert "countersink counter set plain --unique" in row.detail
    hashes = b64encode(hashed("a", salt)).decode()
    assert json.loads(row.payload) == ["plain", "/", NOON, 1, number, hashes]
    assert db.keys("plain") == {}
    assert db.keys("other") == {b"/": 7}
    db.store.counters.set("plain", salt_days=0)
    # Hashed with another counter's salt, which nobody can mend.
    retry(db.session, slot=1, decode=decode_payload)
    (row,) = dead_rows(db.session)
    assert row.reason == "wrong_salt"
    db.session.execute("UPDATE visitor_salt SET counter = 'x' WHERE counter = 'plain'")
    db.session.execute("UPDATE visitor_salt SET counter = 'plain' WHERE counter = 'visitors'")
    assert retry(db.session, slot=1, decode=decode_payload).retried == 1
    assert db.keys("plain") == {b"/": 1}
    assert numbers(db.session, "plain") == {(TODAY, "/"): 1}


@pytest.mark.parametrize("number", [0, 999_999, 2**32 - 1])
def test_an_unknown_salt_is_a_dead_letter(session: Session, applier: Applier, number: int) -> None:
    entry = seen_entry(session, sightings("/", "a"), ("visitors", "/", NOON, 1))
    entry = replace(entry, seen={0: Seen(number, entry.seen[0].hashes)})
    applier.apply([entry])
    assert [row.reason for row in dead_rows(session)] == ["wrong_salt"]
    assert keys(session, "visitors") == {b"/": 1}
    assert numbers(session, "visitors") == {}


def test_a_salt_is_wrong_outside_its_period(db: Database) -> None:
    db.store.counters.set("renewed", salt_days=1)
    (first, second, *_) = db.session.query(
        "SELECT number, begins, ends FROM visitor_salt WHERE counter = 'renewed' ORDER BY begins"
    )
    for number, at, right in [
        (first[0], first[2] - 1, True),
        (first[0], first[2], False),
        (second[0], second[1], True),
        (second[0], second[1] - 1, False),
        (first[0], 0, True),
    ]:
        entry = seen_entry(db.session, [("visitors", "/", NOON, "a")])
        hashes = entry.seen[0].hashes
        entry = replace(entry, rows=[(0, "renewed", "/", at, 1)], seen={0: Seen(number, hashes)})
        before = len(dead_rows(db.session))
        db.applier.apply([entry])
        assert (len(dead_rows(db.session)) == before) is right


@pytest.mark.parametrize(
    "damage", ["sketch = X'0102'", "checksum = checksum ^ 1", "sketch = X''", "sketch = X'02'"]
)
def test_a_damaged_sketch_holds_nothing_else_up(db: Database, damage: str) -> None:
    db.applier.apply([seen_entry(db.session, sightings("/", "a") + sightings("/x", "a"))])
    db.session.execute(f"UPDATE visitor_slot SET {damage} WHERE counter_key = '/'")
    before = db.session.query("SELECT sketch FROM visitor_slot WHERE counter_key = '/'")
    bad = seen_entry(db.session, sightings("/", "b") + sightings("/x", "b"))
    plain = seen_entry(db.session, [], ("visitors", "/", NOON, 5))
    applied = db.applier.apply([bad, plain])
    assert (applied.applied, applied.rows, applied.dead) == (2, 2, 1)
    (row,) = dead_rows(db.session)
    assert row.reason == "bad_sketch"
    assert "'visitors', '/'" in row.detail
    assert db.keys("visitors") == {b"/": 6, b"/x": 2}
    assert db.session.query("SELECT sketch FROM visitor_slot WHERE counter_key = '/'") == before


def test_without_the_library_many_members_are_dead_letters_and_few_are_counted(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasketches", None)
    many = sightings("/many", *map(str, range(300)))
    db.applier.apply([seen_entry(db.session, many + sightings("/few", "a", "b"))])
    (row,) = dead_rows(db.session)
    assert row.reason == "no_sketches"
    assert "pip install 'countersink[sketches]'" in row.detail
    assert db.keys("visitors") == {b"/few": 2}
    monkeypatch.undo()
    assert retry(db.session, slot=1, decode=decode_payload).retried == 1
    assert db.keys("visitors") == {b"/few": 2, b"/many": 300}
    (estimate,) = (n for (_, key), n in numbers(db.session, "visitors").items() if key == "/many")
    assert abs(estimate - 300) < 10


def test_sketches_of_many_keys_are_written_in_several_statements(db: Database) -> None:
    made = [each for n in range(300) for each in sightings(f"/{n}", *map(str, range(n % 50 + 1)))]
    db.applier.apply([seen_entry(db.session, made)])
    db.applier.apply([seen_entry(db.session, made)])
    assert numbers(db.session, "visitors") == {(TODAY, f"/{n}"): n % 50 + 1 for n in range(300)}


def test_a_part_of_a_row_brings_members_and_counts_nothing(db: Database) -> None:
    entry = seen_entry(db.session, sightings("/", *map(str, range(9000))))
    number, hashes = entry.seen[0]
    ends = [*range(0, len(hashes), 8 * 4096), len(hashes)]
    entry = replace(
        entry,
        rows=[(at, "visitors", "/", NOON, 0 if at else 9000) for at in range(3)],
        seen={at: Seen(number, hashes[a:b]) for at, (a, b) in enumerate(pairwise(ends))},
    )
    db.applier.apply([entry])
    assert db.keys("visitors") == {b"/": 9000}
    assert registers(unions(db.session, "visitors")[TODAY, "/"].sketch()) == registers(
        sketch_of(hashes)
    )


def test_what_an_answer_keeps_exactly_is_bounded_over_all_its_groups(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of_unions, "MOST_EXACT_IN_ANSWER", 500)
    members = [f"v{number}" for number in range(200)]
    for key in "abcd":
        db.applier.apply([seen_entry(db.session, sightings(f"/{key}", *members))])
    found = db.store.totals.unique_by_key("visitors")
    assert sorted(key for key, _ in found) == ["/a", "/b", "/c", "/d"]
    assert [one.estimate for _, one in sorted(found)] == [False, False, True, True]
    assert all(one.low <= 200 <= one.high for _, one in found)
    assert db.store.totals.unique("visitors") == Visitors(200, False, 200, 200)
