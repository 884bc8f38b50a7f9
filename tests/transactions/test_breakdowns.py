"""An application's own transactions count breakdowns too: all of them, or nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from countersink.counting.errors import UnknownDimension
from countersink.store import Store
from tests.support.app_connection import MOST, commit_one, set_amount
from tests.support.entries import MAX, Database

pytestmark = pytest.mark.servers("mariadb", "mysql")


@pytest.fixture
def store(store: Store) -> Store:
    """The store, with a counter that has breakdowns."""
    store.counters.set("views", dimensions=["page", "country"], breakdowns=["page", "page,country"])
    return store


def test_an_increment_is_counted_in_the_breakdowns(db: Database, store: Store) -> None:
    db.app.begin()
    store.increment(db.app, "views", {"page": "/a", "country": "DE"}, 2)
    store.increment(db.app, "views", {"page": "/a"}, 3)
    store.increment(db.app, "views", "/plain", 5)
    store.increment(db.app, "views", amount=7)
    store.increment_many(db.app, "views", {"": 11, "/plain": 13})
    db.app.commit()
    assert db.keys() == {b"": 23, b"/plain": 18}
    assert db.keys("views#1") == {b"/a": 5, b"": 18}
    assert db.keys("views#2") == {b"/a\0DE": 2, b"/a\0": 3, b"\0": 18}


def test_an_undeclared_dimension_counts_nothing(db: Database, store: Store) -> None:
    db.app.begin()
    store.increment(db.app, "views", {"page": "/a"}, 2)
    with pytest.raises(UnknownDimension, match="no dimension 'colour'"):
        store.increment(db.app, "views", {"page": "/a", "colour": "red"}, 3)
    db.app.commit()
    assert db.keys() == {b"": 2}
    assert db.keys("views#1") == {b"/a": 2}


def test_what_one_breakdown_refuses_is_counted_nowhere(db: Database, store: Store) -> None:
    db.app.begin()
    store.increment(db.app, "views", {"page": "/a"}, MAX)
    store.increment(db.app, "views", {"page": "/b"}, -MAX)
    set_amount(db.app, "/a", MOST)
    with pytest.raises(Exception, match=r"(?i)out of range"):
        store.increment(db.app, "views", {"page": "/a", "country": "DE"}, 1)
    set_amount(db.app, "/a", MAX)
    db.app.commit()
    assert db.keys() == {b"": 0}
    assert db.keys("views#1") == {b"/a": MAX, b"/b": -MAX}
    commit_one(store, db.app, "views", {"page": "/a"}, MAX)
    assert db.keys("views#1") == {b"/a": 2 * MAX, b"/b": -MAX}


def test_a_change_of_the_breakdowns_is_followed_at_once(db: Database, store: Store) -> None:
    commit_one(store, db.app, "views", {"page": "/a", "country": "DE"}, 2)
    added = store.counters.set("views", breakdowns=["page", "country"]).breakdowns[-1]
    begins = datetime.fromtimestamp(added.since * 60, UTC)
    just_before = begins - timedelta(minutes=1)
    store.increment(db.app, "views", {"page": "/a", "country": "DE"}, 3, at=just_before)
    commit_one(store, db.app, "views", {"page": "/a", "country": "DE"}, 4, at=begins)
    assert db.keys("views#1") == {b"/a": 9}
    assert db.keys("views#2") == {}
    assert db.keys(added.name) == {b"DE": 4}


def test_the_key_of_events_with_dimensions_is_not_deleted_alone(db: Database, store: Store) -> None:
    store.increment(db.app, "views", {"page": "/a"})
    commit_one(store, db.app, "views", "/plain")
    with pytest.raises(ValueError, match="also counted in its breakdowns"):
        store.delete(db.app, "views", "")
    store.delete(db.app, "views", "/plain")
    db.app.commit()
    assert db.keys() == {b"": 1}
