"""``countersink board``: made from items, listed, shown, changed and deleted; links to it."""

import re

import pytest

from tests.cli.command import NOWHERE, Servers, answered, one_sentence


@pytest.fixture
def counted(servers: Servers) -> Servers:
    """Servers with two counters."""
    for counter in ("orders", "page:views"):
        servers.call("counter", "set", counter)
    return servers


def test_a_board_is_made_listed_shown_changed_and_deleted(counted: Servers) -> None:
    made = counted.call("board", "create", "shop", "orders,days=7,top=5", "page:views,cumulative")
    assert [line.split() for line in made.out.splitlines()] == [
        ["counter", "days", "width", "top", "cumulative"],
        ["orders", "7", "half", "5", "no"],
        ["page:views", "30", "half", "0", "yes"],
    ]
    (row,) = counted.json("board", "list")["boards"]
    assert (row["board"], row["items"], row["author"]) == ("shop", 2, None)
    counted.call("board", "set", "shop", "orders,width=full,days=all")
    shown = counted.json("board", "show", "shop")
    assert shown["items"] == [
        {"counter": "orders", "days": None, "width": "full", "top": 0, "cumulative": False}
    ]
    assert "all" in counted.call("board", "show", "shop").out
    asked = answered("n", "board", "delete", "shop", **counted.variables())
    assert (asked.status, "nothing was deleted" in asked.err) == (1, True)
    assert counted.call("board", "delete", "shop", "--yes").out == "deleted board shop\n"
    assert counted.call("board", "list").out == "There are no boards.\n"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("a b", "A-Z a-z 0-9"),
        ("orders,days=8", "days is 1 or 7 or 30 or 90 or 365 or all"),
        ("orders,width=wide", "width is half or full"),
        ("orders,top=26", "top is 0 to 25"),
        ("orders,cumulative=no", "cumulative has no value"),
        (
            "orders,color=red",
            "'color=red' in 'orders,color=red': the options of a counter are days=",
        ),
        ("orders,days=7,days=30", "each at most once"),
    ],
)
def test_a_wrong_item_is_refused_with_what_is_allowed(item: str, said: str) -> None:
    assert said in one_sentence(NOWHERE.call("board", "create", "shop", item), 2)


def test_what_cannot_be_done_says_why(counted: Servers) -> None:
    counted.call("board", "create", "shop", "orders")
    for arguments, status, said in (
        (("create", "shop", "orders"), 1, "there is a board 'shop' already"),
        (("create", "a b", "orders"), 2, "use 1 to 64 characters"),
        (("create", "b", "nothing"), 1, "there is no counter 'nothing'"),
        (("create", "b", *["orders"] * 25), 2, "a board has 1 to 24 items"),
        (("set", "none", "orders"), 1, "countersink board list"),
        (("show", "none"), 1, "countersink board list"),
        (("delete", "none", "--yes"), 1, "countersink board list"),
    ):
        assert said in one_sentence(counted.call("board", *arguments), status), arguments


def test_a_link_to_a_board_is_made_listed_and_ends_with_it(counted: Servers) -> None:
    counted.call("board", "create", "shop", "orders")
    made = counted.call("link", "create", "--board", "shop")
    assert re.match(r"/shared#/board/shop\?link=cl_\w+", made.out), made.err
    assert "sees shop until 2" in made.err
    assert "--url" in made.err
    (first,) = counted.json("link", "list")["links"]
    counted.call("link", "revoke", first["id"])
    known = {"COUNTERSINK_LINK_CREATE_URL": "http://127.0.0.1:20033"}
    made = counted.call("link", "create", "--board", "shop", **known)
    assert made.out.startswith("http://127.0.0.1:20033/shared#/board/shop?link="), made.err
    assert "--url" not in made.err
    (row,) = counted.json("link", "list")["links"]
    assert (row["counter"], row["board"]) == (None, "shop")
    table = counted.call("link", "list").out.splitlines()
    assert [line.split()[:3] for line in table] == [
        ["id", "counter", "board"],
        [row["id"], "-", "shop"],
    ]
    for arguments in ((), ("orders", "--board", "shop")):
        assert "--board" in one_sentence(counted.call("link", "create", *arguments), 2)
    assert "board list" in one_sentence(counted.call("link", "create", "--board", "b"), 1)
    counted.call("board", "delete", "shop", "--yes")
    assert counted.call("link", "list").out == "There are no links.\n"
