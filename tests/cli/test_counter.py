"""`countersink counter`: making, seeing and deleting counters."""

import pytest

from countersink.store import Store
from tests.cli.command import Servers, answered, one_sentence


def count(servers: Servers, *counters: str) -> None:
    for counter in counters:
        assert servers.call("increment", counter, "/a").status == 0
    servers.apply()


def test_a_counter_is_made_shown_and_listed(servers: Servers) -> None:
    made = servers.call(
        *("counter", "set", "views", "--time-zone", "Europe/Berlin", "--resolution", "quarter"),
        *("--keep", "quarter=30d,day=400d", "--max-keys", "5000", "--app-slots", "4"),
        *("--better", "down", "--format", "json"),
    )
    assert made.status == 0
    assert made.json == {
        "counter": "views",
        "time_zone": "Europe/Berlin",
        "resolution": "quarter",
        "keep": {"quarter": "30d", "day": "400d"},
        "max_keys": 5000,
        "most_keys": 5000,
        "overflown": 0,
        "app_slots": 4,
        "rolled_up_to": {},
        "made": True,
        "dimensions": [],
        "breakdowns": [],
        "salt_days": None,
        "better": "down",
    }
    assert servers.json("counter", "show", "views") == made.json
    count(servers, "clicks")
    listed = servers.json("counter", "list")["counters"]
    assert [(one["counter"], one["made"]) for one in listed] == [("clicks", False), ("views", True)]
    table = [line.split() for line in servers.call("counter", "list").out.splitlines()]
    assert table[1:] == [
        ["clicks", "UTC", "day", "forever", "-", "0", "16", "-", "no"],
        [
            *("views", "Europe/Berlin", "quarter", "quarter=30d,day=400d"),
            "5,000",
            "0",
            "4",
            "-",
            "yes",
        ],
    ]
    shown = [line.split() for line in servers.call("counter", "show", "views").out.splitlines()]
    assert ["better", "down"] in shown
    forever = servers.call("counter", "set", "views", "--keep", "forever")
    assert ["keep", "forever"] in [line.split() for line in forever.out.splitlines()]


def test_new_counters_have_the_defaults_and_old_ones_are_told_how_to_get_them(
    servers: Servers,
) -> None:
    built_in = {"time_zone": "UTC", "resolution": "day", "keep": None}
    assert servers.json("counter", "defaults") == built_in
    count(servers, "old")
    refused = one_sentence(servers.call("totals", "old", "--last", "24h"))
    assert "with `countersink counter set old --resolution hour`" in refused
    given = "--time-zone Europe/Berlin --resolution hour --keep hour=90d"
    said = servers.call("counter", "defaults", *given.split()).out
    assert said.endswith(f"this changes one:\n  countersink counter set NAME {given}\n")
    changed = {"time_zone": "Europe/Berlin", "resolution": "hour", "keep": {"hour": "90d"}}
    assert servers.json("counter", "defaults") == changed
    wrong = one_sentence(servers.call("counter", "defaults", "--keep", "minute=2d"), 2)
    assert "give --keep forever, or --resolution minute" in wrong
    assert servers.call("increment", "new", "/a").status == 0
    window = ("new", "--last", "24h", "--by", "total")
    assert servers.rows(*window, "--include-pending") == [{"total": 1}]
    servers.apply()
    assert servers.rows(*window) == [{"total": 1}]


def test_what_has_no_room_is_shown(servers: Servers) -> None:
    assert servers.call("counter", "max-keys").out.startswith("a day of a counter may have any")
    assert servers.call("counter", "max-keys", "2").out.startswith("a day of a counter may have 2")
    assert servers.json("counter", "max-keys") == {"max_keys": 2}
    servers.call("counter", "set", "clicks", "--max-keys", "1")
    for counter in "views", "clicks":
        for key in "/a", "/b", "/c":
            assert servers.call("increment", counter, key).status == 0
    servers.apply()
    totals = servers.rows("views", "--by", "key")
    assert {row["key"] for row in totals} == {"/a", "/b", "__overflow__"}
    listed = servers.json("counter", "list")["counters"]
    assert [
        (one["counter"], one["max_keys"], one["most_keys"], one["overflown"]) for one in listed
    ] == [("clicks", 1, 1, 2), ("views", None, 2, 1)]
    shown = servers.call("counter", "show", "views").out
    facts = [line.split() for line in shown.splitlines()]
    assert ["max", "keys", "2"] in facts
    assert ["overflown", "1"] in facts
    found = servers.json("info")
    assert found["overflown"] == {"amount": 3, "counters": 2}
    assert "3 of 2 counters since yesterday" in " ".join(servers.call("info").out.split())
    doctor = " ".join(servers.call("doctor").out.split())
    assert "3 of clicks, views went to __overflow__ since yesterday" in doctor
    assert "any number" in servers.call("counter", "max-keys", "none").out
    freed = servers.json("counter", "set", "clicks", "--max-keys", "none")
    assert freed["max_keys"] == freed["most_keys"] is None


def test_deleting_a_key_and_a_counter(servers: Servers) -> None:
    for key in ("/a", "/a", "/b", "\x1b[2J"):
        servers.call("increment", "views", key)
    servers.apply()
    gone = servers.call("counter", "delete", "views", "--key", "/a", "--yes")
    assert gone.out == "deleted key /a of views: 1 row, 2 in total\n"
    bad = servers.call("counter", "delete", "views", "--key", "\x1b[2J", "--yes")
    assert bad.out == "deleted key \\x1b[2J of views: 1 row, 1 in total\n"
    again = servers.call("counter", "delete", "views", "--key", "/a", "--yes", "--format", "json")
    assert again.json == {"counter": "views", "key": "/a", "rows": 0, "amount": 0}
    whole = servers.call("counter", "delete", "views", "--yes", "--format", "json")
    assert whole.json == {"counter": "views", "key": None, "rows": 1, "amount": 1}
    assert servers.call("totals", "views").status == 1
    assert servers.call("verify").status == 0


@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, ["views"]), ("y", 0, [])])
def test_on_a_terminal_it_asks_first(
    servers: Servers, answer: str, status: int, left: list[str]
) -> None:
    count(servers, "views")
    assert "--yes" in one_sentence(servers.call("counter", "delete", "views"), 2)
    asking = answered(answer, "counter", "delete", "views", **servers.variables())
    assert "Delete counter views for good? [y/N]" in asking.err
    assert ("nothing was deleted" in asking.err) is bool(left)
    assert asking.status == status
    with Store(servers.mysql_url) as store:
        assert [one.name for one in store.counters.list()] == left


def test_strict_mode_is_shown_and_switched(servers: Servers) -> None:
    assert servers.call("counter", "strict").out.startswith("not strict: ")
    assert servers.call("counter", "strict", "on").out.startswith("strict: ")
    assert servers.json("counter", "strict") == {"strict": True}
    count(servers, "views")
    assert servers.json("dead", "list")["by_reason"] == {"unknown_counter": 1}
    servers.call("counter", "set", "views")
    assert servers.call("dead", "retry", "--all").status == 0
    assert servers.json("counter", "strict", "off") == {"strict": False}
