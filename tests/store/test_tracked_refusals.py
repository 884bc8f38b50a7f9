"""Rows of counters that are unknown in strict mode, or that are tracked, are set apart."""

import json

from countersink.store import Store
from countersink.store.apply import dead
from countersink.store.apply.apply import Applied, Applier
from countersink.store.apply.dead_retry import retry
from countersink.store.connection import Session, connect
from countersink.store.settings import Settings
from countersink.stream.decode import decode_payload
from tests.store.helpers import entry, guard_count, ledger, row, slots

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
    session: Session, applier: Applier
) -> None:
    applier.apply([entry([row("/a", 3)])])  # this worker knows the catalog of before
    mixed = [row("/a", 2), row("", 5, counter="orders", position=1), row("/b", 7, position=2)]
    queued = [entry(mixed), entry([row("paid", 0, counter="orders")])]
    track(session, "orders")
    assert applier.apply(queued) == Applied(applied=2, rows=2, cells=2, dead=2)
    assert ledger(session) == slots(session) == {"views": 12}
    first, second = sorted(dead.list_rows(session), key=lambda one: -one.position)
    assert (first.reason, first.position, second.position) == ("tracked_counter", 1, 0)
    assert json.loads(first.payload)[:2] == ["orders", ""]
    assert "countersink untrack orders" in first.detail
    assert guard_count(session) == 3
    assert applier.apply(queued) == Applied(duplicates=2)


def test_tracking_a_table_reaches_a_worker_that_is_at_work(
    session: Session, applier: Applier, mysql_url: str, app_database_url: str
) -> None:
    applier.apply([entry([row("/a")])])
    with Store(mysql_url) as store, connect(app_database_url) as app:
        app.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
        app.execute("INSERT INTO orders VALUES (1), (2)")
        name = f"{Settings.parse(app_database_url).database}.orders"
        store.tracked.track(name, counter="orders")
        applier.apply([entry([row("", 40, counter="orders")])])
        assert store.row_count("orders") == store.totals.total("orders") == 2
        assert dead.count(session) == {"tracked_counter": 1}
        store.tracked.untrack("orders")
        assert retry(session, slot=9, decode=decode_payload).retried == 1
        applier.apply([entry([row("", 2, counter="orders")])])
        assert store.totals.total("orders") == 42


def test_retrying_counts_them_only_when_the_table_is_tracked_no_more(
    session: Session, applier: Applier
) -> None:
    track(session, "orders")
    track(session, "users")
    applier.apply([entry([row("", 4, counter="orders"), row("", 9, counter="users", position=1)])])
    tried = retry(session, slot=9, decode=decode_payload)
    assert (tried.retried, tried.failed, tried.rows) == (0, 2, 0)
    assert dead.count(session) == {"tracked_counter": 2}
    untrack(session, "orders")
    tried = retry(session, slot=9, decode=decode_payload)
    assert (tried.retried, tried.failed, tried.rows) == (1, 1, 1)
    assert ledger(session) == slots(session) == {"orders": 4}


def test_retrying_a_whole_entry_leaves_just_those_rows_behind(
    session: Session, applier: Applier
) -> None:
    session.execute("UPDATE control SET pruned_before = 1000")
    content = [row("/a", 2), row("", 5, counter="orders", position=1)]
    payload = json.dumps([list(one[1:]) for one in content]).encode()
    old = entry(content, at=999)
    applier.apply([type(old)(old.id, old.at, old.rows, payload=payload)])
    assert dead.count(session) == {"too_old": 1}
    track(session, "orders")
    done = retry(session, slot=9, decode=decode_payload, reason="too_old")
    assert (done.retried, done.failed, done.rows) == (1, 1, 1)
    assert dead.count(session) == {"tracked_counter": 1}
    assert ledger(session) == {"views": 2}


def test_it_is_off_at_first_and_can_be_switched(store: Store) -> None:
    assert not store.counters.strict()
    for _ in range(2):
        store.counters.set_strict(True)
        assert store.counters.strict()
    store.counters.set_strict(False)
    assert not store.counters.strict()


def test_rows_of_unknown_counters_are_dead_and_all_others_count(
    store: Store, session: Session, applier: Applier
) -> None:
    applier.apply([entry([row("/a", counter="counted")])])
    store.counters.set("made")
    store.counters.set_strict(True)
    mixed = [
        row("/a", counter="made", position=0),
        row("/b", 7, counter="unknown", position=1),
        row("/a", counter="counted", position=2),
    ]
    batch = [entry(mixed), entry([row("/a", counter="made")])]
    assert applier.apply(batch) == Applied(applied=2, rows=3, cells=2, dead=1)
    assert ledger(session) == {"counted": 2, "made": 2}
    (buried,) = dead.list_rows(session)
    assert (buried.reason, buried.position) == ("unknown_counter", 1)
    assert json.loads(buried.payload)[:2] == ["unknown", "/b"]
    assert "countersink counter set unknown" in buried.detail
    assert applier.apply(batch) == Applied(duplicates=2)


def test_a_counter_is_known_from_when_it_is_made_until_it_is_deleted(
    store: Store, session: Session, applier: Applier
) -> None:
    store.counters.set_strict(True)
    for number in range(1, 4):
        assert applier.apply([entry([row("/a")])]) == Applied(applied=1, dead=1)
        assert dead.count(session) == {"unknown_counter": number}
    assert ledger(session) == {}
    store.counters.set("views")
    applier.apply([entry([row("/a", 4)])])
    done = retry(session, slot=9, decode=decode_payload)
    assert (done.retried, done.failed) == (3, 0)
    assert ledger(session) == {"views": 7}
    assert dead.count(session) == {}
    store.counters.delete("views")
    applier.apply([entry([row("/a")])])
    assert ledger(session) == {}
    assert dead.count(session) == {"unknown_counter": 1}
    store.counters.set_strict(False)
    applier.apply([entry([row("/a", 5)])])
    assert ledger(session) == {"views": 5}
