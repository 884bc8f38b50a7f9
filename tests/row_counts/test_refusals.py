"""What cannot be tracked is refused before anything is changed, with advice."""

from typing import Any

import pytest

from countersink.database.sql import quoted
from countersink.database.url import Settings
from countersink.row_counts.definitions import (
    default_counter,
    parse,
)
from countersink.row_counts.keys import key_sql
from countersink.row_counts.table import read_table, widest
from countersink.store import Refused, Store
from tests.row_counts.application import App, user

pytestmark = pytest.mark.servers("mariadb", "mysql")

TABLE = "CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20), placed DATE)"


def refusal(app: App, table: str, **how: Any) -> str:
    """Why a table is refused, by plan and by track alike, which both change nothing."""
    with pytest.raises(ValueError, match=r"\w") as planned:
        app.store.tracked.plan(table, **how)
    with pytest.raises(ValueError, match=r"\w") as tracked:
        app.store.tracked.track(table, **how)
    assert str(planned.value) == str(tracked.value)
    assert app.store.tracked.list() == []
    assert app.triggers() == set()
    return str(planned.value)


LONGEST = {
    "VARCHAR(63) CHARACTER SET utf8mb4": "😀" * 63,
    "VARCHAR(85) CHARACTER SET latin1": "€" * 85,
    "CHAR(127) CHARACTER SET ascii": "|" * 127,
    "SET('|', '\\\\') CHARACTER SET ascii": "|,\\",
    "VARBINARY(127)": "x" * 127,
    "DECIMAL(65, 30)": "-" + "9" * 35 + "." + "9" * 30,
    "BIGINT": -(2**63),
    "BIT(64)": 2**64 - 1,
    "TIME(6)": "-838:59:58.999999",
    "DATETIME(6)": "9999-12-31 23:59:59.999999",
}
TOO_LONG = (
    *("TEXT CHARACTER SET utf8mb4", "MEDIUMTEXT", "BLOB"),
    *("JSON", "DOUBLE", "FLOAT(7, 2)", "POINT", "TIMESTAMP NULL"),
)


def test_the_longest_value_of_a_column_that_is_taken_fits_a_key(app: App) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(LONGEST))
    app.run(f"CREATE TABLE orders (id INT PRIMARY KEY, {columns})")
    marks = ", ".join(["%s"] * len(LONGEST))
    app.session.execute(f"INSERT INTO orders VALUES (1, {marks})", list(LONGEST.values()))
    table = read_table(app.session, app.schema, "orders", "")
    for number, kind in enumerate(LONGEST):
        (column,), _ = table.counted_by([f"c{number}"], None)
        ((length,),) = app.session.query(f"SELECT LENGTH({key_sql([column])}) FROM orders")
        assert length <= widest(column) <= 255, kind
    app.track("orders", counter="c", by=["c0"])
    app.run("INSERT INTO orders SELECT 2, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 FROM orders")
    assert app.counts("c") == {("1970-01-01", ("😀" * 63).encode()): 2}


def test_a_column_whose_values_might_not_fit_is_refused_with_advice(app: App) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TOO_LONG))
    app.run(f"CREATE TABLE orders (id INT PRIMARY KEY, {columns})")
    for number, kind in enumerate(TOO_LONG):
        with pytest.raises(ValueError, match=f"c{number} ") as refused:
            app.store.tracked.plan(f"{app.schema}.orders", counter="c", by=[f"c{number}"])
        advice = "as the day" if "TIMESTAMP" in kind else "count by a generated column"
        assert advice in str(refused.value), kind
    app.run(
        "ALTER TABLE orders ADD COLUMN short VARCHAR(60) CHARACTER SET utf8mb4 AS (LEFT(c0, 60))"
    )
    app.store.tracked.plan(f"{app.schema}.orders", counter="c", by=["short"])


def test_what_cannot_be_asked_for(app: App) -> None:
    app.run(TABLE)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"by": ["nothing"]}, "no column 'nothing'; it has id, status, placed"),
        ({"by": ["status", "STATUS"]}, "status is given twice"),
        ({"day": "status"}, "VARCHAR: the day must be a DATE"),
        ({"day": "nothing"}, "no column"),
        ({"app_slots": 0}, "1 to 256"),
        ({"app_slots": 257}, "1 to 256"),
        ({"counter": "é"}, "A-Z a-z"),
        ({"counter": "c "}, "A-Z a-z"),
    ]
    for how, why in wrong:
        assert why in refusal(app, f"{app.schema}.orders", **{"counter": "c", **how})


def test_what_is_no_table_to_track(app: App) -> None:
    app.run(
        TABLE,
        "CREATE VIEW seen AS SELECT * FROM orders",
        "CREATE TABLE old (id INT) ENGINE = MyISAM",
        "CREATE TEMPORARY TABLE passing (id INT) ENGINE = InnoDB",
    )
    own = str(Settings.parse(app.mysql_url).database)
    for (table,) in app.own.query(
        "SELECT TABLE_NAME FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = %s AND TABLE_TYPE = 'BASE TABLE'",
        (own,),
    ):
        assert "a table of countersink" in refusal(app, table, counter="c"), table
    for table, why in (
        (f"{app.schema}.seen", "is no plain table (view)"),
        (f"{app.schema}.old", "ENGINE = InnoDB"),
        (f"{app.schema}.passing", "temporary"),
        (f"{app.schema}.nothing", "there is no table"),
        ("no_such_schema.orders", "there is no table"),
        ("counter_slot", "a table of countersink"),
        (f"`{own}`.tracked_table", "a table of countersink"),
        ("schema_version", "a table of countersink"),
        ("counter_daily", "is no plain table"),
        ("mysql.user", "a system table"),
        ("information_schema.tables", "a system table"),
        ("a.b.c", "backquote"),
    ):
        assert why in refusal(app, table, counter="c"), table
    assert "give a counter (--counter)" in refusal(app, f"{app.schema}.`an order`")


def test_what_mariadb_alone_has(app: App) -> None:
    if app.session.dialect.name != "mariadb":
        pytest.skip("MySQL has neither")
    app.run("CREATE SEQUENCE numbers", "CREATE TABLE past (id INT) WITH SYSTEM VERSIONING")
    assert "is no plain table (sequence)" in refusal(app, f"{app.schema}.numbers", counter="c")
    assert "is no plain table (system versioned)" in refusal(app, f"{app.schema}.past", counter="c")
    app.run("CREATE TABLE nets (id UUID, net INET6, PRIMARY KEY (id))")
    app.track("nets", counter="c", by=["id", "net"])
    app.run("INSERT INTO nets VALUES ('6ccd780c-baba-1026-9564-5b8c656024db', '::ffff:1.2.3.4')")
    assert list(app.counts("c")) == [
        ("1970-01-01", b"6ccd780c-baba-1026-9564-5b8c656024db|::ffff:1.2.3.4")
    ]
    assert app.found() == []


def test_a_counter_that_is_anything_else_is_refused(app: App) -> None:
    app.run(TABLE, "CREATE TABLE others LIKE orders")
    table = f"{app.schema}.orders"
    app.own.execute(
        "INSERT INTO counter_ledger VALUES ('counted', '2026-11-21', 4, 17, 0, 0, NULL)"
    )
    assert "has counts already" in refusal(app, table, counter="counted")
    app.store.counters.set("berlin", time_zone="Europe/Berlin")
    app.store.counters.set("short", keep="day=30d")
    app.store.counters.set("fine", resolution="hour")
    for counter in ("berlin", "short", "fine"):
        assert "cannot have: give another counter" in refusal(app, table, counter=counter)
    app.store.counters.set("made", app_slots=3)
    first = app.track("orders", counter="made", by=["status"])
    for other in ({"by": ["id"]}, {"by": ["status"], "app_slots": 3}, {"day": "placed"}):
        with pytest.raises(ValueError, match=r"tracks .*orders by status on 16 slots already"):
            app.track("orders", counter="made", **other)
    with pytest.raises(ValueError, match="already"):
        app.track("others", counter="made", by=["status"])
    assert app.store.tracked.list() == [first]


def test_a_missing_right_is_named_before_anything_is_changed(
    app: App,
) -> None:
    app.run(TABLE, "INSERT INTO orders VALUES (1, 'open', NULL)")
    own, table = Settings.parse(app.mysql_url).database, f"{app.schema}.orders"
    of_table, of_counts = f"SELECT, TRIGGER ON `{app.schema}`.`orders`", "SELECT, INSERT, UPDATE ON"
    for rights, needed, planned in (
        ([f"ALL ON {own}.*", f"SELECT ON {table}"], of_table, True),
        ([f"ALL ON {own}.*", f"TRIGGER ON {table}"], of_table, False),
        ([f"SELECT ON {own}.*", f"SELECT, TRIGGER ON {table}"], of_counts, False),
    ):
        with user(app.mysql_url, *rights) as url, Store(url) as limited:
            if planned:  # only the server can tell who may make triggers, when they are made
                assert limited.tracked.plan(table, counter="c", by=["status"]).statements
            attempts = () if planned else (limited.tracked.plan,)
            for attempt in (*attempts, limited.tracked.track):
                with pytest.raises(Refused) as refused:
                    attempt(table, counter="c", by=["status"])
                assert f"GRANT {needed}" in str(refused.value)
                assert "TO `limited`@`%`" in str(refused.value)
        assert app.store.tracked.list() == []
    # With just these it works, and the application needs none of them.
    rights = [f"ALL ON {own}.*", f"SELECT, TRIGGER ON {table}"]
    with user(app.mysql_url, *rights) as url, Store(url) as limited:
        limited.tracked.track(table, counter="c", by=["status"])
        app.run("INSERT INTO orders VALUES (2, 'open', NULL)")
        assert app.found() == []
        limited.tracked.untrack("c")
    assert app.triggers() == set()


def test_rights_by_a_role_do_only_where_triggers_have_them(app: App) -> None:
    app.run(TABLE)
    own, table = Settings.parse(app.mysql_url).database, f"{app.schema}.orders"
    mariadb = app.session.dialect.name == "mariadb"
    with user(app.mysql_url, f"SELECT, TRIGGER ON {table}", f"SELECT ON {own}.*") as url:
        app.run(
            "CREATE ROLE counting",
            f"GRANT ALL ON {own}.* TO counting",
            "GRANT counting TO limited@'%'",
            f"SET DEFAULT ROLE counting {'FOR' if mariadb else 'TO'} limited@'%'",
        )
        try:
            with Store(url) as limited:
                if mariadb:
                    with pytest.raises(Refused, match="GRANT SELECT, INSERT, UPDATE ON"):
                        limited.tracked.track(table, counter="c")
                    assert app.store.tracked.list() == []
                    return
                limited.tracked.track(table, counter="c")
            app.run("INSERT INTO orders VALUES (2, 'open', NULL)")
            assert app.found() == []
            app.store.tracked.untrack("c")
        finally:
            app.run("DROP ROLE counting")


@pytest.mark.parametrize(
    ("written", "meant", "counter"),
    [
        ("orders", ("here", "orders"), "orders"),
        ("shop.orders", ("shop", "orders"), "shop.orders"),
        ("`shop`.`orders`", ("shop", "orders"), "shop.orders"),
        ("shop.`a.b`", ("shop", "a.b"), "shop.a.b"),
        ("`a``b`", ("here", "a`b"), None),
        ("my orders", ("here", "my orders"), None),
        ("é", ("here", "é"), None),
        ("`" + "x" * 64 + "`.y", ("x" * 64, "y"), None),
        ('a"b; DROP TABLE x', ("here", 'a"b; DROP TABLE x'), None),
    ],
)
def test_a_name_is_what_was_written(
    written: str, meant: tuple[str, str], counter: str | None
) -> None:
    assert parse(written, "here") == meant
    assert default_counter(written) == counter


@pytest.mark.parametrize("written", ["", ".", "a.", ".a", "a.b.c", "`a", "a`b", "``", "a\0b", "`"])
def test_what_is_no_name_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="backquote"):
        parse(written, "here")


def test_a_name_cannot_leave_its_quotes() -> None:
    assert quoted("a`; DROP TABLE b; `") == "`a``; DROP TABLE b; ```"
