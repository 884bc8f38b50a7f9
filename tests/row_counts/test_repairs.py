"""Whatever goes past the triggers is found, and mended beside whoever writes."""

import re

import pytest

from countersink.database.connection import connect
from countersink.row_counts import check
from countersink.row_counts.check import TABLE_CHANGED
from countersink.row_counts.recount import Repaired
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables as open_mover
from countersink.store import Conflict, Store
from countersink.store.verify import open_session, verify
from tests.row_counts.application import App
from tests.support.entries import again_and_again, together

pytestmark = pytest.mark.servers("mariadb", "mysql")

CUSTOMERS = "CREATE TABLE customers (id INT PRIMARY KEY)"
ORDERS = """CREATE TABLE orders (
    id INT AUTO_INCREMENT PRIMARY KEY, status VARCHAR(20) NULL, placed DATE NULL, customer INT NULL,
    FOREIGN KEY (customer) REFERENCES customers (id) ON DELETE CASCADE
) CHARACTER SET utf8mb4"""
FILL = (
    "INSERT IGNORE INTO customers VALUES (1), (2)",
    """INSERT INTO orders (status, placed, customer) VALUES ('open', '2026-11-21', 1),
    ('paid', '2026-11-21', 2), (NULL, NULL, 1), ('a|b', '2026-11-20', NULL)""",
)


@pytest.fixture
def orders(app: App) -> App:
    """An application whose tracked table `orders` has been written to."""
    app.run(CUSTOMERS, ORDERS, *FILL)
    app.track("orders", counter="c", by=["status"], day="placed")
    app.run(*FILL)
    return app


def problems(app: App) -> set[str]:
    """Everything that verification finds."""
    with open_session(app.mysql_url) as session:
        found = verify(session)
    return {one.problem for one in found.differences} | {
        one.problem for one in found.row_differences
    }


SLOT = "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES ('c', "
WIDE = SLOT.replace("bucket", "width, bucket")
BY_HAND = {
    "UPDATE counter_slot SET amount = amount + 7 WHERE counter = 'c' AND slot = 0": "row_count",
    "UPDATE counter_slot SET amount = amount - 7 WHERE counter = 'c' AND slot > 0": "row_count",
    "UPDATE counter_slot SET counter_key = CONCAT(counter_key, 'x') WHERE counter = 'c'": (
        "row_count"
    ),
    "DELETE FROM counter_slot WHERE counter = 'c'": "row_count",
    "DELETE FROM counter_slot WHERE counter = 'c' AND slot = 0": "row_count",
    f"{SLOT}'2026-11-21', 'ghost', 0, 5)": "row_count",
    f"{SLOT}'2026-11-21', 'open', 17, -5)": "row_count",
    f"{SLOT}'2026-11-21', 'open', 300, 5), ('c', '2026-11-22', X'FF', 600, 1)": "row_count",
    f"{SLOT}'2026-11-21 00:00:07', 'open', 0, 5)": "row_count",
    f"{WIDE}8, '2026-11-21', 'open', 300, 2)": "row_count",
    f"{WIDE}3, '2026-11-21', 'open', 300, 2)": "row_count",
    f"{WIDE}1, '2026-11-21', 'open', 0, 5)": "row_count",
    f"{SLOT}'2026-11-21 12:00:00', 'open', 300, 1)": "row_count",
    f"{SLOT}'1000-01-01', 'open', 0, 9223372036854775807)": "row_count",
    f"{WIDE}5, '2026-10-01', 'open', 0, 3)": "row_count",
}


def test_a_manual_change_of_the_counter_is_found_and_mended(orders: App) -> None:
    for statement, problem in BY_HAND.items():
        orders.own.execute(statement)
        assert problem in problems(orders), statement
        orders.store.tracked.repair("c")
        orders.run(*FILL)
        assert problems(orders) == set(), statement
    assert orders.differs() == []
    assert orders.store.totals.total("c") == 4 * (2 + len(BY_HAND))


PAST_THE_TRIGGERS = (
    ("TRUNCATE orders",),
    ("DELETE FROM customers WHERE id = 1",),
    ("DROP TRIGGER {triggers}_insert", *FILL),
    ("DROP TRIGGER {triggers}_update", "UPDATE orders SET status = 'x'"),
    (
        "DROP TRIGGER {triggers}_delete",
        "CREATE TRIGGER {triggers}_delete AFTER DELETE ON orders FOR EACH ROW SET @x = 1",
        "DELETE FROM orders LIMIT 2",
    ),
    (
        "CREATE TABLE fresh LIKE orders",
        "RENAME TABLE orders TO old, fresh TO orders",
        *FILL,
        "INSERT INTO old (status) VALUES ('stray')",
    ),
    ("ALTER TABLE orders MODIFY COLUMN status VARBINARY(20)",),
    ("ALTER TABLE orders MODIFY COLUMN placed DATETIME NULL, ADD COLUMN more INT FIRST",),
    ("ALTER TABLE orders RENAME COLUMN status TO Status",),
)


def test_what_fires_no_trigger_is_found_and_mended(orders: App) -> None:
    (tracked,) = orders.store.tracked.list()
    for statements in PAST_THE_TRIGGERS:
        orders.run(*(statement.format(triggers=tracked.triggers) for statement in statements))
        said = problems(orders)
        triggered = "TRIGGER" in statements[0] or "LIKE" in statements[0]
        assert ("no_trigger" if triggered else "row_count") in said or "ALTER" in statements[0]
        repaired = orders.store.tracked.repair("c")
        assert bool(repaired.triggers) == ("no_trigger" in said), statements
        orders.run(*FILL, "UPDATE orders SET status = 'y' LIMIT 1", "DELETE FROM orders LIMIT 1")
        assert problems(orders) == set(), statements
    assert len(orders.triggers()) == 3


GONE = (
    ("MODIFY status TEXT", "no_column", "may have more than"),
    ("MODIFY status VARCHAR(20), MODIFY placed VARCHAR(20)", "no_column", "VARCHAR"),
    ("DROP COLUMN placed", "no_column", "no column 'placed'"),
    ("DROP COLUMN status", "no_column", "no column 'status'.*writes that fire its triggers fail"),
    ("ENGINE = MyISAM", "no_table", "MyISAM"),
    (
        "RENAME TO elsewhere",
        "no_table",
        "there is no table.*renamed: untrack the old name",
    ),
)


def test_a_table_that_cannot_be_counted_any_more_is_said_to_be_so(app: App) -> None:
    app.run("CREATE TABLE orders (id INT, status VARCHAR(20), placed DATE)")
    app.track("orders", counter="c", by=["status"], day="placed")
    for change, problem, said in GONE:
        app.run(f"ALTER TABLE orders {change}")
        (found,) = app.found()
        assert found.problem == problem
        assert re.search(said, found.detail)
        with pytest.raises(ValueError, match=said.partition(".*")[0]):
            app.store.tracked.repair("c")
    app.store.tracked.untrack("c")
    assert app.triggers() == set()


def test_what_is_written_and_moved_in_the_midst_of_counting_is_counted_once(
    orders: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "ROWS_PER_QUERY", 3)
    orders.own.execute("UPDATE counter_slot SET amount = amount + 9 WHERE counter = 'c'")
    told = list[tuple[int, int]]()

    def meanwhile(done: int, about: int) -> None:
        told.append((done, about))
        if len(told) > 5:
            return  # a count that sees what comes meanwhile would never end
        orders.run(
            *FILL,
            "UPDATE orders SET status = CONCAT('n', id), placed = '2026-11-22' ORDER BY id LIMIT 3",
            "DELETE FROM orders ORDER BY id DESC LIMIT 1",
        )
        compact(lambda: open_mover(orders.mysql_url), CompactOptions(counter="c", threshold=0))

    repaired = orders.store.tracked.repair("c", progress=meanwhile)
    assert [done for done, _ in told] == [0, 3, 6, 8, 8]
    assert (repaired.rows, repaired.triggers) == (8, 0)
    assert orders.differs() == []
    assert problems(orders) == set()


def test_two_repairs_at_once_beside_a_writer_do_not_mend_twice(orders: App) -> None:
    def write() -> None:
        for statement in (*FILL, "UPDATE orders SET status = 'paid' ORDER BY id LIMIT 2"):
            session.execute(statement)

    def repair() -> Repaired:
        with Store(orders.mysql_url) as store:
            return store.tracked.repair("c")

    wrong = f"{SLOT}'2026-11-21', 'open', 0, 5) ON DUPLICATE KEY UPDATE amount=0"
    with connect(orders.app_url) as session, again_and_again(write):
        for _ in range(3):
            orders.own.execute(wrong)
            together(repair, repair)
            assert orders.differs() == []
    assert problems(orders) == set()


def test_a_table_that_is_truncated_while_it_is_counted_is_a_conflict(orders: App) -> None:
    def truncate(done: int, about: int) -> None:
        if not done:
            orders.run("TRUNCATE orders")

    with pytest.raises(Conflict, match="run this again") as raised:
        orders.store.tracked.repair("c", progress=truncate)
    assert raised.value.code == TABLE_CHANGED
    orders.store.tracked.repair("c")
    assert problems(orders) == set()
