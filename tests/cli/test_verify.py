"""`countersink verify`: status 0 when all agrees, 3 with the list when not."""

import re

import pytest

from countersink.database.connection import connect
from countersink.database.url import Settings
from countersink.store import Store
from tests.cli.command import Servers, one_sentence


def count(servers: Servers) -> None:
    for counter, key in (("views", "/a"), ("views", "/b"), ("clicks", "/a")):
        servers.call("increment", counter, key, "--amount", "5")
    servers.apply()


def test_when_all_agrees_it_says_of_how_many(servers: Servers) -> None:
    assert servers.call("verify").out == "All agree: 0 counters with 0 rows.\n"
    count(servers)
    done = servers.call("verify")
    assert (done.status, done.out) == (0, "All agree: 2 counters with 3 rows.\n")
    as_json = servers.call("verify", "--format", "json")
    assert as_json.json == {"counters": 2, "rows": 3, "tables": 0, "differences": []}
    one = servers.call("verify", "--counter", "clicks", "--format", "json")
    assert one.json == {"counters": 1, "rows": 1, "tables": 0, "differences": []}
    failed = servers.call("verify", "--counter", "other")
    assert "there is no counter 'other'" in one_sentence(failed, 1)


def test_a_wrong_row_and_a_lost_one_are_listed(servers: Servers) -> None:
    count(servers)
    servers.execute("UPDATE counter_slot SET amount = 7 WHERE counter = 'clicks'")
    servers.execute("DELETE FROM counter_slot WHERE counter = 'views' AND counter_key = '/b'")
    done = servers.call("verify", "--format", "json")
    assert done.status == 3
    assert done.json["differences"] == [
        {
            "counter": "clicks",
            "problem": "sum",
            "day": None,
            "in_tables": 7,
            "in_ledger": 5,
            "difference": 2,
            "detail": "the tables hold 2 more than the ledger",
        },
        {
            "counter": "views",
            "problem": "sum",
            "day": None,
            "in_tables": 5,
            "in_ledger": 10,
            "difference": -5,
            "detail": "the tables hold 5 less than the ledger",
        },
    ]
    table = servers.call("verify")
    assert table.status == 3
    lines = [line.split() for line in table.out.splitlines()]
    assert lines[1][:4] == ["clicks", "7", "5", "+2"]
    assert lines[2][:4] == ["views", "5", "10", "-5"]
    assert table.out.endswith("2 differences; verified 2 counters with 2 rows.\n")
    assert servers.call("verify", "--counter", "views").status == 3


@pytest.fixture
def orders(servers: Servers, app_database_url: str) -> str:
    """A tracked table with four rows; its name, its counter is orders."""
    with connect(app_database_url) as session:
        session.execute("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(9), placed DATE)")
        session.execute(
            "INSERT INTO orders VALUES (1, 'new', '2026-11-20'), (2, 'new', '2026-11-21'),"
            " (3, 'paid', '2026-11-21'), (4, NULL, NULL)"
        )
    name = f"{Settings.parse(app_database_url).database}.orders"
    with Store(servers.mysql_url) as store:
        store.tracked.track(name, counter="orders", by=["status"], day="placed")
        store.tracked.track(name, counter="all-orders")
    return name


def test_tracked_tables_are_held_against_their_counters(
    servers: Servers, orders: str, app_database_url: str
) -> None:
    count(servers)
    agree = servers.call("verify")
    assert agree.out == "All agree: 4 counters with 8 rows, 2 tracked tables.\n"
    one = servers.call("verify", orders, "--format", "json")
    assert one.json == {"counters": 2, "rows": 5, "tables": 2, "differences": []}
    assert servers.json("verify", "orders")["tables"] == 1
    assert servers.json("verify", "--counter", "orders")["tables"] == 1
    assert servers.json("verify", "--counter", "views")["tables"] == 0
    with connect(app_database_url) as session:
        session.execute("TRUNCATE TABLE orders")
        session.execute("INSERT INTO orders VALUES (9, 'paid', '2026-11-21')")
    differs = servers.call("verify", "--format", "json")
    assert differs.status == 3
    assert [
        (one["counter"], one["problem"], one["day"], one["key"], one["difference"])
        for one in differs.json["differences"]
    ] == [
        ("all-orders", "row_count", "1970-01-01", "", 4),
        ("orders", "row_count", "1969-12-31", "\\N", 1),
        ("orders", "row_count", "2026-11-20", "new", 1),
        ("orders", "row_count", "2026-11-21", "new", 1),
        ("orders", "row_count", "2026-11-21", "paid", 1),
    ]
    assert differs.json["differences"][-1] == {
        "counter": "orders",
        "table": orders,
        "problem": "row_count",
        "day": "2026-11-21",
        "key": "paid",
        "in_counter": 2,
        "in_table": 1,
        "difference": 1,
        "detail": "2 counted, 1 row",
    }
    shown = servers.call("verify", "orders")
    assert shown.status == 3
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["table", "counter", "day", "key", "counted", "rows", "detail"]
    assert lines[4][:6] == [orders, "orders", "2026-11-21", "paid", "2", "1"]
    assert lines[5][:2] == ["4", "differences;"]
    assert shown.out.endswith(", 1 tracked table.\n")


def test_repair_mends_what_is_about_tracked_tables_and_says_what_it_did(
    servers: Servers, orders: str, app_database_url: str
) -> None:
    count(servers)
    with Store(servers.mysql_url) as store:
        triggers = {each.counter: each.triggers for each in store.tracked.list()}["orders"]
    with connect(app_database_url) as session:
        session.execute("TRUNCATE TABLE orders")
        session.execute(f"DROP TRIGGER {triggers}_insert")
        session.execute("INSERT INTO orders VALUES (9, 'paid', '2026-11-21')")
    servers.execute("UPDATE counter_ledger SET amount = amount + 1 WHERE counter = 'orders'")
    servers.execute("UPDATE counter_slot SET amount = 7 WHERE counter = 'clicks'")
    assert servers.call("verify").status == 3
    one = servers.call("verify", "orders", "--repair")
    assert one.status == 0, one.out
    assert (
        f"Repaired {orders} (orders): 1 trigger created, 3 counts corrected, by -3 in total."
        in one.out.splitlines()
    )
    assert re.fullmatch(
        r"All agree: 1 counter with \d rows, 1 tracked table\.", one.out.splitlines()[-1]
    )
    rest = servers.call("verify", "--repair", "--format", "json")
    assert rest.status == 3
    assert [(each["counter"], each["problem"]) for each in rest.json["differences"]] == [
        ("clicks", "sum")
    ]
    (repaired,) = rest.json["repaired"]
    assert (repaired["counter"], repaired["table"], repaired["rows"]) == ("all-orders", orders, 1)
    assert {each["counter"] for each in rest.json["found"]} == {"all-orders", "clicks"}
    assert rest.json["failed"] == {}
    with Store(servers.mysql_url) as store:
        assert store.row_count(orders) == store.row_count("orders") == 1
    again = servers.call("verify", orders, "--repair", "--format", "json")
    assert (again.status, again.json["repaired"]) == (0, [])


def test_what_cannot_be_repaired_is_said_and_the_rest_is(
    servers: Servers, orders: str, app_database_url: str
) -> None:
    with connect(app_database_url) as session:
        session.execute("ALTER TABLE orders DROP COLUMN status")
        session.execute("TRUNCATE TABLE orders")
    done = servers.call("verify", "--repair")
    assert done.status == 3
    assert f"Repaired {orders} (all-orders): 1 count corrected, by -4 in total." in done.out
    assert "Not repaired: orders: " in done.out
    assert "no column 'status'" in done.out
    as_json = servers.call("verify", "--repair", "--format", "json").json
    assert list(as_json["failed"]) == ["orders"]
    assert [each["problem"] for each in as_json["differences"]] == ["no_column"]
