"""Triggers count every row, whatever wrote it, and never fail what the application writes."""

import pytest

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.store import BadData, Refused
from tests.row_counts.application import App

pytestmark = pytest.mark.servers("mariadb", "mysql")

ORDERS = """CREATE TABLE orders (
    id INT PRIMARY KEY, code INT NULL UNIQUE, status VARCHAR(20) NULL, placed DATE NULL
) CHARACTER SET utf8mb4"""
LAX = "SET SESSION sql_mode = ''"


@pytest.fixture
def orders(app: App) -> App:
    """An application whose table `orders` is tracked in two ways."""
    app.run(ORDERS, "INSERT INTO orders VALUES (1, 1, 'open', '2026-11-21'), (2, 2, NULL, NULL)")
    app.track("orders", counter="all")
    app.track("orders", counter="by_status", by=["status"], day="placed")
    return app


STATEMENTS = (
    "INSERT INTO orders VALUES (3, 3, 'a|b', '2026-11-20'), (4, 4, 'a\\\\b', '1969-12-31')",
    "INSERT IGNORE INTO orders VALUES (1, 9, 'x', NULL), (5, 2, 'x', NULL), (6, 6, 'new', NULL)",
    "INSERT INTO orders VALUES (1, 9, 'x', NULL) ON DUPLICATE KEY UPDATE status = 'upserted'",
    "INSERT INTO orders VALUES (1, 9, 'x', NULL) ON DUPLICATE KEY UPDATE status = 'upserted'",
    """INSERT INTO orders VALUES (8, 1, 'x', NULL), (9, 9, 'y', NULL)
    ON DUPLICATE KEY UPDATE placed = '2026-11-22'""",
    "REPLACE INTO orders VALUES (1, 2, 'both', '9999-12-31')",
    "REPLACE INTO orders VALUES (1, 2, 'both', '9999-12-31'), (7, NULL, '', '2026-11-21')",
    "UPDATE orders SET status = 'Open'",
    "UPDATE orders SET status = 'open'",
    "UPDATE orders SET status = 'open '",
    "UPDATE orders SET placed = placed + INTERVAL 1 DAY WHERE placed < '2026-11-25'",
    "UPDATE orders SET id = id + 100 ORDER BY id DESC",
    "UPDATE orders AS a JOIN orders AS b ON b.id = a.id + 1 SET a.status = NULL, b.status = 'b'",
    "DELETE a FROM orders AS a JOIN orders AS b ON b.id = a.id + 1",
    "INSERT INTO orders (id, status) SELECT id + 1000, UPPER(status) FROM orders",
    "DELETE FROM orders ORDER BY id LIMIT 2",
    "DELETE FROM orders",
)


def test_every_kind_of_statement_is_counted(orders: App) -> None:
    orders.track("orders", counter="by_both", by=["status", "id"], app_slots=1)
    for statement in STATEMENTS:
        orders.run(statement)
        assert orders.differs() == [], statement
    assert orders.found() == []
    assert orders.counts("all") == {}


def test_what_is_rolled_back_was_not_counted(orders: App) -> None:
    before = orders.counts("by_status")
    orders.run("BEGIN", *STATEMENTS[:8], "ROLLBACK")
    assert orders.counts("by_status") == before
    orders.run("BEGIN", STATEMENTS[0], "SAVEPOINT here", *STATEMENTS[1:8])
    orders.run("ROLLBACK TO here", "COMMIT")
    assert orders.differs() == []
    assert orders.store.totals.total("all") == 4


MODES = (
    "SET SESSION sql_mode = ''",
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,PAD_CHAR_TO_FULL_LENGTH,NO_ZERO_DATE'",
    "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES'",
    "SET NAMES latin1",
    "SET SESSION time_zone = '-11:00', SESSION autocommit = 0",
)


ROWS = (
    "'open', 'a', '2026-11-21 23:59:59'",
    "NULL, NULL, NULL",
    "'  ', 'b', '0000-00-00'",
    "'a|b', 'a', '0000-01-01'",
    "'much too long for the column', 'a', '2026-00-00'",
    "'x', 'no such', '2026-02-31 10:00:00'",
    "'\\\\', 'a', '9999-12-31 23:59:59'",
)


def test_no_setting_of_the_application_fails_its_writes_or_the_count(app: App) -> None:
    create = (
        "CREATE TABLE {} (id INT AUTO_INCREMENT PRIMARY KEY, status CHAR(8) NULL,"
        " kind ENUM('a', 'b') CHARACTER SET latin1 NULL, placed DATETIME NULL) CHARSET utf8mb4"
    )
    app.run(LAX, create.format("orders"), create.format("twins"))
    app.track("orders", counter="c", by=["status", "kind"], day="placed")
    for mode in MODES:
        with connect(app.app_url) as session:
            session.execute(mode)
            for values in ROWS:
                # With triggers just those rows are refused that are refused without.
                assert taken(session, "orders", values) == taken(session, "twins", values)
            session.execute("UPDATE orders SET status = CONCAT('y', LEFT(status, 3)) WHERE id > 2")
            session.commit()
            assert app.differs() == [], mode
            assert app.found() == [], mode
            session.execute("DELETE FROM orders WHERE MOD(id, 3) < 2")
            session.commit()
            assert app.differs() == [], mode


def taken(session: Session, table: str, values: str) -> bool:
    """Whether the table takes a row."""
    try:
        session.execute(f"INSERT INTO {table} VALUES (NULL, {values})")
    except (BadData, Refused):
        return False
    return True


def test_days_of_a_timestamp_are_those_of_utc_in_every_session(app: App) -> None:
    app.run("CREATE TABLE seen (id INT AUTO_INCREMENT PRIMARY KEY, at TIMESTAMP(3) NULL)")
    app.track("seen", counter="c", day="at")
    for zone in ("+00:00", "+13:00", "-11:30"):
        app.run(
            f"SET SESSION time_zone = '{zone}', SESSION sql_mode = ''",
            "INSERT INTO seen (at) VALUES (FROM_UNIXTIME(1795305599.999)), (NULL), ('0000-00-00')",
            "INSERT INTO seen (at) VALUES (FROM_UNIXTIME(1795305600)), (FROM_UNIXTIME(1.5))",
        )
    assert app.counts("c") == {
        ("1969-12-31", b""): 6,
        ("1970-01-01", b""): 3,
        ("2026-11-21", b""): 3,
        ("2026-11-22", b""): 3,
    }
    assert app.found() == []
    assert app.differs() == []


def test_triggers_of_the_application_work_beside(app: App) -> None:
    app.run(
        ORDERS,
        "CREATE TABLE log (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(20))",
        "CREATE TRIGGER early BEFORE INSERT ON orders FOR EACH ROW"
        " SET NEW.status = UPPER(NEW.status), NEW.placed = '2026-11-20'",
        "CREATE TRIGGER late AFTER INSERT ON orders FOR EACH ROW"
        " INSERT INTO log (what) VALUES (NEW.status)",
        "CREATE TRIGGER changing BEFORE UPDATE ON orders FOR EACH ROW"
        " SET NEW.status = CONCAT(NEW.status, '!')",
    )
    own = app.triggers()
    app.track("orders", counter="c", by=["status"], day="placed")
    app.track("log", counter="log", by=["what"])
    app.run("INSERT INTO orders VALUES (1, 1, 'open', NULL), (2, 2, 'paid', NULL)")
    app.run("UPDATE orders SET code = code + 10")
    assert app.counts("c") == {("2026-11-20", b"OPEN!"): 1, ("2026-11-20", b"PAID!"): 1}
    assert sum(app.counts("log").values()) == 2
    app.store.tracked.untrack("c")
    app.store.tracked.untrack("log")
    assert app.triggers() == own


def test_generated_columns_and_columns_that_change_by_themselves_are_counted(app: App) -> None:
    app.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, price INT, cheap BOOLEAN AS (price < 100),"
        " size VARCHAR(5) CHARACTER SET ascii AS (IF(price < 10, 'small', 'big')) STORED,"
        " changed DATETIME DEFAULT '2026-11-20' ON UPDATE CURRENT_TIMESTAMP)"
    )
    app.track("orders", counter="c", by=["cheap", "size"], day="changed")
    app.run(
        "INSERT INTO orders (id, price) VALUES (1, 5), (2, 50), (3, 500), (4, NULL)",
        "SET SESSION timestamp = 1795305600",
        "UPDATE orders SET price = price + 60 WHERE id < 3",
        "REPLACE INTO orders (id, price) VALUES (3, 3)",
        "DELETE FROM orders WHERE id = 1",
    )
    assert app.counts("c") == {
        ("2026-11-22", b"0|big"): 1,
        ("2026-11-20", b"1|small"): 1,
        ("2026-11-20", rb"\N|big"): 1,
    }
    assert app.found() == []


def test_partitioned_tables_and_tables_without_a_primary_key_are_counted(app: App) -> None:
    app.run(
        "CREATE TABLE parts (id INT, status VARCHAR(20)) PARTITION BY RANGE (id)"
        " (PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN MAXVALUE)",
        "INSERT INTO parts VALUES (1, 'a'), (1, 'a'), (20, NULL)",
    )
    plan = app.store.tracked.plan(f"{app.schema}.parts", counter="c")
    assert ["partition" in warning for warning in plan.warnings] == [True]
    app.track("parts", counter="c", by=["status"])
    app.run("UPDATE parts SET id = id + 10, status = 'b' LIMIT 2", "DELETE FROM parts LIMIT 1")
    assert app.differs() == []
    app.run("ALTER TABLE parts TRUNCATE PARTITION high")
    assert {one.problem for one in app.found()} == {"row_count"}
    app.store.tracked.repair("c")
    assert app.found() == []


def test_names_may_hold_anything(app: App) -> None:
    table, column, day = "o`r %s'd\"er\\s", "st`at %s'u\"s\\", "a day"
    quoted = "`o``r %s'd\"er\\s`"
    app.run(
        f"CREATE TABLE {quoted} (id INT PRIMARY KEY, `st``at %s'u\"s\\` VARCHAR(9), `a day` DATE)",
        f"INSERT INTO {quoted} VALUES (1, 'x', '2026-11-21')",
    )
    made = app.track(quoted, counter="c", by=[column.upper()], day=day)
    assert (made.table, made.by, made.day) == (table, (column,), day)
    app.run(f"INSERT INTO {quoted} VALUES (2, 'y', '2026-11-21')", f"UPDATE {quoted} SET id=id+5")
    assert app.counts("c") == {("2026-11-21", b"x"): 1, ("2026-11-21", b"y"): 1}
    assert app.found() == []
    assert app.store.tracked.repair("c").cells == 0
    app.store.tracked.untrack(f"{app.schema}.{quoted}")
    assert app.triggers() == set()


def test_an_update_that_was_ignored_is_seen_as_it_is_now(orders: App) -> None:
    with connect(orders.app_url, isolation="REPEATABLE READ") as reader:
        reader.begin()
        reader.query("SELECT * FROM orders")
        orders.run("UPDATE orders SET status = 'meanwhile' WHERE id = 1")
        # 2 is taken, so the row stays as it is now, not as this transaction has seen it.
        reader.execute("UPDATE IGNORE orders SET status = 'x', code = 2 WHERE id = 1")
        reader.commit()
    assert orders.differs() == []


def test_an_update_of_what_nothing_is_counted_by_writes_nothing(orders: App) -> None:
    def slots(session: Session) -> list[tuple[object, ...]]:
        return session.query("SELECT * FROM counter_slot ORDER BY 1, 2, 3, 4")

    before = slots(orders.own)
    orders.run("UPDATE orders SET code = code + 10")
    assert slots(orders.own) == before
    # Where nothing is counted by there is no trigger to run.
    names = [each.triggers for each in orders.store.tracked.list() if each.counter == "all"]
    assert {name for name in orders.triggers() if name.startswith(names[0])} == {
        f"{names[0]}_insert",
        f"{names[0]}_delete",
    }


def test_connections_write_into_slots_of_their_own(app: App) -> None:
    app.run(ORDERS)
    app.track("orders", counter="c", app_slots=4)
    for number in range(5):
        with connect(app.app_url) as session:
            session.execute(f"INSERT INTO orders (id) VALUES ({number})")
    rows = app.own.query("SELECT slot, amount FROM counter_slot WHERE counter = 'c'")
    assert sum(amount for _, amount in rows) == 5
    assert len(rows) > 1
    assert all(256 <= slot < 260 for slot, _ in rows)


def test_no_write_is_answered_with_a_warning(orders: App) -> None:
    for statement in (STATEMENTS[0], STATEMENTS[7], "DELETE FROM orders"):
        orders.run(statement)
        assert orders.session.query("SHOW WARNINGS") == []


ITEMS = (
    "CREATE TABLE parent (id INT PRIMARY KEY) ENGINE = InnoDB",
    """CREATE TABLE item (
        tenant INT NOT NULL, id INT NOT NULL, code INT NULL, status VARCHAR(8) NULL,
        parent INT NULL, PRIMARY KEY (tenant, id), UNIQUE KEY code (code),
        CONSTRAINT of_parent FOREIGN KEY (parent) REFERENCES parent (id)
    ) ENGINE = InnoDB CHARACTER SET utf8mb4""",
)
FILL_ITEMS = (
    "DELETE FROM item",
    "REPLACE INTO parent VALUES (1), (2)",
    "INSERT INTO item VALUES (1, 1, 1, 'a', 1), (1, 2, 2, 'b', 1), (2, 3, 3, NULL, NULL)",
)
JOIN = "UPDATE IGNORE item JOIN parent ON parent.id = item.parent"
IGNORING = (
    "UPDATE IGNORE item SET status = 'x', code = 2",
    "UPDATE IGNORE item SET status = 'x', parent = 77",
    "UPDATE IGNORE item SET status = 'x', tenant = 1, id = 2",
    "UPDATE IGNORE item SET status = 'x', id = id + 1 ORDER BY id",
    "UPDATE IGNORE item SET status = 'x', id = id + 1 ORDER BY id DESC",
    "UPDATE IGNORE item SET tenant = tenant + 1",
    f"{JOIN} SET item.status = 'x', item.code = 3",
    f"{JOIN} SET item.status = 'x', item.id = 9",
    "INSERT IGNORE INTO item VALUES (1, 1, 9, 'z', 1) ON DUPLICATE KEY UPDATE status='x', code=2",
    "UPDATE item SET status = UPPER(status), id = id + 10",
    "DELETE IGNORE FROM parent",
)


def test_what_ignore_leaves_alone_is_counted_where_it_is(app: App) -> None:
    """MariaDB runs AFTER UPDATE triggers for such rows all the same; MySQL does not."""
    app.run(*ITEMS)
    app.track("item", counter="items", by=["status", "tenant"])
    for statement in IGNORING:
        app.run(*FILL_ITEMS, "BEGIN", statement, statement, "COMMIT")
        assert app.differs() == [], statement
