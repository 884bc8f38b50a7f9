"""`countersink link`: links to one counter of the dashboard."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.command import Servers, one_sentence


@pytest.fixture
def counted(servers: Servers) -> Servers:
    """A counter."""
    servers.call("increment", "page:views", "/a")
    servers.apply()
    return servers


def test_a_link_is_made_listed_and_revoked(counted: Servers) -> None:
    made = counted.call(
        *("link", "create", "page:views", "--url", "https://count.example/", "--expires", "12h")
    )
    assert made.status == 0, made.err
    start = "https://count.example/shared#/counter/page%3Aviews?link="
    assert made.out.startswith(start)
    token = made.out.strip().removeprefix(start)
    assert re.fullmatch(r"cl_[a-z0-9]{10}_[A-Za-z0-9_-]{43}", token)
    id = token.split("_")[1]
    (row,) = counted.json("link", "list")["links"]
    assert (row["id"], row["counter"], row["key"]) == (id, "page:views", None)
    ends = datetime.fromisoformat(row["expires"])
    assert timedelta(hours=11) < ends - datetime.now(UTC) <= timedelta(hours=12)
    assert "page:views until 2" in made.err
    assert id in counted.call("link", "list").out
    assert "cl_" not in counted.call("link", "list", "--format", "csv").out
    assert counted.call("key", "list").out == "There are no keys.\n"
    assert counted.call("key", "revoke", id).status == 1
    assert counted.call("link", "revoke", id).out == "revoked 1\n"
    assert counted.call("link", "list").out == "There are no links.\n"
    again = counted.call("link", "revoke", id)
    assert (again.status, "no link that is valid" in one_sentence(again)) == (1, True)
    key = counted.json("key", "create", "reader", "--scope", "read")
    assert counted.call("link", "revoke", key["id"]).status == 1
    for _ in range(3):
        counted.call("link", "create", "page:views")
    all_of_them = counted.call("link", "revoke", "--all", "--format", "json")
    assert all_of_them.json == {"revoked": 3}
    (left,) = counted.json("key", "list")["keys"]
    assert (left["id"], left["state"]) == (key["id"], "valid")


def test_what_cannot_be_is_said(counted: Servers) -> None:
    create = ("create", "page:views", "--expires")
    for arguments, status, said in (
        (("create", "nothing"), 1, "there is no counter 'nothing'"),
        ((*create, "53w"), 2, "within 366 days"),
        ((*create, "2020-01-01T00:00Z"), 2, "in the future"),
        (("revoke", "ä"), 1, "no link that is valid"),
    ):
        assert said in one_sentence(counted.call("link", *arguments), status)
