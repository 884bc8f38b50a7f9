"""A counter's settings change beside transactions that count: none counts by the wrong ones."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pymysql
import pytest

from countersink.store import Store, TrackedCounter, UnknownCounter
from countersink.store.apply.apply import Applier
from countersink.store.apply.control import Control
from countersink.store.connection import Session, connect
from countersink.store.counters.deletion import delete_counter
from countersink.store.counters.settings import SettingsChange, change
from countersink.store.errors import Conflict
from countersink.store.in_app import settings_version
from countersink.store.in_app.settings_version import alone
from tests.store.app import (
    Connection,
    app_slots,
    commit_one,
    labels,
    open_app,
    run,
    wait_for_lock_wait,
    without_snapshot_isolation,
)
from tests.store.helpers import beside, entry, row, together

LATE = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)
"""In Berlin it is the next day."""
pytestmark = pytest.mark.usefixtures("waiting_at_once")
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture
def other(mysql_url: str) -> Iterator[Store]:
    """Another process's store, as far as this one can tell."""
    with Store(mysql_url) as opened:
        yield opened


@pytest.fixture
def waiting_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes a counter waits for the row as soon as it is held, which can be seen."""
    monkeypatch.setattr(settings_version, "PROBES", 1)


def in_berlin(store: Store) -> object:
    return store.counters.set("orders", time_zone="Europe/Berlin")


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("level", LEVELS)
def test_the_first_policy_waits_for_a_transaction_that_counts_by_none(
    store: Store, other: Store, app: Connection, session: Session, level: str
) -> None:
    run(app, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    store.increment(app, "orders", "a", at=LATE)
    with beside(partial(in_berlin, other)) as done:
        wait_for_lock_wait(session)
        assert not done.done()
        app.commit()
    with pytest.raises(ValueError, match="orders has been counted"):
        done.result()
    assert labels(session) == {"2026-11-21 00:00:00": 1}
    assert other.counters.show("orders").policies[0].time_zone == "UTC"


@pytest.mark.parametrize("level", LEVELS)
def test_the_first_policy_is_for_whoever_counts_once_it_is_made(
    store: Store, other: Store, app: Connection, session: Session, level: str
) -> None:
    run(app, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    run(app, "SELECT COUNT(*) FROM counter_slot")
    store.increment(app, "orders", "a", at=LATE)
    with beside(partial(in_berlin, other)) as done:
        wait_for_lock_wait(session)
        app.rollback()
    assert done.result()
    run(app, "SELECT COUNT(*) FROM counter_slot")
    commit_one(store, app, "orders", "a", at=LATE)
    assert labels(session) == {"2026-11-22 00:00:00": 1}


@pytest.mark.servers("mariadb", "mysql")
def test_who_changes_a_counter_gives_way_to_a_transaction_that_stays_open(
    store: Store, app: Connection, mysql_url: str
) -> None:
    store.increment(app, "orders", "a", at=LATE)
    with connect(mysql_url, isolation="REPEATABLE READ") as changing:
        wanted = SettingsChange("orders", "Europe/Berlin", None, None, None, None, None)
        with pytest.raises(Conflict):
            alone(changing, "orders", partial(change, wanted, changing), attempts=1)
    # and nobody waits for the one that gave way
    commit_one(store, app, "orders", "b", at=LATE)
    assert store.totals.total("orders") == 2


def test_an_open_transaction_keeps_nobody_from_anything_else(
    store: Store, other: Store, app: Connection, session: Session, applier: Applier
) -> None:
    store.increment(app, "orders", "a")
    with beside(partial(in_berlin, other)) as done:
        wait_for_lock_wait(session)
        assert applier.apply([entry([row("/a")])]).rows == 1
        assert other.counters.set("views", app_slots=3).app_slots == 3
        assert not done.done()
        app.rollback()
    assert done.result()


def test_whoever_changes_a_counter_keeps_no_others_waiting_while_it_waits(
    store: Store, app: Connection, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks, without asking for the lock: others that count the same are not behind it."""
    monkeypatch.setattr(settings_version, "PROBES", 5)
    store.increment(app, "orders", "a", at=LATE)
    pauses: list[float] = []

    with (
        open_app(mysql_url) as another,
        connect(mysql_url, isolation="REPEATABLE READ") as changing,
    ):
        run(another, "SET SESSION innodb_lock_wait_timeout = 1")

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            store.increment(another, "orders", "b", at=LATE)
            another.commit()
            if len(pauses) == 3:
                app.commit()

        before = lock_waits(changing)
        wanted = SettingsChange("orders", None, None, None, None, 3, None)
        changed = alone(
            changing, "orders", partial(change, wanted, changing), attempts=1, pause=pause
        )
        assert (changed.app_slots, len(pauses)) == (3, 3)
        assert lock_waits(changing) == before
        raised = changing.query("SELECT version FROM app_counter WHERE counter = 'orders'")
        alone(changing, "orders", lambda control: None)
        again = changing.query("SELECT version FROM app_counter WHERE counter = 'orders'")
        assert again[0][0] == raised[0][0] + 1


def lock_waits(session: Session) -> int:
    """How often anybody has waited for a row."""
    ((_, number),) = session.query("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'")
    return int(number)


@pytest.mark.servers("mariadb", "mysql")
def test_where_some_transaction_is_always_open_it_waits_for_its_turn(
    store: Store, other: Store, app: Connection, session: Session, mysql_url: str
) -> None:
    """However short each is: there may be no moment without any."""
    store.increment(app, "orders", "a")
    with open_app(mysql_url) as another, beside(partial(in_berlin, other)) as done:
        wait_for_lock_wait(session)
        with beside(lambda: store.increment(another, "orders", "a")):
            wait_for_lock_wait(session, 2)
            app.rollback()
        assert done.result(30)
        another.rollback()


@pytest.mark.servers("mariadb", "mysql")
def test_a_change_under_way_is_waited_for_and_then_gone_by(
    store: Store, app: Connection, session: Session, mysql_url: str
) -> None:
    store.increment(app, "orders", "a", at=LATE)
    app.rollback()
    reached, go_on = threading.Event(), threading.Event()

    def work(changing: Session, control: Control) -> None:
        change(
            SettingsChange("orders", "Europe/Berlin", None, None, None, None, None),
            changing,
            control,
        )
        reached.set()
        assert go_on.wait(30)

    with connect(mysql_url, isolation="REPEATABLE READ") as changing:
        with beside(partial(alone, changing, "orders", partial(work, changing))):
            assert reached.wait(30)
            with beside(lambda: store.increment(app, "orders", "a", at=LATE)) as counting:
                wait_for_lock_wait(session)
                assert not counting.done()
                go_on.set()
        counting.result()
    app.commit()
    assert labels(session) == {"2026-11-22 00:00:00": 1}


def test_a_policy_to_come_holds_for_events_dated_past_its_start(
    store: Store, other: Store, app: Connection, session: Session
) -> None:
    start = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=10)
    commit_one(store, app, "orders", "a", at=start + timedelta(days=1))
    other.counters.set("orders", resolution="hour", start=start)
    store.increment(app, "orders", "a", at=start - timedelta(minutes=1))
    commit_one(store, app, "orders", "b", at=start + timedelta(days=2))
    day, hour = "%Y-%m-%d 00:00:00", "%Y-%m-%d %H:00:01"
    assert labels(session) == {
        (start + timedelta(days=1)).strftime(day): 1,
        (start - timedelta(minutes=1)).strftime(day): 1,
        (start + timedelta(days=2)).strftime(hour): 1,
    }
    assert store.totals.total("orders") == 3


def test_app_slots_hold_from_the_next_call_on(
    store: Store, other: Store, app: Connection, session: Session
) -> None:
    without_snapshot_isolation(app)
    commit_one(store, app, "orders", "a")
    other.counters.set("orders", app_slots=1)
    for _ in range(3):
        store.increment(app, "orders", "b")
    app.commit()
    assert app_slots(session)[256] >= 3
    number = run(app, "SELECT CONNECTION_ID()")[0][0]
    other.counters.set("orders", app_slots=256)
    commit_one(store, app, "orders", "c", 100)
    assert app_slots(session)[256 + number % 256] >= 100


def test_a_deleted_counter_counts_from_0_with_the_defaults(
    store: Store, other: Store, app: Connection, session: Session
) -> None:
    in_berlin(other)
    commit_one(store, app, "orders", "a", 5, at=LATE)
    assert other.counters.delete("orders").amount == 5
    commit_one(store, app, "orders", "a", 2, at=LATE)
    assert labels(session) == {"2026-11-21 00:00:00": 2}


def test_a_counter_is_deleted_with_what_an_open_transaction_has_counted(
    store: Store, other: Store, app: Connection, session: Session
) -> None:
    commit_one(store, app, "orders", "a")
    store.increment(app, "orders", "b")
    with beside(partial(other.counters.delete, "orders")) as done:
        wait_for_lock_wait(session)
        app.commit()
    assert done.result().amount == 2
    assert session.query("SELECT * FROM counter_slot") == []


@pytest.mark.servers("mariadb", "mysql")
def test_deleting_a_counter_gives_way_to_a_transaction_that_stays_open(
    store: Store, app: Connection, mysql_url: str
) -> None:
    store.counters.set("orders", keep_days=30)
    run(app, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    store.delete(app, "orders", "none")
    with (
        connect(mysql_url, isolation="REPEATABLE READ") as deleting,
        pytest.raises(Conflict, match="orders"),
    ):
        delete_counter(deleting, "orders", attempts=1, pause=lambda seconds: None)
    assert store.counters.show("orders").keep_days == 30
    app.commit()
    assert store.counters.delete("orders").rows == 0


def test_strict_mode_refuses_what_nobody_has_made(
    store: Store, other: Store, app: Connection, session: Session
) -> None:
    other.counters.set_strict(True)
    with pytest.raises(UnknownCounter, match="countersink counter set orders"):
        store.increment(app, "orders", "a")
    store.delete(app, "orders", "a")
    app.commit()
    assert session.query("SELECT * FROM counter_slot") == []
    other.counters.set("orders")
    commit_one(store, app, "orders", "a")
    assert store.totals.total("orders") == 1


def test_strict_mode_refuses_what_was_only_ever_rolled_back(
    store: Store, other: Store, app: Connection
) -> None:
    store.increment(app, "orders", "a")
    app.rollback()
    commit_one(store, app, "counted", "a")
    other.counters.set_strict(True)
    store.increment(app, "counted", "a")
    with pytest.raises(UnknownCounter):
        store.increment(app, "orders", "a")
    app.commit()
    assert store.totals.total("counted") == 2


def test_strict_mode_takes_as_many_statements_for_many_unknown_counters(
    store: Store, session: Session
) -> None:
    """Rows of ``app_counter`` stay when the transactions that had them made are rolled back."""
    names = [f"unknown{number}" for number in range(400)]

    def asked() -> int:
        # Not "Questions", which has the end of an earlier connection, whenever that comes.
        kinds = ("Com_select", "Com_insert", "Com_update", "Com_delete")
        found = session.query(f"SHOW GLOBAL STATUS WHERE variable_name IN {kinds}")
        return sum(int(value) for _, value in found)

    def statements(on: bool) -> int:
        before = asked()
        store.counters.set_strict(on)
        return asked() - before

    store.counters.set_strict(True)
    store.counters.set_strict(False)
    few = statements(True)
    store.counters.set_strict(False)
    marks = ", ".join(["(%s, 1)"] * len(names))
    session.execute(f"INSERT INTO app_counter (counter, version) VALUES {marks}", names)
    assert statements(True) <= few + 2
    assert session.query("SELECT MIN(version) FROM app_counter WHERE counter LIKE 'unknown%'") == [
        (2,)
    ]


@pytest.mark.servers("mariadb", "mysql")
def test_strict_mode_waits_for_a_transaction_that_counts_something_new(
    store: Store, other: Store, app: Connection, session: Session
) -> None:
    store.increment(app, "orders", "a")
    with beside(lambda: other.counters.set_strict(True)) as done:
        wait_for_lock_wait(session)
        app.commit()
    done.result()
    commit_one(store, app, "orders", "a")
    assert store.totals.total("orders") == 2


def test_in_strict_mode_a_deleted_counter_is_unknown(
    store: Store, other: Store, app: Connection
) -> None:
    commit_one(store, app, "orders", "a")
    other.counters.set_strict(True)
    commit_one(store, app, "orders", "a")
    other.counters.delete("orders")
    with pytest.raises(UnknownCounter):
        store.increment(app, "orders", "a")


def test_in_strict_mode_workers_know_what_an_application_has_counted(
    store: Store, app: Connection, applier: Applier
) -> None:
    commit_one(store, app, "orders", "a")
    store.counters.set_strict(True)
    assert applier.apply([entry([row("a", counter="orders")])]).rows == 1
    assert store.totals.total("orders") == 2


def track(session: Session, counter: str) -> None:
    """As far as a counter is concerned: note that a table is tracked."""

    def work(_control: Control) -> None:
        session.execute(
            "INSERT INTO tracked_table (counter, table_schema, table_name, by_columns, app_slots,"
            " triggers, created) VALUES (%s, 'shop', 'orders', '[]', 16, 'countersink_0', NOW())",
            (counter,),
        )
        session.execute("UPDATE control SET policy_version = policy_version + 1")

    alone(session, counter, work)


def test_a_tracked_tables_counter_is_its_triggers_alone(
    store: Store, app: Connection, session: Session
) -> None:
    store.increment(app, "orders", "a")
    app.rollback()
    track(session, "orders")
    calls: list[Callable[[], object]] = [
        lambda: store.increment(app, "orders", "a"),
        lambda: store.increment(app, "orders", "a", 0),
        lambda: store.increment_many(app, "orders", {"a": 1, "b": 2}),
        lambda: store.delete(app, "orders", "a"),
        lambda: in_berlin(store),
        lambda: store.counters.set("orders", keep_days=30),
        lambda: store.counters.delete("orders"),
        lambda: store.counters.delete("orders", "a"),
    ]
    for call in calls:
        with pytest.raises(TrackedCounter, match="untrack orders"):
            call()
        app.rollback()  # at REPEATABLE READ it has seen, and locked, that it may not count
    assert session.query("SELECT * FROM counter_slot") == []


def test_who_tracks_a_table_waits_for_a_transaction_that_counts(
    store: Store, app: Connection, session: Session, mysql_url: str
) -> None:
    store.increment(app, "orders", "a")
    with (
        connect(mysql_url, isolation="REPEATABLE READ") as tracking,
        beside(lambda: track(tracking, "orders")) as done,
    ):
        wait_for_lock_wait(session)
        app.commit()
    done.result()
    with pytest.raises(TrackedCounter):
        store.increment(app, "orders", "a")


@pytest.mark.servers("mariadb", "mysql")
def test_a_row_that_changed_since_the_snapshot_is_an_error_to_retry(
    store: Store, other: Store, app: Connection, session: Session
) -> None:
    """Where MariaDB's innodb_snapshot_isolation is on."""
    if not session.query("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
        pytest.skip("this server has no innodb_snapshot_isolation")
    run(app, "SET SESSION innodb_snapshot_isolation = ON")
    other.counters.set("orders", app_slots=1)
    commit_one(store, app, "orders", "a")
    run(app, "SELECT COUNT(*) FROM counter_slot")
    other.counters.set("orders", app_slots=2)
    with pytest.raises(pymysql.err.OperationalError) as caught:
        store.increment(app, "orders", "a")
    assert caught.value.args[0] == 1020
    app.rollback()
    commit_one(store, app, "orders", "a")
    assert store.totals.total("orders") == 2


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("level", LEVELS)
def test_a_call_in_the_midst_of_a_transaction_follows_a_change(
    store: Store, other: Store, app: Connection, session: Session, level: str
) -> None:
    """Also where the counter's row was found outdated, and stays locked by that."""
    run(app, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    store.increment(app, "orders", "a", at=LATE)
    app.rollback()
    in_berlin(other)
    store.increment(app, "others", "a")
    commit_one(store, app, "orders", "a", at=LATE)
    assert labels(session) == {"2026-11-22 00:00:00": 1}
    other.counters.delete("orders")
    store.increment(app, "others", "a")
    store.increment_many(app, "orders", {"a": 1, "b": 1}, at=LATE)
    app.commit()
    assert labels(session) == {"2026-11-21 00:00:00": 2}


@pytest.mark.servers("mariadb", "mysql")
def test_many_stores_make_the_same_row_at_once(mysql_url: str, session: Session) -> None:
    stores = [Store(mysql_url) for _ in range(3)]
    apps = [open_app(mysql_url) for _ in stores]
    try:
        pairs = zip(stores, apps, strict=True)
        together(*(partial(store.increment, app, "orders", "a") for store, app in pairs))
        for app in apps:
            app.commit()
    finally:
        for store, app in zip(stores, apps, strict=True):
            store.close()
            app.close()
    assert sum(app_slots(session).values()) == 3
    assert session.query("SELECT COUNT(*) FROM app_counter") == [(1,)]
