"""Counting in the application's own transaction, on its own connection."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT
from pymysql.cursors import DictCursor, SSCursor, SSDictCursor

import countersink.transactions
from countersink.database.connection import connect
from countersink.database.sql import quoted
from countersink.database.url import Settings
from countersink.store import Store
from countersink.store.verify import open_session, verify
from countersink.transactions import ROWS_PER_STATEMENT
from tests.support.app_connection import (
    MOST,
    Connection,
    app_slots,
    commit_one,
    labels,
    open_app,
    run,
    set_amount,
    wait_for_lock_wait,
    without_snapshot_isolation,
)
from tests.support.entries import MAX, MIN, Database
from tests.support.ledger import held, posted
from tests.support.proxies import MySQLProxy

pytestmark = pytest.mark.servers("mariadb", "mysql")

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
DEADLOCK = 1213


@pytest.fixture
def shop(app_database_url: str) -> str:
    """An application's database with a table; the name of the table."""
    name = f"{Settings.parse(app_database_url).database}.orders"
    with connect(app_database_url) as session:
        session.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY) ENGINE = InnoDB")
    return name


def asked(app: Connection) -> int:
    """Statements that a connection has sent."""
    ((_, number),) = run(app, "SHOW SESSION STATUS LIKE 'Questions'")
    return int(number)


def test_it_is_there_with_the_business_row_or_not_at_all(db: Database, shop: str) -> None:
    run(db.app, f"INSERT INTO {shop} VALUES (1)")
    db.store.increment(db.app, "orders", "paid")
    assert db.store.counters.list() == []
    db.app.commit()
    assert db.store.totals.total("orders", key="paid") == 1
    run(db.app, f"INSERT INTO {shop} VALUES (2)")
    db.store.increment(db.app, "orders", "paid")
    db.app.rollback()
    assert db.store.totals.total("orders", key="paid") == 1
    assert run(db.app, f"SELECT COUNT(*) FROM {shop}") == [(1,)]


def test_each_kind_of_connection_and_cursor(db: Database, app_database_url: str) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"autocommit": True},
        {"cursorclass": DictCursor},
        {"cursorclass": SSCursor},
        {"cursorclass": SSDictCursor},
        {"client_flag": CLIENT.FOUND_ROWS},
        {"charset": "latin1"},
        {"charset": "gbk"},
        {"database": None},
        {"database": Settings.parse(app_database_url).database},
        {"sql_mode": ""},
        {"sql_mode": "ANSI,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT"},
        {"sql_mode": "TRADITIONAL"},
        {"init_command": "SET SESSION time_zone = '+13:00'"},
        {"init_command": "SET SESSION sql_select_limit = 1"},
    ]
    if db.session.dialect.name == "mariadb":
        kinds.append({"sql_mode": "ORACLE"})  # a parser of its own
    for number, options in enumerate(kinds, 1):
        with open_app(db.mysql_url, **options) as app:
            db.store.increment(app, "orders", "ä'\\", at=NOON)
            db.store.increment(app, "orders", "ä'\\", -1, at=NOON)
            db.store.increment(app, "orders", "ä'\\", 0, at=NOON)
            db.store.increment_many(app, "orders", {"ä'\\": 1, "": 0, "b": 2}, at=NOON)
            db.store.increment_many(app, "orders", {"": 0, "b": 0}, at=NOON)
            for days in range(3):
                db.store.increment(app, "gone", "x", 5, at=NOON + timedelta(days=days))
            db.store.delete(app, "gone", "x")
            app.commit()
        assert db.keys("orders") == {"ä'\\".encode(): number, b"": 0, b"b": 2 * number}
        assert db.keys("gone") == {}
    assert labels(db.session) == {"2026-11-21 00:00:00": 3 * len(kinds)}


def test_nothing_is_asked_of_the_server_but_by_the_first_call(mysql_url: str) -> None:
    with (
        MySQLProxy.to(mysql_url) as proxy,
        Store(proxy.url(mysql_url)) as store,
        open_app(mysql_url) as app,
    ):
        store.increment(app, "orders", "paid")
        before = len(proxy.seen)
        assert before > 0
        for _ in range(3):
            store.increment(app, "orders", "paid")
            store.increment_many(app, "orders", {"a": 1, "b": 2})
        app.commit()
        assert len(proxy.seen) == before


def test_several_thousand_keys_in_their_order(db: Database) -> None:
    amounts = {f"key-{number}é": number for number in range(3500)}
    shuffled = list(amounts.items())
    Random(7).shuffle(shuffled)
    with MySQLProxy.to(db.mysql_url) as proxy, open_app(proxy.url(db.mysql_url)) as app:
        db.store.increment_many(app, "orders", dict(shuffled))
        db.store.increment_many(app, "orders", amounts)
        app.commit()
        sent = [request.text for request in proxy.seen if request.kind == "slots"]
    assert len(sent) == 8
    for statements in (sent[:4], sent[4:]):
        found = [
            bytes.fromhex(part.split("'")[0])
            for text in statements
            for part in text.split("', X'")[1:]
        ]
        assert found == sorted(key.encode() for key in amounts)
    assert db.keys("orders") == {key.encode(): 2 * n for key, n in amounts.items()}


def test_many_are_all_or_nothing_even_for_whoever_commits_after_an_error(
    db: Database, shop: str
) -> None:
    db.store.counters.set("orders", app_slots=1)
    without_snapshot_isolation(db.app)
    commit_one(db.store, db.app, "orders", "z", MAX)
    set_amount(db.app, "z", MOST)
    db.app.commit()
    amounts = {f"a{number}": 1 for number in range(ROWS_PER_STATEMENT)} | {"z": 1}
    run(db.app, f"INSERT INTO {shop} VALUES (1)")
    with pytest.raises(pymysql.err.DataError, match="1264"):
        db.store.increment_many(db.app, "orders", amounts)
    db.app.commit()
    assert run(db.app, f"SELECT COUNT(*) FROM {shop}") == [(1,)]
    with open_app(db.mysql_url, autocommit=True) as alone:
        without_snapshot_isolation(alone)
        with pytest.raises(pymysql.err.DataError, match="1264"):
            db.store.increment_many(alone, "orders", amounts)
        assert db.keys("orders") == {b"z": MOST}
        set_amount(alone, "z", MAX)
        db.store.increment_many(alone, "orders", amounts)
    assert db.keys("orders") == {
        **{key.encode(): 1 for key in amounts},
        b"z": MAX + 1,
    }


@pytest.mark.parametrize("ended", ["by a time-out", "by KILL QUERY"])
def test_nothing_is_counted_where_its_posting_alone_fails_and_the_transaction_commits(
    db: Database, shop: str, ended: str
) -> None:
    db.store.increment_many(db.app, "orders", {"paid": 1, "sent": 2}, at=NOON)
    db.app.commit()
    run(db.app, f"SET SESSION innodb_lock_wait_timeout = {1 if ended == 'by a time-out' else 50}")
    run(db.app, f"INSERT INTO {shop} VALUES (1)")
    ((number,),) = run(db.app, "SELECT CONNECTION_ID()")
    with connect(db.mysql_url) as holder, ThreadPoolExecutor(1) as pool:
        holder.begin()
        assert len(holder.query("SELECT amount FROM counter_ledger FOR UPDATE")) == 1
        counting = pool.submit(
            db.store.increment_many, db.app, "orders", {"paid": 4, "new": 8, "sent": -2}, at=NOON
        )
        if ended == "by KILL QUERY":
            wait_for_lock_wait(db.session)
            db.session.execute(f"KILL QUERY {number:d}")
        with pytest.raises(pymysql.err.OperationalError, match=r"1205|1317"):
            counting.result(60)
        holder.rollback()
    db.app.commit()
    assert run(db.app, f"SELECT COUNT(*) FROM {shop}") == [(1,)]
    assert db.keys("orders") == {b"paid": 1, b"sent": 2}
    assert held(db.session) == posted(db.session)
    with open_session(db.mysql_url) as verifying:
        assert verify(verifying).differences == []


@pytest.mark.parametrize(("amount", "step"), [(MAX, 1), (MIN, -1)])
@pytest.mark.parametrize("mode", ["", "STRICT_ALL_TABLES"])
def test_sums_go_beyond_64_bits(db: Database, mode: str, amount: int, step: int) -> None:
    db.store.counters.set("orders", app_slots=1)
    with open_app(db.mysql_url, sql_mode=mode) as app:
        for _ in range(3):
            commit_one(db.store, app, "orders", "k", amount)
            db.store.increment_many(app, "orders", {"a": step, "k": amount})
            db.store.increment(app, "orders", "k", step)
            app.commit()
        assert db.keys("orders") == {b"k": 6 * amount + 3 * step, b"a": 3 * step}
        assert held(db.session) == posted(db.session)
        db.store.delete(app, "orders", "k")
        app.commit()
    assert db.keys("orders") == {b"a": 3 * step}


@pytest.mark.parametrize(
    ("snapshot_isolation", "first", "slots"), [("OFF", 256, 16), ("ON", 1024, 2**16 - 1024)]
)
def test_transactions_of_different_connections_do_not_wait_for_each_other(
    db: Database, snapshot_isolation: str, first: int, slots: int
) -> None:
    known = db.session.query("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
    if not known and snapshot_isolation == "ON":
        pytest.skip("this server has no innodb_snapshot_isolation")
    apps = [open_app(db.mysql_url) for _ in range(8)]
    numbers = {run(app, "SELECT CONNECTION_ID()")[0][0] for app in apps}
    for app in apps:
        if known:
            run(app, f"SET SESSION innodb_snapshot_isolation = {snapshot_isolation}")
        run(app, "SET SESSION innodb_lock_wait_timeout = 1")
        db.store.increment(app, "orders", "hot")
    for app in apps:
        db.store.increment_many(app, "orders", {"hot": 1, "warm": 1})
    for app in apps:
        app.commit()
        app.close()
    wanted = dict.fromkeys((first + number % slots for number in numbers), 0)
    for number in numbers:
        wanted[first + number % slots] += 3
    assert app_slots(db.session) == wanted
    assert db.store.totals.total("orders") == 24


REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("increment", ("no good", "a"), ValueError, "A-Z"),
    ("increment", (7, "a"), TypeError, "str"),
    ("increment", ("orders", b"a"), TypeError, "str"),
    ("increment", ("orders", "\ud800"), ValueError, "surrogate"),
    ("increment", ("orders", "a", 2**63), ValueError, "64-bit"),
    ("increment", ("orders", "a", True), TypeError, "int"),
    ("increment", ("orders", "a", 1.0), TypeError, "int"),
    ("increment_many", ("orders", ["a"]), TypeError, "mapping"),
    ("increment_many", ("orders", {"a": 1, "b": None}), TypeError, "int"),
    ("increment_many", ("no good", {}), ValueError, "A-Z"),
    ("delete", ("orders", None), TypeError, "str"),
    ("delete", ("", "a"), ValueError, "A-Z"),
]
NO_TIMES: list[tuple[Any, type[Exception], str]] = [
    (datetime(2026, 1, 1), ValueError, "time zone"),  # noqa: DTZ001
    (date(2026, 1, 1), TypeError, "date"),
    (datetime(1969, 12, 31, tzinfo=UTC), ValueError, "1970"),
]


def test_what_cannot_be_is_refused_in_the_caller_and_nothing_is_sent(db: Database) -> None:
    before = asked(db.app)
    for method, arguments, error, says in REFUSED:
        with pytest.raises(error, match=says):
            getattr(db.store, method)(db.app, *arguments)
    for at, error, says in NO_TIMES:
        with pytest.raises(error, match=says):
            db.store.increment(db.app, "orders", at=at)
    with pytest.raises(TypeError, match=r"cursor\(\)"):
        db.store.increment(object(), "orders")  # type: ignore[arg-type]
    db.store.increment_many(db.app, "orders", {})
    assert asked(db.app) - before == 1
    assert run(db.app, "SELECT COUNT(*) FROM counter_slot") == [(0,)]


def test_a_forked_child_counts_on_a_connection_of_its_own(store: Store, mysql_url: str) -> None:
    with open_app(mysql_url) as app:
        commit_one(store, app, "orders", "parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with open_app(mysql_url) as app:
                store.increment(app, "orders", "child")
                commit_one(store, app, "new", "child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store.totals.total("orders") == 2
    assert store.totals.total("new") == 1


@pytest.mark.parametrize("completion", ["CHAIN", "RELEASE"])
def test_without_a_transaction_none_is_left_open(db: Database, completion: str) -> None:
    """Also where the server would begin another one after each, or end the connection."""
    db.store.counters.set("orders", app_slots=1)
    with open_app(db.mysql_url, autocommit=True) as app:
        run(app, f"SET SESSION completion_type = '{completion}'")
        db.store.increment(app, "orders", "z", MAX)
        set_amount(app, "z", MOST)
        db.store.delete(app, "orders", "a")
        db.store.increment(app, "orders", "b")
        amounts = {f"a{number}": 1 for number in range(ROWS_PER_STATEMENT)} | {"z": 1}
        with pytest.raises(pymysql.err.DataError, match="1264"):
            db.store.increment_many(app, "orders", amounts)
        db.store.increment(app, "orders", "c")
        assert db.keys("orders") == {b"z": MOST, b"b": 1, b"c": 1}
        set_amount(app, "z", MAX)


def test_the_settings_remembered_are_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(countersink.transactions, "MAX_KEPT", 3)
    for number in range(5):
        for _ in range(2):
            commit_one(db.store, db.app, f"counter-{number}")
    assert len(db.store._increments._settings._known) == 2
    assert [counter.name for counter in db.store.counters.list()] == [
        f"counter-{number}" for number in range(5)
    ]


def test_a_database_with_an_odd_name(mysql_url: str) -> None:
    assert quoted("a`b%s-c") == "`a``b%s-c`"
    parts = mysql_url.rsplit("/", 1)
    with Store(f"{parts[0]}/odd%60name%25s-x") as store, open_app(mysql_url) as app:
        try:
            assert store.migrate() == ["0001_schema"]
            store.increment(app, "orders", "a")
            store.increment_many(app, "orders", {"a": 1, "b": 1})
            store.delete(app, "orders", "b")
            app.commit()
            assert store.totals.total("orders") == 2
        finally:
            run(app, "DROP DATABASE IF EXISTS `odd``name%s-x`")
