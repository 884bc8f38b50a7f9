"""Sketches that were deleted: said by answers, verify, compaction, retention, and new members."""

from contextlib import closing

import pytest

from countersink.runtime.dead_letter import DeadReason
from countersink.store import Store
from countersink.store.connection import Session
from countersink.store.errors import DamagedSketch
from countersink.store.verify import verify
from tests.store.helpers import applier, compacted, keys, rolled_up
from tests.store.visitors.sightings import Sighting, seen_entry
from tests.store.visitors.test_unite import dead_rows
from tests.support.traffic import now_minute

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


@pytest.mark.servers("mariadb", "mysql")
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
