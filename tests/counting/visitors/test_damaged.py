"""Rows whose members belong to a damaged sketch: the transaction is run again without them, and
they are dead letters, each once, whatever else has it run again.
"""

import json
from contextlib import closing

import pytest

from countersink.counting.apply import dead
from countersink.counting.apply.applier import Applied, Applier
from countersink.counting.apply.dead_retry import retry
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.counting.errors import DamagedSketch
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.runtime.dead_letter import DeadReason
from countersink.runtime.dimensions import check_dimensions
from countersink.store import Store
from countersink.store.verify import verify
from countersink.stream.decode import decode_payload
from tests.counting.visitors.sightings import (
    NOON,
    OVER,
    TODAY,
    Sighting,
    dead_rows,
    numbers,
    seen_entry,
    sightings,
)
from tests.support.entries import (
    applier,
    compacted,
    guard_count,
    keys,
    ledger,
    rolled_up,
    slots,
)
from tests.support.traffic import now_minute

DAMAGE = "UPDATE visitor_slot SET checksum = checksum ^ 1 WHERE counter_key = %s"
pytestmark = [pytest.mark.servers("mariadb", "mysql"), pytest.mark.usefixtures("store")]


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
    assert keys(session, "visitors") == {b"/": 1, b"/x": 1, b"/z": 1, OVER: 1}
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
    assert keys(session, "visitors") == {b"/1": 2, b"/2": 1, OVER: 1}
    store.counters.set("visitors", max_keys=4)
    assert retry(session, slot=1, decode=decode_payload).retried == 1
    assert keys(session, "visitors") == {b"/1": 2, b"/2": 1, b"/4": 1, OVER: 1}
    session.execute("DELETE FROM visitor_slot WHERE counter_key = %s", (OVER,))
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


BACK = 80 * 1440


def count(mysql_url: str, session: Session, slot: int = 3, back: int = 0) -> None:
    """A sighting of each of two keys, and a plain increment of a third one and of one of them."""
    at = now_minute() - back
    made: list[Sighting] = [("visitors", "/a", at, "ann"), ("visitors", "/b", at, "bob")]
    with closing(applier(mysql_url, slot)) as one:
        one.apply([seen_entry(session, made, ("visitors", "/plain", at, 5))])
        one.apply([seen_entry(session, [], ("visitors", "/b", at, 2))])


@pytest.mark.parametrize("gone", ["counter_key = '/a'", "TRUE"])
@pytest.mark.parametrize("moved", ["", "compacted", "month"])
def test_deleted_sketches_are_damage(
    mysql_url: str, session: Session, store: Store, verifying: Session, moved: str, gone: str
) -> None:
    for slot in (3, 4):
        count(mysql_url, session, slot, BACK if moved == "month" else 0)
    if moved == "compacted":
        compacted(mysql_url)
    elif moved == "month":
        store.counters.set("visitors", keep="day=30d")
        rolled_up(mysql_url)
    assert verify(verifying).agrees
    assert store.totals.unique("visitors").total == 2
    assert store.totals.unique("visitors", key="/plain").total == 0
    session.execute(f"DELETE FROM visitor_slot WHERE {gone}")
    asked = (
        lambda: store.totals.unique("visitors"),
        lambda: store.totals.unique("visitors", key="/a"),
        lambda: store.totals.unique_by("visitors", "month"),
        lambda: store.totals.unique_by_key("visitors"),
    )
    for ask in asked:
        with pytest.raises(DamagedSketch, match=r"'visitors' are missing.*`countersink verify`"):
            ask()
    assert store.totals.unique("visitors", key="/plain").total == 0
    for names in None, "visitors":
        (wrong,) = verify(verifying, names).differences
        assert (wrong.counter, wrong.problem) == ("visitors", "sketch")
        assert "'/a' in the bucket" in wrong.detail
        assert "missing" in wrong.detail


def test_what_is_missing_stays_found(
    mysql_url: str, session: Session, store: Store, verifying: Session
) -> None:
    for slot in (3, 4):
        count(mysql_url, session, slot)
        count(mysql_url, session, slot, BACK)
    session.execute("DELETE FROM visitor_slot WHERE counter_key = '/a' AND slot = 4")
    # New members of the row do not take the place of those that are missing.
    count(mysql_url, session, 4)
    ((row),) = dead_rows(session)
    assert row.reason == DeadReason.BAD_SKETCH
    assert "missing" in row.detail
    assert keys(session, "visitors") == {b"/a": 4, b"/b": 15, b"/plain": 25}
    # Neither does it move.
    done = compacted(mysql_url)
    assert {one.key for one in done.unreadable} == {b"/a"}
    store.counters.set("visitors", keep="day=30d")
    assert {one.key for one in rolled_up(mysql_url).unreadable} == {b"/a"}
    assert store.totals.unique("visitors", key="/b").total == 1
    (wrong,) = verify(verifying).differences
    assert (wrong.problem, wrong.in_tables) == ("sketch", 2)
