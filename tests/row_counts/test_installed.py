"""Triggers that a user may not see, that run as nobody any more, or that came with a copy."""

from collections.abc import Iterator

import pytest

from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.row_counts import lifecycle, recount
from countersink.row_counts.check import Cell
from countersink.row_counts.triggers import SQL_MODE
from countersink.store import Conflict, Refused, Store
from countersink.store.verify import open_session, verify
from tests.row_counts.application import App, user
from tests.support.databases import dropped, new_name
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.servers("mariadb", "mysql")

ORDERS = """CREATE TABLE orders (
    tenant INT, id INT, status VARCHAR(20), PRIMARY KEY (tenant, id)
) CHARACTER SET utf8mb4"""
FILL = "INSERT INTO orders SELECT 1, 1 + COUNT(*), 'open' FROM (SELECT * FROM orders) AS o"


@pytest.fixture
def orders(app: App) -> App:
    """An application with a table `orders` of one row."""
    app.run(ORDERS, FILL)
    return app


def problems(app: App) -> list[str]:
    """What a check finds."""
    return [one.problem for one in app.found()]


def test_triggers_that_a_user_may_not_see_are_not_taken_for_gone(orders: App) -> None:
    tracked = orders.track("orders", counter="c", by=["status"])
    own = Settings.parse(orders.mysql_url).database
    rights = [f"ALL ON {own}.*", f"SELECT ON {orders.schema}.*"]
    with user(orders.mysql_url, *rights) as url, Store(url) as limited:
        with pytest.raises(Refused, match=f"GRANT TRIGGER ON `{orders.schema}`.`orders`"):
            limited.tracked.untrack("c")
        assert orders.store.tracked.list() == [tracked]
        with open_session(url) as session:
            (one,) = verify(session).row_differences
        assert one.problem == "hidden_trigger"
        assert "this user may not see the existing triggers" in one.detail
        # Neither are they by whoever takes back what has failed.
        lifecycle.undo_claim(lambda: open_session(url), tracked)
    assert len(orders.triggers()) == 3
    assert problems(orders) == []


@pytest.fixture
def limited(orders: App) -> Iterator[str]:
    """The URL of a user who has tracked `orders`."""
    own = Settings.parse(orders.mysql_url).database
    rights = [f"ALL ON {own}.*", f"SELECT, TRIGGER ON {orders.schema}.orders"]
    with user(orders.mysql_url, *rights) as url, Store(url) as store:
        store.tracked.track(f"{orders.schema}.orders", counter="c", by=["status"])
        yield url


def test_triggers_of_a_user_who_is_gone_are_found_and_made_anew(orders: App, limited: str) -> None:
    orders.run(FILL)
    assert problems(orders) == []
    orders.run("RENAME USER limited@'%' TO other@'%'")
    try:
        with pytest.raises(Refused, match="definer"):
            orders.run(FILL)
        (one,) = orders.found()
        assert one.problem == "no_definer"
        assert "limited@%, who does not exist any more" in one.detail
        assert orders.store.tracked.repair("c").triggers == 3
        orders.run(FILL)
        assert problems(orders) == []
    finally:
        orders.run("RENAME USER other@'%' TO limited@'%'")


def test_triggers_of_a_user_without_rights_are_made_anew_by_another(
    orders: App, limited: str
) -> None:
    orders.run(f"REVOKE TRIGGER ON {orders.schema}.orders FROM limited@'%'")
    with pytest.raises(Refused, match="TRIGGER command denied"):
        orders.run(FILL)
    with Store(limited) as store, pytest.raises(Refused, match="GRANT"):
        store.tracked.repair("c")
    # It has not come as far as to change anything.
    assert orders.store.tracked.list()[0].counted is not None
    assert orders.store.tracked.repair("c").triggers == 3
    orders.run(FILL)
    assert problems(orders) == []
    assert orders.store.tracked.repair("c").triggers == 0


def test_rights_on_just_the_columns_that_a_trigger_reads_are_enough(
    orders: App, limited: str
) -> None:
    orders.run(
        f"REVOKE SELECT ON {orders.schema}.orders FROM limited@'%'",
        f"GRANT SELECT (id, tenant, status) ON {orders.schema}.orders TO limited@'%'",
        FILL,
        "UPDATE orders SET status = 'paid'",
    )
    assert problems(orders) == []


def test_a_user_who_may_not_look_at_others_says_nothing_of_them(orders: App, limited: str) -> None:
    orders.store.tracked.repair("c")
    with open_session(limited) as session:
        assert verify(session).agrees


def test_while_triggers_are_changed_the_count_is_not_taken_for_right(
    orders: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = orders.track("orders", counter="c", by=["status"])
    counted = list[bool]()

    def look(done: int, about: int) -> None:
        counted.append(orders.store.tracked.list()[0].counted is not None)

    orders.store.tracked.repair("c", progress=look)
    assert all(counted)
    counted.clear()
    orders.run(f"DROP TRIGGER {tracked.triggers}_delete")
    orders.store.tracked.repair("c", progress=look)
    assert not any(counted)
    assert orders.store.row_count("c") == 1

    def interrupted(session: Session, counter: str) -> None:
        raise Conflict("killed")

    monkeypatch.setattr(recount, "delete_all_rows", interrupted)
    with pytest.raises(Conflict, match="killed"):
        orders.store.tracked.untrack("c")
    orders.run(FILL)
    with pytest.raises(Refused, match="untrack"):
        orders.store.row_count("c")


def test_a_column_that_a_trigger_goes_by_and_that_is_gone_is_named(orders: App) -> None:
    if orders.session.dialect.name != "mariadb":
        pytest.skip("on MySQL triggers do not go by the primary key")
    orders.track("orders", counter="c", by=["status"])
    orders.run("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id), DROP COLUMN tenant")
    (one,) = orders.found()
    assert one.problem == "no_trigger"
    assert "writes that fire it fail" in one.detail
    orders.store.tracked.repair("c")
    orders.run("UPDATE orders SET status = 'paid'")
    assert problems(orders) == []


@pytest.mark.parametrize("mode", ["@@GLOBAL.sql_mode", f"'{SQL_MODE}'"], ids=["other", "same"])
def test_triggers_of_a_copy_are_found_and_dropped(
    orders: App, mysql_server: MySQLServer, mode: str
) -> None:
    tracked = orders.track("orders", counter="c", by=["status"])
    made = [
        orders.session.query(f"SHOW CREATE TRIGGER {name}")[0][2].replace(f"`{orders.schema}`.", "")
        for name in sorted(orders.triggers())
    ]
    with dropped(mysql_server, new_name()) as url:
        copy = Settings.parse(url).database
        orders.run(f"SET sql_mode = {mode}")  # as a dump may set it
        orders.run(f"CREATE DATABASE {copy}", f"USE {copy}", ORDERS, *made, FILL)
        assert problems(orders) == ["stray_trigger"] * 3 + ["row_count"]
        assert f" on {copy}.orders, a copy of the table" in orders.found()[0].detail
        orders.store.tracked.repair("c")
        orders.run(FILL)
        assert problems(orders) == []
        orders.run(*made)
        orders.store.tracked.untrack("c")
        orders.run(FILL)
        # Those that count somewhere else are somebody else's.
        tracked = orders.track("orders", counter="c", by=["status"])
        orders.run(f"CREATE TRIGGER {tracked.triggers}_insert AFTER INSERT ON orders"
                   " FOR EACH ROW SET @x = 1")  # fmt: skip
        assert problems(orders) == []
        orders.store.tracked.untrack("c")
        assert orders.session.query("SHOW TRIGGERS")


def test_differences_are_written_part_by_part_each_with_its_ledger(
    orders: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recount, "CELLS_PER_COMMIT", 2)
    orders.run(*[f"INSERT INTO orders VALUES (2, {n}, '{n}')" for n in range(4)])
    write, written = recount._write, list[int]()

    def interrupted(session: Session, counter: str, part: list[tuple[Cell, int]]) -> None:
        if written == [2]:
            raise Refused("killed")
        written.append(len(part))
        write(session, counter, part)

    orders.track("orders", counter="c", by=["status"])
    orders.own.execute("UPDATE counter_slot SET amount = amount + 5 WHERE counter = 'c'")
    monkeypatch.setattr(recount, "_write", interrupted)
    with pytest.raises(Refused, match="killed"):
        orders.store.tracked.repair("c")
    with open_session(orders.mysql_url) as session:
        done = verify(session)
        assert [one.problem for one in done.row_differences] == ["row_count"] * 3
        assert [one.problem for one in done.differences] == []
        monkeypatch.setattr(recount, "_write", write)
        assert orders.store.tracked.repair("c").cells == 3
        assert verify(session).agrees
