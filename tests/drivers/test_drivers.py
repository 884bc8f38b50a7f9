"""Every driver and library that people use: the same counts, and their own errors."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import mysql.connector
import pytest

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.store import Store
from tests.drivers import applications, mysqlclient
from tests.drivers.applications import App
from tests.support.databases import dropped, new_name
from tests.support.entries import keys
from tests.support.ledger import post_planted
from tests.support.servers import MySQLServer

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)

FOUND_ROWS = 2
"""The flag of a client that wants to know how many rows were found, not changed."""

Open = Callable[..., App]

try:
    mysqlclient.load()
    WHY_NOT = ""
except ImportError as error:
    WHY_NOT = str(error)

needs_mysqlclient = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
needs_c = pytest.mark.skipif(
    not mysql.connector.HAVE_CEXT, reason="this mysql-connector-python has no part in C"
)

DRIVERS = [
    pytest.param(applications.on_pymysql, id="pymysql"),
    pytest.param(applications.on_mysqlclient, id="mysqlclient", marks=needs_mysqlclient),
    pytest.param(applications.on_connector, id="connector-c", marks=needs_c),
    pytest.param(applications.on_pure_connector, id="connector-pure"),
]
other_connection = pytest.mark.long("one of the two connections that a library hands out will do")
LIBRARIES = [
    *(
        pytest.param(
            partial(applications.on_sqlalchemy, driver=driver, raw=raw),
            id=f"sqlalchemy-{driver}{'-raw' * raw}",
            marks=[needs_mysqlclient] * (driver == "mysqldb")
            + [other_connection] * (raw != (driver == "mysqldb")),
        )
        for driver in ("pymysql", "mysqldb", "mysqlconnector")
        for raw in (False, True)
    ),
    *(
        pytest.param(
            partial(applications.on_django, raw=raw),
            id=f"django{'-raw' * raw}",
            marks=[needs_mysqlclient] + [other_connection] * raw,
        )
        for raw in (False, True)
    ),
]


@pytest.fixture(scope="module")
def shop_url(mysql_server: MySQLServer) -> Iterator[str]:
    """The URL of an application's database, made once: on MySQL that takes a second."""
    with dropped(mysql_server, new_name()) as url:
        with connect(url, database=False) as session:
            name = Settings.parse(url).database
            session.execute(f"CREATE DATABASE {name}")
            session.execute(f"CREATE TABLE {name}.sales (id INT PRIMARY KEY) ENGINE = InnoDB")
        yield url


@pytest.mark.parametrize("open_app", [*DRIVERS, *LIBRARIES])
def test_with_the_business_row_or_not_at_all(
    open_app: Open, store: Store, session: Session, shop_url: str
) -> None:
    with closing(open_app(shop_url)) as app:
        # it counts what is changed beside it: see test_snapshot_isolation
        if app.run("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
            app.run("SET SESSION innodb_snapshot_isolation = OFF")
        app.run("DELETE FROM sales")
        app.run("INSERT INTO sales VALUES (1)")
        store.increment(app.connection, "orders", "ä", at=NOON)
        store.increment_many(app.connection, "orders", {"ä": 2, "b%s": 3, "": 0}, at=NOON)
        store.increment(app.connection, "orders", "b%s", 0, at=NOON)
        assert keys(session, "orders") == {}
        app.commit()
        assert keys(session, "orders") == {"ä".encode(): 3, b"b%s": 3, b"": 0}
        app.run("INSERT INTO sales VALUES (2)")
        store.increment(app.connection, "orders", "ä", 10, at=NOON)
        store.delete(app.connection, "orders", "b%s")
        app.rollback()
        assert app.run("SELECT COUNT(*) FROM sales") == [(1,)]
        assert keys(session, "orders") == {"ä".encode(): 3, b"b%s": 3, b"": 0}
        # settings that change while it knows them, and rows of workers that are deleted
        store.counters.set("orders", app_slots=3)
        session.execute(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
            " VALUES ('orders', '2026-11-20', X'6225', 7, 5),"
            " ('orders', '2026-11-21', X'6225', 7, 5)"
        )
        post_planted(session)
        store.increment(app.connection, "orders", "b%", 1, at=NOON)
        store.increment_many(app.connection, "orders", {"ä": 1, "c": 1}, at=NOON)
        store.delete(app.connection, "orders", "b%")
        app.commit()
        assert keys(session, "orders") == {"ä".encode(): 4, b"b%s": 3, b"": 0, b"c": 1}
        store.increment_many(app.connection, "orders", {f"k{n:04}": n for n in range(1001)})
        app.rollback()
        assert store.totals.total("orders") == 8


@pytest.mark.parametrize("open_app", [*DRIVERS, *LIBRARIES[-2:]])
def test_the_drivers_own_errors(open_app: Open, store: Store, mysql_url: str) -> None:
    store.counters.set("orders", app_slots=1)
    with closing(open_app(mysql_url)) as app:
        store.increment(app.connection, "orders", "a", 2**63 - 1, at=NOON)
        app.run(f"UPDATE counter_slot SET amount = {10**27 - 1}")
        for keys_before in (0, 1001):
            amounts = {f"{n:04}": 1 for n in range(keys_before)} | {"a": 1}
            with pytest.raises(Exception, match="Out of range value for column") as caught:
                store.increment_many(app.connection, "orders", amounts, at=NOON)
            module = type(caught.value).__module__.split(".")[0]
            assert module in {"pymysql", "MySQLdb", "mysql", "django"}
            assert caught.value.args[0] == 1264
        app.run(f"UPDATE counter_slot SET amount = {2**63 - 1}")
        store.increment(app.connection, "orders", "a", 1, at=NOON)
        app.commit()
        assert store.totals.many("orders", ["a", "0000"]) == {"a": 2**63, "0000": 0}
        store.delete(app.connection, "orders", "a")
        app.commit()
        assert store.totals.total("orders") == 0


@pytest.mark.parametrize(
    "open_app",
    [*DRIVERS, pytest.param(partial(applications.on_django, raw=False), marks=needs_mysqlclient)],
)
def test_without_a_transaction(open_app: Open, store: Store, mysql_url: str) -> None:
    with closing(open_app(mysql_url, autocommit=True)) as app:
        store.increment(app.connection, "orders", "a", 2)
        store.increment_many(app.connection, "orders", {f"k{n:04}": 1 for n in range(1001)})
        assert store.totals.total("orders") == 1003
        for days in range(3):
            store.increment(app.connection, "orders", "a", at=NOON + timedelta(days=days))
        store.delete(app.connection, "orders", "a")
        assert store.totals.total("orders") == 1001


def ways() -> Iterator[tuple[Open, dict[str, Any]]]:
    """Drivers, and what people set up of them otherwise than it comes."""
    if not WHY_NOT:
        cursors: Any = importlib.import_module("MySQLdb.cursors")
        for cursor in (cursors.DictCursor, cursors.SSCursor, cursors.SSDictCursor):
            yield applications.on_mysqlclient, {"cursorclass": cursor}
        yield applications.on_mysqlclient, {"client_flag": FOUND_ROWS}
    for pure in (True, False) if mysql.connector.HAVE_CEXT else (True,):
        for options in (
            {"buffered": True},
            {"raw": True},
            {"raise_on_warnings": True},
            {"charset": "latin1"},
            {"client_flags": [-FOUND_ROWS]},
        ):
            yield applications.on_connector, {"use_pure": pure, **options}


def test_ways_to_set_them_up(store: Store, session: Session, mysql_url: str) -> None:
    """Cursors of dictionaries, of raw bytes and of the server; warnings as errors; rows found."""
    for number, (open_app, options) in enumerate(ways(), 1):
        with closing(open_app(mysql_url, **options)) as app:
            for _ in range(2):
                store.increment(app.connection, "orders", "a", at=NOON)
                store.increment(app.connection, "orders", "a", 0, at=NOON)
                store.increment_many(app.connection, "orders", {"a": 1, "b": 1}, at=NOON)
                store.increment(app.connection, "orders", "b", at=NOON + timedelta(days=1))
                store.delete(app.connection, "orders", "b")
                app.commit()
            assert keys(session, "orders") == {b"a": 4 * number}, (open_app, options)
