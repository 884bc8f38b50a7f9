"""`countersink track` and `untrack`: what they do, what they show, what they refuse."""

import pytest

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.store import Store
from tests.cli.command import Servers, one_sentence
from tests.support.oracle import Oracle

WEIRD = "odd `na.me` %s // {x} [red]"


@pytest.fixture
def app(app_database_url: str) -> str:
    """The URL of a database with some tables; orders has three rows."""
    with connect(app_database_url) as session:
        session.execute(
            "CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(9) NULL, placed DATETIME,"
            " note TEXT)"
        )
        session.execute(
            "INSERT INTO orders (id, status, placed) VALUES (1, 'new', '2026-11-21 08:00:00'),"
            " (2, 'Paid', '2026-11-21 09:00:00'), (3, 'paid', '2026-11-22 09:00:00')"
        )
        session.execute(f"CREATE TABLE `{WEIRD.replace('`', '``')}` (id INT, `a``b` INT)")
    return app_database_url


def schema(app: str) -> str:
    return str(Settings.parse(app).database)


def triggers(session: Session) -> int:
    ((found,),) = session.query(
        "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE()"
    )
    return int(found)


def test_from_track_to_untrack(servers: Servers, app: str) -> None:
    table = f"{schema(app)}.orders"
    options = (table, "--by", "status", "--day", "placed", "--counter", "orders", "--slots", "4")
    tracked = servers.call("track", *options)
    assert (tracked.status, tracked.err) == (0, "")
    assert tracked.out == (
        f"tracking {table} by status by day of placed in the counter orders: 3 rows\n"
    )
    again = servers.json("track", *options)
    assert again["rows"] == 3
    listed = servers.json("track", "--list")
    assert listed == {"tables": [{k: v for k, v in again.items() if k != "rows"}]}
    assert {**again, "triggers": "", "created": "", "counted": ""} == {
        "counter": "orders",
        "table": table,
        "by": ["status"],
        "day": "placed",
        "slots": 4,
        "triggers": "",
        "created": "",
        "counted": "",
        "rows": 3,
    }
    lines = [line.split() for line in servers.call("track", "--list").out.splitlines()]
    assert lines[0] == ["counter", "table", "by", "day", "slots", "counted"]
    assert lines[1][:5] == ["orders", table, "status", "placed", "4"]
    with connect(app) as session:
        session.execute("INSERT INTO orders (id, status) VALUES (4, NULL)")
        assert triggers(session) == 3
        totals = servers.json("totals", "orders", "--by", "key")
        assert {row["key"]: row["total"] for row in totals["rows"]} == {
            "new": 1, "Paid": 1, "paid": 1, "\\N": 1
        }  # fmt: skip
        gone = servers.call("untrack", table)
        assert (gone.status, gone.out) == (
            0,
            f"no longer tracking {table} by status by day of placed in the counter orders\n",
        )
        assert triggers(session) == 0
    assert servers.call("track", "--list").out == "No table is tracked: countersink track TABLE\n"
    assert "nothing was ever counted" in servers.call("totals", "orders").err


def statements(text: str) -> list[str]:
    """The statements of a script for the mysql client."""
    found, delimiter, current = [], ";", ""
    for line in text.splitlines():
        if line.startswith("--"):
            continue
        if line.startswith("DELIMITER "):
            delimiter = line.split()[1]
            continue
        current += line + "\n"
        if current.rstrip().endswith(delimiter):
            found.append(current.rstrip().removesuffix(delimiter).rstrip())
            current = ""
    assert not current
    return found


def test_a_dry_run_prints_sql_that_runs_and_changes_nothing(servers: Servers, app: str) -> None:
    table = f"`{schema(app)}`.`{WEIRD.replace('`', '``')}`"
    options = (table, "--counter", "odd", "--by", "a`b")
    dry = servers.call("track", *options, "--dry-run")
    assert dry.status == 0
    with connect(app) as session, Store(servers.mysql_url) as store:
        assert triggers(session) == 0
        assert store.tracked.list() == []
        for statement in statements(dry.out):
            session.execute(statement)
        assert triggers(session) == 3
        session.execute(f"INSERT INTO `{WEIRD.replace('`', '``')}` VALUES (1, 7), (2, 7)")
        with Oracle(servers.mysql_url) as oracle:
            assert [*oracle.totals().values()] == [2]
    as_json = servers.call(
        "track", *options[:-1], "id", "--counter", "other", "--dry-run", "--format", "json"
    )
    assert as_json.status == 0
    assert len(as_json.json["statements"]) == 3
    assert set(as_json.json) == {"counter", "table", "statements", "warnings", "reads"}


def test_what_cannot_be_tracked_is_refused_in_one_sentence(servers: Servers, app: str) -> None:
    own = schema(app)
    for arguments, sentence in (
        ((f"{own}.other",), "there is no table"),
        ((f"{own}.orders", "--by", "note"), "may have more than 131,072 bytes"),
        ((f"{own}.orders", "--day", "status"), "the day must be a DATE, DATETIME or TIMESTAMP"),
        ((f"{own}.orders", "--slots", "257"), "257"),
        ((f"{own}.orders", "--counter", "a b"), "counter name"),
        ((f"`{own}`.`{WEIRD.replace('`', '``')}`",), "give a counter (--counter)"),
    ):
        assert sentence in one_sentence(servers.call("track", *arguments), 2), arguments
    with connect(app) as session:
        assert triggers(session) == 0


def test_untracking_what_is_not_tracked_or_is_in_several_ways(servers: Servers, app: str) -> None:
    table = f"{schema(app)}.orders"
    assert "no table is tracked as 'nothing'" in one_sentence(servers.call("untrack", "nothing"), 1)
    assert servers.call("track", table).status == 0
    assert servers.call("track", table, "--counter", "second", "--by", "status").status == 0
    several = servers.call("untrack", table)  # which is the name of a counter, too
    assert f"name one of them (--counter): second, {table}" in one_sentence(several, 2)
    assert servers.json("verify", table)["tables"] == 2
    assert servers.json("verify", "--counter", table)["tables"] == 1
    assert servers.json("untrack", "--counter", table)["counter"] == table
    with connect(app) as session:
        assert triggers(session) == 3
    assert servers.call("untrack", table).status == 0
