"""Rows whose members belong to a damaged sketch: the transaction is run again without them, and
they are dead letters, each once, whatever else has it run again.
"""

import json
from datetime import date

import pytest

from countersink.runtime.dimensions import check_dimensions
from countersink.store import Store
from countersink.store.apply import dead
from countersink.store.apply.apply import Applied, Applier
from countersink.store.apply.dead_retry import retry
from countersink.store.apply.key_caps import OVERFLOW
from countersink.store.connection import Session
from countersink.store.errors import Conflict
from countersink.store.sql import day_label
from countersink.stream.decode import decode_payload
from tests.store.helpers import guard_count, keys, ledger, minute, slots
from tests.store.visitors.sightings import Sighting, numbers, seen_entry

NOON = minute()
TODAY = day_label(date(2026, 11, 21))
DAMAGE = "UPDATE visitor_slot SET checksum = checksum ^ 1 WHERE counter_key = %s"
pytestmark = [pytest.mark.servers("mariadb", "mysql"), pytest.mark.usefixtures("store")]


def sightings(key: str, *members: str) -> list[Sighting]:
    return [("visitors", key, NOON, member) for member in members]


def damage(session: Session, key: str) -> None:
    assert session.execute(DAMAGE, (key.encode(),)) == 1


def letters(session: Session) -> list[tuple[str, object]]:
    """(reason, key or dimensions) of the dead rows."""
    return sorted((row.reason, json.loads(row.payload)[1]) for row in dead.list_rows(session))


def test_a_row_that_one_breakdown_cannot_take_is_counted_nowhere(
    session: Session, applier: Applier, store: Store
) -> None:
    store.counters.set("visitors", dimensions=["page", "country"], breakdowns=["page", "country"])

    def seen(page: str, country: str, member: str) -> Sighting:
        return "visitors", check_dimensions({"page": page, "country": country}), NOON, member

    applier.apply([seen_entry(session, [seen("/", "DE", "a"), seen("/", "FR", "a")])])
    damage(session, "DE")
    done = applier.apply(
        [seen_entry(session, [seen("/x", "DE", "b"), seen("/x", "FR", "b"), seen("/y", "FR", "c")])]
    )
    assert done == Applied(applied=1, rows=2, cells=4, dead=1)
    assert letters(session) == [("bad_sketch", {"page": "/x", "country": "DE"})]
    assert keys(session, "visitors") == {b"": 4}
    assert keys(session, "visitors#1") == {b"/": 2, b"/x": 1, b"/y": 1}
    assert keys(session, "visitors#2") == {b"DE": 1, b"FR": 3}
    assert numbers(session, "visitors#1") == {(TODAY, "/"): 1, (TODAY, "/x"): 1, (TODAY, "/y"): 1}
    assert ledger(session) == slots(session)


def test_whatever_has_a_transaction_run_again_each_row_counts_once(
    session: Session, applier: Applier, store: Store
) -> None:
    """A day's row that is not there, a damaged sketch, a guard that is there, and a deadlock."""
    applier.apply([seen_entry(session, sightings("/", "a") + sightings("/x", "a"))])
    damage(session, "/")
    store.counters.set("visitors", max_keys=3)  # nobody has made the day's row of counter_keys
    points: list[str] = []

    def reached(point: str) -> None:
        points.append(point)
        if point == "before_commit" and points.count(point) == 1:
            raise Conflict("another transaction")

    one, known = (
        seen_entry(session, sightings("/", "b") + sightings(f"/{n}", "b"), ("other", "k", NOON, 5))
        for n in "yz"
    )
    applier.apply([known])
    assert letters(session) == [("bad_sketch", "/")]
    session.execute("DELETE FROM counter_keys")
    applier._reached = reached
    applier._pause = lambda seconds: None
    done = applier.apply([known, one])
    assert done == Applied(applied=1, rows=2, cells=2, dead=1, duplicates=1, overflown=1)
    assert points[-1] == "committed"
    assert points.count("before_commit") == 2
    assert points.count("begun") > 4
    assert letters(session) == [("bad_sketch", "/")] * 2
    over = OVERFLOW.encode()
    assert keys(session, "visitors") == {b"/": 1, b"/x": 1, b"/z": 1, over: 1}
    assert keys(session, "other") == {b"k": 10}
    assert ledger(session) == slots(session)
    assert guard_count(session) == 3
    assert applier.apply([one, known]) == Applied(duplicates=2)


def test_a_row_that_is_refused_takes_no_room_of_a_cap(
    session: Session, applier: Applier, store: Store
) -> None:
    store.counters.set("visitors", max_keys=2)
    made = sightings("/1", "a") + sightings("/2", "a") + sightings("/3", "a")
    applier.apply([seen_entry(session, made)])
    damage(session, OVERFLOW)
    done = applier.apply([seen_entry(session, sightings("/4", "b") + sightings("/1", "b"))])
    assert (done.rows, done.dead, done.overflown) == (1, 1, 0)
    assert letters(session) == [("bad_sketch", "/4")]
    over = OVERFLOW.encode()
    assert keys(session, "visitors") == {b"/1": 2, b"/2": 1, over: 1}
    store.counters.set("visitors", max_keys=4)
    assert retry(session, slot=1, decode=decode_payload).retried == 1
    assert keys(session, "visitors") == {b"/1": 2, b"/2": 1, b"/4": 1, over: 1}
    session.execute("DELETE FROM visitor_slot WHERE counter_key = %s", (over,))
    assert numbers(session, "visitors") == {(TODAY, "/1"): 2, (TODAY, "/2"): 1, (TODAY, "/4"): 1}


def test_retrying_counts_all_but_those_of_the_damaged_sketch(
    session: Session, applier: Applier
) -> None:
    applier.apply([seen_entry(session, sightings("/", "a") + sightings("/x", "a"))])
    damage(session, "/")
    damage(session, "/x")
    applier.apply([seen_entry(session, sightings("/", "b") + sightings("/x", "b"))])
    assert letters(session) == [("bad_sketch", "/"), ("bad_sketch", "/x")]
    damage(session, "/x")  # a second time: it is as it was written
    done = retry(session, slot=17, decode=decode_payload)
    assert (done.retried, done.failed, done.rows) == (1, 1, 1)
    assert letters(session) == [("bad_sketch", "/")]
    assert keys(session, "visitors") == {b"/": 1, b"/x": 2}
