"""Nobody but its triggers counts a tracked counter: what the queue holds for it is set apart."""

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


def test_rows_that_are_queued_when_a_table_is_tracked_are_not_counted(
    session: Session, applier: Applier
) -> None:
    applier.apply([entry([row("/a", 3)])])  # this worker knows the catalog of before
    mixed = [row("/a", 2), row("", 5, counter="orders", position=1), row("/b", 7, position=2)]
    queued = [entry(mixed), entry([row("", counter="orders")])]
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


def test_a_zero_does_not_make_a_key_of_a_tracked_counter(
    session: Session, applier: Applier
) -> None:
    track(session, "orders")
    applier.apply([entry([row("paid", 0, counter="orders")])])
    assert ledger(session) == slots(session) == {}
    assert dead.count(session) == {"tracked_counter": 1}


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


def test_strict_mode_says_of_each_row_what_is_the_matter_with_it(
    session: Session, applier: Applier
) -> None:
    session.execute("UPDATE control SET strict = TRUE")
    session.execute("INSERT INTO counter (name, created) VALUES ('views', '2026-01-01')")
    track(session, "orders")
    content = [row("", counter=name, position=n) for n, name in enumerate(["x", "views", "orders"])]
    applier.apply([entry(content)])
    assert ledger(session) == {"views": 1}
    assert dead.count(session) == {"tracked_counter": 1, "unknown_counter": 1}
