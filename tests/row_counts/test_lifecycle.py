"""Planning, tracking and untracking: beside others, after a crash, and nothing but its own."""

import threading
from datetime import date
from typing import Any

import pytest

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.row_counts import lifecycle, recount, triggers
from countersink.row_counts.definitions import TrackedTable
from countersink.row_counts.recount import locked
from countersink.row_counts.table import read_table
from countersink.store import Conflict, Store, UnknownCounter
from tests.row_counts.application import App
from tests.support.entries import together
from tests.support.width_rows import plant

pytestmark = pytest.mark.servers("mariadb", "mysql")

ORDERS = "CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY, status VARCHAR(20), placed DATE)"
FILL = "INSERT INTO orders (status, placed) VALUES ('open', '2026-11-21'), (NULL, NULL)"


@pytest.fixture
def orders(app: App) -> App:
    """An application with a table `orders` of two rows."""
    app.run(ORDERS, FILL)
    return app


def left(app: App) -> list[int]:
    """How many rows are left of everything that tracking writes, and how many triggers."""
    tables = ("tracked_table", "counter_slot", "counter_ledger")
    rows = [int(app.own.query(f"SELECT COUNT(*) FROM {table}")[0][0]) for table in tables]
    return [*rows, len(app.triggers())]


def version(app: App) -> int:
    """Of the catalog, by which workers see that a counter is tracked."""
    return int(app.own.query("SELECT catalog_version FROM control")[0][0])


def test_a_plan_changes_nothing_and_says_what_track_then_does(orders: App) -> None:
    table = f"{orders.schema}.orders"
    plan = orders.store.tracked.plan(table, by=["STATUS"], day="placed")
    assert (plan.definition.counter, plan.definition.counted) == (table, None)
    assert [statement.split(" AFTER ")[1].split(" ON ")[0] for statement in plan.statements] == [
        "INSERT",
        "DELETE",
        "UPDATE",
    ]
    assert all("primary key" in warning for warning in plan.warnings)
    assert left(orders) == [0, 0, 0, 0]
    for statement in plan.statements:
        orders.run("SET SESSION sql_mode = ''", statement)
    assert len(orders.triggers()) == 3


def test_a_table_is_tracked_listed_read_and_untracked(orders: App) -> None:
    before, seen = version(orders), list[tuple[int, int]]()
    name = f"{orders.schema}.orders"
    tracked = orders.track(
        "orders",
        by=["status"],
        day="placed",
        progress=lambda done, about: seen.append((done, orders.store.totals.total(name) + about)),
    )
    assert tracked.counter == name
    assert tracked.counted is not None
    assert version(orders) > before
    assert orders.store.tracked.list() == [tracked]
    assert seen[-1] == (2, 2)
    assert orders.store.totals.by_key(tracked.counter) == [("\\N", 1), ("open", 1)]
    assert orders.store.tracked.untrack(f"{orders.schema}.orders") == tracked
    assert version(orders) > before + 1
    assert left(orders) == [0, 0, 0, 0]
    with pytest.raises(UnknownCounter, match="track --list"):
        orders.store.tracked.untrack("orders")


def test_a_table_can_be_tracked_in_several_counters(orders: App) -> None:
    for counter, by in (("a", ["status"]), ("b", [])):
        orders.track("orders", counter=counter, by=by)
    table = f"{orders.schema}.orders"
    for ambiguous in (orders.store.tracked.untrack, orders.store.tracked.repair):
        with pytest.raises(ValueError, match=r"name one of them \(--counter\): a, b"):
            ambiguous(table)
    orders.store.tracked.untrack("a")
    orders.run(FILL)
    assert [each.counter for each in orders.store.tracked.list()] == ["b"]
    assert orders.store.tracked.repair(table).cells == 0
    assert orders.store.totals.total("b") == 4


def test_days_outside_the_calendar_of_counters_are_in_totals(orders: App) -> None:
    orders.run("INSERT INTO orders (placed) VALUES ('1000-01-01'), ('9999-12-25'), ('9999-12-31')")
    orders.track("orders", counter="c", day="placed")
    orders.track("orders", counter="all")
    totals = orders.store.totals
    assert totals.total("c") == totals.total("all") == 5
    first, last = totals.span("c") or (None, None)
    assert (str(first), str(last)) == ("1969-12-31", "9999-12-26")
    assert totals.total("c", start=first, end=first) == 2
    assert totals.daily("c", start=first, end=first) == [(first, 2)]
    assert totals.daily("c", start=last, end=last) == [(last, 1)]
    assert totals.by_key("c", end=first) == totals.top("c", start=None, end=first) == [("", 2)]
    assert [str(day) for day, _ in totals.daily("all")] == ["1970-01-01"]


def claimed(app: App) -> TrackedTable:
    """What is left of a `track` that was killed after its first step."""
    plan = app.store.tracked.plan(f"{app.schema}.orders", counter="c", by=["status"])
    with open_tables(app.mysql_url, isolation="REPEATABLE READ") as session:
        assert lifecycle.claim(session, plan.definition)
    return plan.definition


def make_one_trigger(app: App, tracked: TrackedTable) -> None:
    with triggers.changing(lambda: connect(app.mysql_url)) as session:
        table = read_table(session, tracked.schema, tracked.table, "")
        ((database,),) = session.query("SELECT DATABASE()")
        session.execute(triggers.expected_triggers(tracked, table, database)[0].create)


@pytest.mark.parametrize("made", [0, 1])
def test_a_track_that_was_killed_goes_on_or_is_taken_back(orders: App, made: int) -> None:
    tracked = claimed(orders)
    if made:
        make_one_trigger(orders, tracked)
        orders.run(FILL)
    assert [each.counted for each in orders.store.tracked.list()] == [None]
    assert orders.found()[-1].problem == "not_counted"
    again = orders.track("orders", counter="c", by=["status"])
    assert again.triggers == tracked.triggers
    assert len(orders.triggers()) == 3
    assert orders.found() == []
    orders.store.tracked.untrack("c")
    tracked = claimed(orders)
    if made:
        make_one_trigger(orders, tracked)
        orders.run(FILL)
    orders.store.tracked.untrack("c")
    assert left(orders) == [0, 0, 0, 0]


def test_untrack_tidies_up_what_is_half_gone(orders: App) -> None:
    for table_too in (False, True):
        tracked = orders.track("orders", counter="c", by=["status"])
        if table_too:
            orders.run("DROP TABLE orders")
        else:
            orders.run(f"DROP TRIGGER {tracked.triggers}_update")
        orders.store.tracked.untrack("c")
        assert left(orders) == [0, 0, 0, 0]


def test_untrack_leaves_everything_else_alone(orders: App) -> None:
    orders.run("CREATE TRIGGER own AFTER INSERT ON orders FOR EACH ROW SET @x = 1")
    orders.store.counters.set("c", app_slots=7)
    plant(orders.own, ("d", "2026-11-21", "", 0, 1))
    orders.track("orders", counter="c")
    orders.store.tracked.untrack("c")
    assert orders.triggers() == {"own"}
    assert orders.store.counters.show("c").app_slots == 7
    assert orders.own.query("SELECT counter FROM counter_slot") == [("d",)]


def test_two_who_track_at_once_both_get_it(orders: App) -> None:
    def track() -> TrackedTable:
        with Store(orders.mysql_url) as store:
            return store.tracked.track(f"{orders.schema}.orders", counter="c", by=["status"])

    first, second = together(track, track)
    assert first.triggers == second.triggers
    assert len(orders.triggers()) == 3
    assert orders.found() == []


def test_it_waits_for_a_transaction_that_uses_the_table_and_lets_others_pass(
    orders: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "LOCK_WAIT", 1)
    waits = threading.Event()
    notices = list[str]()

    def notice(sentence: str) -> None:
        notices.append(sentence)
        waits.set()

    def track() -> bool:
        return bool(orders.track("orders", counter="c", by=["status"], notice=notice))

    def commit() -> bool:
        assert waits.wait(20)
        with connect(orders.app_url) as other:
            other.execute(FILL)
        session.commit()
        return True

    with connect(orders.app_url) as session:
        session.begin()
        session.execute(FILL)
        together(track, commit)
    assert f"uses {orders.schema}.orders" in notices[0]
    assert orders.store.totals.total("c") == 6
    assert orders.found() == []


def test_it_gives_up_in_the_end(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    assert triggers.PAUSES[0] >= triggers.LOCK_WAIT
    monkeypatch.setattr(triggers, "LOCK_WAIT", 1)
    monkeypatch.setattr(triggers, "ATTEMPTS", 1)
    app.run("CREATE TABLE `it's` (id INT PRIMARY KEY)")
    with connect(app.app_url) as other:
        other.begin()
        other.query("SELECT * FROM `it's`")
        with pytest.raises(Conflict, match=r"using .*it's all the time.*KILL with its number"):
            app.track("`it's`", counter="c")
    assert left(app) == [0, 0, 0, 0]


def test_one_counts_at_a_time_and_the_other_says_so(
    orders: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.track("orders", counter="c")
    monkeypatch.setattr(recount, "_LOCK_ATTEMPTS", 1)

    def hasty() -> Session:
        return open_tables(orders.mysql_url, isolation="REPEATABLE READ", lock_wait=1)

    with locked(hasty, "c") as (_, tracked):
        assert tracked.counter == "c"
        with pytest.raises(Conflict, match="another process is counting"), locked(hasty, "c"):
            raise AssertionError("both have their turn")
    with pytest.raises(UnknownCounter, match="tracked"), locked(hasty, "d"):
        raise AssertionError("nothing is tracked")


def test_a_plan_names_the_columns_that_triggers_read_and_what_will_need_a_recount(app: App) -> None:
    app.run(
        "CREATE TABLE bare (id INT, status INT, placed DATE)",
        "CREATE TABLE keyed (id INT, status INT, placed DATE, PRIMARY KEY (status, id))",
    )
    mariadb = app.session.dialect.name == "mariadb"
    plan = app.store.tracked.plan
    how: dict[str, Any] = {"by": ["STATUS"], "day": "placed"}
    keyed = plan(f"{app.schema}.keyed", **how)
    assert keyed.reads == ["status", "placed", *(["id"] if mariadb else [])]
    assert keyed.warnings == []
    everything = plan(f"{app.schema}.bare")
    assert (everything.reads, everything.warnings) == ([], [])
    bare = plan(f"{app.schema}.bare", **how)
    assert bare.reads == ["status", "placed"]
    assert ["UPDATE IGNORE" in warning for warning in bare.warnings] == [True] * mariadb
    notices = list[str]()
    app.track("bare", notice=notices.append, **how)
    assert notices == bare.warnings


def test_a_tracked_table_is_counted_by_utc_day_whatever_the_defaults_are(orders: App) -> None:
    orders.store.counters.set_defaults(time_zone="Asia/Tokyo", resolution="hour")
    orders.track("orders", counter="rows", day="placed")
    shown = orders.store.counters.show("rows")
    assert (shown.time_zone, shown.resolution) == ("UTC", "day")
    assert (date(2026, 11, 21), 1) in orders.store.totals.daily("rows")
    orders.store.tracked.untrack(counter="rows")
    made = orders.store.counters.set("rows")
    assert (made.time_zone, made.resolution) == ("Asia/Tokyo", "hour")
