"""Transactions that keep to their snapshot (MariaDB's innodb_snapshot_isolation) count, too."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

import pytest

from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.store import Store
from tests.drivers import applications
from tests.drivers.applications import App
from tests.drivers.test_drivers import DRIVERS, needs_mysqlclient
from tests.support.entries import together

Open = Callable[[str], App]

LEVELS = ("REPEATABLE READ", "SERIALIZABLE")
CHANGED = 1020
DEADLOCK = 1213
OPENERS = [
    *DRIVERS,
    pytest.param(
        partial(applications.on_sqlalchemy, driver="pymysql", raw=False), id="sqlalchemy-pymysql"
    ),
    pytest.param(
        partial(applications.on_sqlalchemy, driver="mysqldb", raw=False),
        id="sqlalchemy-mysqldb",
        marks=needs_mysqlclient,
    ),
]


@pytest.fixture(autouse=True)
def _known(session: Session) -> None:
    if not session.query("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
        pytest.skip("this server has no innodb_snapshot_isolation")


@contextmanager
def opened(open_app: Open, url: str, level: str = LEVELS[0]) -> Iterator[App]:
    """An application as MariaDB has it from 11.6.2 on."""
    with closing(open_app(url)) as app:
        app.run("SET SESSION innodb_snapshot_isolation = ON")
        app.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        app.commit()
        yield app


def look(app: App) -> None:
    """Begin a transaction that has a snapshot."""
    app.run("SELECT COUNT(*) FROM day_note")


@pytest.mark.parametrize(
    ("open_app", "level"),
    [
        (applications.on_pymysql, LEVELS[1]),
        *(pytest.param(*each.values, LEVELS[0], id=each.id, marks=each.marks) for each in OPENERS),
        *(
            pytest.param(
                *(*each.values, LEVELS[1]),
                id=f"{each.id}-serializable",
                marks=[*each.marks, pytest.mark.long("drivers differ at the other level")],
            )
            for each in OPENERS[1:]
        ),
    ],
)
def test_what_others_have_counted_since_is_not_in_the_way(
    open_app: Open, store: Store, mysql_url: str, level: str
) -> None:
    """Nor is that the counter, or the sequence, is new."""
    store.counters.set("known", app_slots=1)
    with opened(open_app, mysql_url, level) as app, opened(open_app, mysql_url, level) as other:
        store.increment(other.connection, "known", "a", 0)
        other.commit()
        for turn in range(1, 3):
            look(app)
            look(other)
            for counting in (other, app):
                store.increment(counting.connection, "known", "a")
                store.increment_many(counting.connection, "known", {"a": 1, "b": 1})
                counting.commit()
            look(app)
            store.increment(app.connection, f"new-{turn}", "a")
            store.increment_many(app.connection, f"new-{turn}", {"a": 1, "b": 1})
            assert store.sequences.next_in(app.connection, f"new {turn}") == 1
            assert store.sequences.next_in(app.connection, f"new {turn}") == 2
            app.rollback()
            look(app)
            store.increment(app.connection, f"new-{turn}", "a")
            assert store.sequences.next_in(app.connection, f"new {turn}") == 1
            app.commit()
            assert store.totals.many("known", ["a", "b"]) == {"a": 4 * turn, "b": 2 * turn}
            assert store.totals.total(f"new-{turn}") == 1
            assert store.sequences.next(f"new {turn}") == 2


@pytest.mark.parametrize("open_app", OPENERS)
def test_a_number_that_was_taken_since_is_an_error_to_retry(
    open_app: Open, store: Store, mysql_url: str
) -> None:
    assert store.sequences.next("invoice") == 1
    with opened(open_app, mysql_url) as app:
        look(app)
        store.increment(app.connection, "orders")
        assert store.sequences.next("invoice") == 2
        with pytest.raises(Exception, match="has changed since last read") as caught:
            store.sequences.next_in(app.connection, "invoice")
        assert caught.value.args[0] == CHANGED
        (note,) = caught.value.__notes__
        assert "run it again from its beginning, as after a deadlock" in note
        # the server has undone all of it
        app.commit()
        look(app)
        store.increment(app.connection, "orders")
        assert store.sequences.next_in(app.connection, "invoice") == 3
        app.commit()
        # with no snapshot before it there is nothing to be newer than
        assert store.sequences.next("invoice") == 4
        assert store.sequences.next_in(app.connection, "invoice") == 5
        look(app)
        app.commit()
    assert store.totals.total("orders") == 1


@pytest.mark.parametrize("level", LEVELS)
def test_who_runs_it_again_counts_everything_once_and_leaves_no_gap(
    store: Store, mysql_url: str, level: str
) -> None:
    """From the first use of counter and sequence on."""

    def sell() -> list[int]:
        with opened(applications.on_pymysql, mysql_url, level) as app:
            return [sale(app) for _ in range(4)]

    def sale(app: App) -> int:
        while True:
            try:
                look(app)
                store.increment(app.connection, "orders", "paid")
                number = store.sequences.next_in(app.connection, "invoice")
                app.commit()
                return number
            except Exception as error:
                app.rollback()
                if error.args[0] not in (CHANGED, DEADLOCK):
                    raise

    sold = together(*[sell] * 4)
    assert sorted(number for own in sold for number in own) == list(range(1, 17))
    assert store.totals.total("orders", key="paid") == 16


@pytest.mark.parametrize("open_app", OPENERS[:1])
def test_triggers_count_what_others_have_changed_since(
    open_app: Open, store: Store, app_database_url: str
) -> None:
    schema = Settings.parse(app_database_url).database
    with opened(open_app, app_database_url) as app, opened(open_app, app_database_url) as other:
        app.run("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(9)) ENGINE = InnoDB")
        store.tracked.track(f"{schema}.orders", counter="rows", by=["status"], app_slots=1)
        for turn in range(2):
            app.run("SELECT COUNT(*) FROM orders")
            other.run(f"INSERT INTO orders VALUES ({2 * turn}, 'paid')")
            other.commit()
            app.run(f"INSERT INTO orders VALUES ({2 * turn + 1}, 'open')")
            app.run(f"UPDATE orders SET status = 'paid' WHERE id = {2 * turn + 1}")
            app.commit()
        assert store.row_count(f"{schema}.orders", status="paid") == 4


def test_the_user_of_an_application_needs_no_rights_on_counters(
    store: Store, session: Session, mysql_url: str
) -> None:
    database = Settings.parse(mysql_url).database
    user = f"{database}_app"[-32:]
    session.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'shop'")
    try:
        for table in ("counter_slot", "counter_ledger"):
            session.execute(f"GRANT SELECT, INSERT, UPDATE ON {database}.{table} TO '{user}'@'%'")
        session.execute(f"GRANT SELECT ON {database}.day_note TO '{user}'@'%'")
        open_app = partial(applications.on_pymysql, user=user, password="shop")
        with opened(open_app, mysql_url) as app:
            look(app)
            store.increment(app.connection, "orders")
            app.commit()
        assert store.totals.total("orders") == 1
    finally:
        session.execute(f"DROP USER '{user}'@'%'")
