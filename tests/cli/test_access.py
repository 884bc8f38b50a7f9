"""``countersink key`` and ``link``: made once, listed without the secret, revoked for good."""

import csv
import io
import re
from datetime import UTC, datetime, timedelta

from tests.cli.command import Servers, one_sentence

KEY = re.compile(r"ck_[a-z0-9]{10}_[A-Za-z0-9_-]{43}")


def test_a_key_is_printed_once_and_alone(servers: Servers) -> None:
    made = servers.call("key", "create", "web shop", "--scope", "ingest", "--counter", "shop.*")
    assert made.status == 0
    assert KEY.fullmatch(made.out.rstrip("\n"))
    assert "not shown again" in made.err
    listed = servers.call("key", "list", "--format", "json")
    (key,) = listed.json["keys"]
    assert made.out.strip().split("_", 2)[2] not in listed.out
    assert key["id"] == made.out.split("_")[1]
    assert (key["name"], key["state"]) == ("web shop", "valid")
    assert (key["scopes"], key["counters"]) == (["ingest"], ["shop.*"])
    assert key["max_counters"] is None
    assert (key["expires"], key["revoked"], key["last_used"]) == (None, None, None)


def test_a_key_for_programs_is_one_document(servers: Servers) -> None:
    arguments = ("--scope", "admin", "--scope", "read", "--expires", "90d", "--max-counters", "50")
    made = servers.json("key", "create", "ops", *arguments)
    assert KEY.fullmatch(made["key"])
    assert (made["scopes"], made["max_counters"]) == (["read", "admin"], 50)
    assert servers.json("key", "list")["keys"][0]["max_counters"] == 50
    heading, row = servers.call("key", "list").out.splitlines()
    assert row[heading.index("max_counters") :].split()[0] == "50"
    left = datetime.fromisoformat(made["expires"]) - datetime.now(UTC)
    assert timedelta(days=89, hours=23) < left <= timedelta(days=90)


def test_revoked_is_revoked(servers: Servers) -> None:
    first = servers.json("key", "create", "a", "--scope", "read")
    servers.call("key", "create", "b", "--scope", "read")
    assert servers.call("key", "revoke", "b").out.endswith("(b): refused within two seconds\n")
    done = servers.call("key", "revoke", first["id"], "--format", "json")
    assert (done.json["state"], done.json["name"]) == ("revoked", "a")
    assert done.json["revoked"] is not None
    assert "countersink key list" in one_sentence(servers.call("key", "revoke", first["id"]), 1)
    table = servers.call("key", "list").out
    assert table.count("revoked") == 2


def test_a_name_that_two_keys_have_does_not_say_which(servers: Servers) -> None:
    keys = [servers.json("key", "create", "twin", "--scope", "read") for _ in range(2)]
    refused = servers.call("key", "revoke", "twin")
    assert refused.status == 1
    assert all(key["id"] in refused.err for key in keys)
    assert servers.call("key", "revoke", keys[0]["id"]).status == 0
    assert servers.call("key", "revoke", "twin").status == 0  # now there is one


def test_wrong_usage_makes_no_key(servers: Servers) -> None:
    for arguments in (
        ("x\ny", "--scope", "read"),
        ("x", "--scope", "read", "--expires", "0d"),
        ("x", "--scope", "read", "--expires", "soon"),
        ("x", "--scope", "read", "--expires", "2020-01-01T00:00:00Z"),
        ("x", "--scope", "read", "--expires", "2099-01-01T00:00:00"),
        ("x", "--scope", "read", "--counter", "a b"),
    ):
        refused = servers.call("key", "create", *arguments)
        assert refused.status == 2, arguments
        one_sentence(refused)
    assert servers.call("key", "list").out == "There are no keys.\n"


def test_a_name_does_nothing_to_a_spreadsheet_and_an_expired_key_is_shown_as_one(
    servers: Servers,
) -> None:
    servers.call("key", "create", "=HYPERLINK('x')", "--scope", "read")
    shown = servers.call("key", "list", "--format", "csv", "--spreadsheet").out
    rows = list(csv.DictReader(io.StringIO(shown)))
    assert rows[0]["name"] == "'=HYPERLINK('x')"
    servers.call("key", "create", "short", "--scope", "read", "--expires", "1h")
    servers.execute("UPDATE api_key SET expires = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND")
    rows = list(csv.DictReader(io.StringIO(servers.call("key", "list", "--format", "csv").out)))
    assert [row["state"] for row in rows] == ["expired"] * 2


def test_a_link_is_made_listed_and_revoked(servers: Servers) -> None:
    servers.call("counter", "set", "page:views")
    made = servers.call(
        *("link", "create", "page:views", "--url", "https://count.example/", "--expires", "12h")
    )
    assert made.status == 0, made.err
    start = "https://count.example/shared#/counter/page%3Aviews?link="
    assert made.out.startswith(start)
    token = made.out.strip().removeprefix(start)
    assert re.fullmatch(r"cl_[a-z0-9]{10}_[A-Za-z0-9_-]{43}", token)
    id = token.split("_")[1]
    (row,) = servers.json("link", "list")["links"]
    assert (row["id"], row["counter"], row["key"]) == (id, "page:views", None)
    ends = datetime.fromisoformat(row["expires"])
    assert timedelta(hours=11) < ends - datetime.now(UTC) <= timedelta(hours=12)
    assert "page:views until 2" in made.err
    assert id in servers.call("link", "list").out
    assert "cl_" not in servers.call("link", "list", "--format", "csv").out
    assert servers.call("key", "list").out == "There are no keys.\n"
    assert servers.call("key", "revoke", id).status == 1
    assert servers.call("link", "revoke", id).out == "revoked 1 link\n"
    assert servers.call("link", "list").out == "There are no links.\n"
    again = servers.call("link", "revoke", id)
    assert (again.status, "no valid link" in one_sentence(again)) == (1, True)
    key = servers.json("key", "create", "reader", "--scope", "read")
    assert servers.call("link", "revoke", key["id"]).status == 1
    for _ in range(3):
        servers.call("link", "create", "page:views")
    all_of_them = servers.call("link", "revoke", "--all", "--format", "json")
    assert all_of_them.json == {"revoked": 3}
    (left,) = servers.json("key", "list")["keys"]
    assert (left["id"], left["state"]) == (key["id"], "valid")
