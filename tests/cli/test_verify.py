"""`countersink verify`: status 0 when all agrees, 3 with the list when not."""

from __future__ import annotations

from countersink.store.connection import connect
from tests.cli.command import Servers, one_sentence


def count(servers: Servers) -> None:
    for counter, key in (("views", "/a"), ("views", "/b"), ("clicks", "/a")):
        servers.call("increment", counter, key, "--amount", "5")
    servers.apply()


def execute(servers: Servers, statement: str) -> None:
    with connect(servers.mysql_url) as session:
        session.execute(statement)


def test_when_all_agrees_it_says_of_how_many(servers: Servers) -> None:
    assert servers.call("verify").out == "All agree: 0 counters with 0 rows.\n"
    count(servers)
    done = servers.run("verify")
    assert (done.status, done.out) == (0, "All agree: 2 counters with 3 rows.\n")
    as_json = servers.call("verify", "--format", "json")
    assert as_json.json == {"counters": 2, "rows": 3, "differences": []}
    one = servers.call("verify", "--counter", "clicks", "--format", "json")
    assert one.json == {"counters": 1, "rows": 1, "differences": []}


def test_a_wrong_row_and_a_lost_one_are_listed(servers: Servers) -> None:
    count(servers)
    execute(servers, "UPDATE counter_slot SET amount = 7 WHERE counter = 'clicks'")
    execute(servers, "DELETE FROM counter_slot WHERE counter = 'views' AND counter_key = '/b'")
    done = servers.run("verify", "--format", "json")
    assert done.status == 3
    assert done.json["differences"] == [
        {
            "counter": "clicks",
            "problem": "sum",
            "in_tables": 7,
            "in_ledger": 5,
            "difference": 2,
            "detail": "the tables hold +2 against the ledger",
        },
        {
            "counter": "views",
            "problem": "sum",
            "in_tables": 5,
            "in_ledger": 10,
            "difference": -5,
            "detail": "the tables hold -5 against the ledger",
        },
    ]
    table = servers.call("verify")
    assert table.status == 3
    lines = [line.split() for line in table.out.splitlines()]
    assert lines[1][:4] == ["clicks", "7", "5", "+2"]
    assert lines[2][:4] == ["views", "5", "10", "-5"]
    assert table.out.endswith("2 differences; looked at 2 counters with 2 rows.\n")
    assert servers.call("verify", "--counter", "views").status == 3


def test_an_unknown_counter_and_no_database(servers: Servers) -> None:
    failed = servers.call("verify", "--counter", "other")
    assert failed.status == 1
    assert "there is no counter 'other'" in one_sentence(failed)
    assert servers.call("verify", "--counter", "no name").status == 2
    missing = servers.call("verify", COUNTERSINK_MYSQL_URL="")
    assert missing.status == 2
    assert "COUNTERSINK_MYSQL_URL" in one_sentence(missing)
