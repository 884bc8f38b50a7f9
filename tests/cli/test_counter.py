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
        *("--format", "json"),
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
    forever = servers.call("counter", "set", "views", "--keep", "forever")
    assert ["keep", "forever"] in [line.split() for line in forever.out.splitlines()]


def test_another_resolution_is_for_what_is_counted_from_then_on(servers: Servers) -> None:
    count(servers, "views")
    made = servers.json("counter", "set", "views", "--resolution", "hour")
    assert (made["time_zone"], made["resolution"]) == ("UTC", "hour")
    count(servers, "views")
    shown = [line.split() for line in servers.call("counter", "show", "views").out.splitlines()]
    assert [line for line in shown if line[0] in ("time", "resolution", "keep")] == [
        ["time", "zone", "UTC"],
        ["resolution", "hour"],
        ["keep", "forever"],
    ]
    assert servers.rows("views", "--by", "total") == [{"total": 2}]
    assert servers.call("verify").status == 0


def test_up_to_when_buckets_are_rolled_up_is_shown(servers: Servers) -> None:
    servers.call("counter", "set", "views", "--resolution", "minute")
    servers.execute(
        "UPDATE counter SET rolled_hour = '2026-11-20 08:00', rolled_month = '2026-10-01'"
    )
    rolled = {"hour": "2026-11-20T08:00Z", "month": "2026-10-01T00:00Z"}
    assert servers.json("counter", "show", "views")["rolled_up_to"] == rolled
    told = ", ".join(map(" ".join, rolled.items()))
    for shown in ("show", "views"), ("list",):
        assert told in servers.call("counter", *shown).out


def test_what_cannot_be_is_wrong_usage_with_the_reason(servers: Servers) -> None:
    count(servers, "views")
    for arguments, said in (
        (("--time-zone", "Mars/Olympus"), "give an IANA name such as Europe/Berlin"),
        (("--time-zone", "Asia/Tokyo"), "views has been counted in UTC"),
        (("--from", "2030-01-01"), "No such option"),
        (("--resolution", "hour", "--time-zone", "Asia/Kolkata"), "quarter"),
        (("--resolution", "week"), "not one of 'day', 'hour', 'quarter', 'minute'"),
        (("--app-slots", "257"), "1<=x<=256"),
        (("--keep", ""), "is no width with a time"),
        (("--keep", "day=0d"), "buckets are kept for 1m to"),
        (("--keep", "month=9d"), "'month' is none of minute, quarter, hour, day"),
        (("--keep", "minute=2d"), "nothing of views is ever counted by minute"),
        (("--keep", "hour=9d,day=10d"), "nothing of views is ever counted by hour"),
        (("--max-keys", "0"), "a number of keys from 1"),
        (("--max-keys", "many"), "neither a number of keys nor 'none'"),
    ):
        assert said in one_sentence(servers.call("counter", "set", "views", *arguments), 2)
    shown = servers.json("counter", "show", "views")
    assert (shown["made"], shown["time_zone"], shown["resolution"]) == (False, "UTC", "day")


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


def test_an_unknown_counter_is_status_1(servers: Servers) -> None:
    for arguments in (("show", "other"), ("delete", "other"), ("delete", "other", "--key", "k")):
        assert "there is no counter 'other'" in one_sentence(servers.call("counter", *arguments), 1)
    assert servers.call("counter", "list").out == "There are no counters.\n"
    assert servers.json("counter", "list") == {"counters": []}


def test_deleting_a_key_and_a_counter(servers: Servers) -> None:
    for key in ("/a", "/a", "/b", "\x1b[2J"):
        servers.call("increment", "views", key)
    servers.apply()
    gone = servers.call("counter", "delete", "views", "--key", "/a", "--yes")
    assert gone.out == "deleted key /a of views: 1 rows, in all 2\n"
    bad = servers.call("counter", "delete", "views", "--key", "\x1b[2J", "--yes")
    assert bad.out == "deleted key \\x1b[2J of views: 1 rows, in all 1\n"
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
