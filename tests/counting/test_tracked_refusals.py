"""Rows of counters that are unknown in strict mode, or that are tracked, are set apart."""

import json

from countersink.counting.apply import dead
from countersink.counting.apply.applier import Applied
from countersink.counting.apply.dead_retry import retry
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.store import Store
from countersink.stream.decode import decode_payload
from tests.support.entries import Database, entry, guard_count, ledger, row, slots

TRACKED = (
    "INSERT INTO tracked_table (counter, table_schema, table_name, by_columns, app_slots, triggers,"
    " created) VALUES (%s, 'shop', 'orders', '[]', 16, %s, UTC_TIMESTAMP(3))"
)


def track(session: Session, counter: str) -> None:
    """What tracking a table does, as far as whoever counts is concerned."""
    with session.transaction():
        session.execute(TRACKED, (counter, f"countersink_{counter}"))
        bump(session)


def untrack(session: Session, counter: str) -> None:
    with session.transaction():
        session.execute("DELETE FROM tracked_table WHERE counter = %s", (counter,))
        bump(session)


def bump(session: Session) -> None:
    session.execute("UPDATE control SET catalog_version = catalog_version + 1")


def test_rows_that_are_queued_when_a_table_is_tracked_are_not_counted_nor_make_a_key(
    db: Database,
) -> None:
    db.applier.apply([entry([row("/a", 3)])])  # this worker knows the catalog of before
    mixed = [row("/a", 2), row("", 5, counter="orders", position=1), row("/b", 7, position=2)]
    queued = [entry(mixed), entry([row("paid", 0, counter="orders")])]
    track(db.session, "orders")
    assert db.applier.apply(queued) == Applied(applied=2, rows=2, cells=2, dead=2)
    assert ledger(db.session) == slots(db.session) == {"views": 12}
    first, second = sorted(dead.list_rows(db.session), key=lambda one: -one.position)
    assert (first.reason, first.position, second.position) == ("tracked_counter", 1, 0)
    assert json.loads(first.payload)[:2] == ["orders", ""]
    assert "countersink untrack orders" in first.detail
    assert guard_count(db.session) == 3
    assert db.applier.apply(queued) == Applied(duplicates=2)


def test_tracking_a_table_reaches_a_worker_that_is_at_work(
    db: Database, app_database_url: str
) -> None:
    db.applier.apply([entry([row("/a")])])
    with Store(db.mysql_url) as store, connect(app_database_url) as app:
        app.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
        app.execute("INSERT INTO orders VALUES (1), (2)")
        name = f"{Settings.parse(app_database_url).database}.orders"
        store.tracked.track(name, counter="orders")
        db.applier.apply([entry([row("", 40, counter="orders")])])
        assert store.row_count("orders") == store.totals.total("orders") == 2
        assert dead.count(db.session) == {"tracked_counter": 1}
        store.tracked.untrack("orders")
        assert retry(db.session, slot=9, decode=decode_payload).retried == 1
        db.applier.apply([entry([row("", 2, counter="orders")])])
        assert store.totals.total("orders") == 42


def test_retrying_a_whole_entry_leaves_just_those_rows_behind(db: Database) -> None:
    db.session.execute("UPDATE control SET pruned_before = 1000")
    content = [row("/a", 2), row("", 5, counter="orders", position=1)]
    payload = json.dumps([list(one[1:]) for one in content]).encode()
    old = entry(content, at=999)
    db.applier.apply([type(old)(old.id, old.at, old.rows, payload=payload)])
    assert dead.count(db.session) == {"too_old": 1}
    track(db.session, "orders")
    done = retry(db.session, slot=9, decode=decode_payload, reason="too_old")
    assert (done.retried, done.failed, done.rows) == (1, 1, 1)
    assert dead.count(db.session) == {"tracked_counter": 1}
    assert ledger(db.session) == {"views": 2}


def test_rows_of_unknown_counters_are_dead_and_all_others_count(db: Database) -> None:
    db.applier.apply([entry([row("/a", counter="counted")])])
    db.store.counters.set("made")
    db.store.counters.set_strict(True)
    mixed = [
        row("/a", counter="made", position=0),
        row("/b", 7, counter="unknown", position=1),
        row("/a", counter="counted", position=2),
    ]
    batch = [entry(mixed), entry([row("/a", counter="made")])]
    assert db.applier.apply(batch) == Applied(applied=2, rows=3, cells=2, dead=1)
    assert ledger(db.session) == {"counted": 2, "made": 2}
    (buried,) = dead.list_rows(db.session)
    assert (buried.reason, buried.position) == ("unknown_counter", 1)
    assert json.loads(buried.payload)[:2] == ["unknown", "/b"]
    assert "countersink counter set unknown" in buried.detail
    assert db.applier.apply(batch) == Applied(duplicates=2)


def test_a_counter_is_known_from_when_it_is_made_until_it_is_deleted(db: Database) -> None:
    db.store.counters.set_strict(True)
    for number in range(1, 4):
        assert db.applier.apply([entry([row("/a")])]) == Applied(applied=1, dead=1)
        assert dead.count(db.session) == {"unknown_counter": number}
    assert ledger(db.session) == {}
    db.store.counters.set("views")
    db.applier.apply([entry([row("/a", 4)])])
    done = retry(db.session, slot=9, decode=decode_payload)
    assert (done.retried, done.failed) == (3, 0)
    assert ledger(db.session) == {"views": 7}
    assert dead.count(db.session) == {}
    db.store.counters.delete("views")
    db.applier.apply([entry([row("/a")])])
    assert ledger(db.session) == {}
    assert dead.count(db.session) == {"unknown_counter": 1}
    db.store.counters.set_strict(False)
    db.applier.apply([entry([row("/a", 5)])])
    assert ledger(db.session) == {"views": 5}
