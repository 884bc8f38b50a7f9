"""`countersink counter`: making, seeing and deleting counters."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from countersink.store import Store
from tests.cli.command import Servers, answered, one_sentence

FIRST = {"from": None, "time_zone": "UTC", "resolution": "day", "in_force": True}


def ahead(minutes: int = 10) -> datetime:
    """A whole minute so far ahead."""
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=minutes)


def count(servers: Servers, *counters: str) -> None:
    for counter in counters:
        assert servers.call("increment", counter, "/a").status == 0
    servers.apply()


def test_a_counter_is_made_shown_and_listed(servers: Servers) -> None:
    made = servers.call(
        *("counter", "set", "views", "--time-zone", "Europe/Berlin", "--resolution", "quarter"),
        *("--keep-days", "30", "--max-keys", "5000", "--app-slots", "4", "--format", "json"),
    )
    assert made.status == 0
    assert made.json == {
        "counter": "views",
        "time_zone": "Europe/Berlin",
        "resolution": "quarter",
        "keep": None,
        "keep_days": 30,
        "max_keys": 5000,
        "most_keys": 5000,
        "overflown": 0,
        "app_slots": 4,
        "rolled_up_to": None,
        "made": True,
        "dimensions": [],
        "breakdowns": [],
        "salt_days": None,
        "policies": [{**FIRST, "time_zone": "Europe/Berlin", "resolution": "quarter"}],
    }
    assert servers.json("counter", "show", "views") == made.json
    count(servers, "clicks")
    listed = servers.json("counter", "list")["counters"]
    assert [(one["counter"], one["made"]) for one in listed] == [("clicks", False), ("views", True)]
    table = [line.split() for line in servers.call("counter", "list").out.splitlines()]
    assert table[1:] == [
        ["clicks", "UTC", "day", "forever", "forever", "-", "0", "16", "-", "no"],
        ["views", "Europe/Berlin", "quarter", "forever", "30", "5,000", "0", "4", "-", "yes"],
    ]
    forever = servers.call("counter", "set", "views", "--keep-days", "forever")
    assert ["keep", "days", "forever"] in [line.split() for line in forever.out.splitlines()]


def test_a_change_from_a_time_to_come(servers: Servers) -> None:
    count(servers, "views")
    start = ahead().astimezone(ZoneInfo("Asia/Tokyo"))
    made = servers.call(
        *("counter", "set", "views", "--time-zone", "Asia/Tokyo"),
        *("--from", start.isoformat(), "--format", "json"),
    )
    begins = f"{start.astimezone(UTC).strftime('%Y-%m-%dT%H:%M')}Z"
    second = {"from": begins, "time_zone": "Asia/Tokyo", "resolution": "day", "in_force": False}
    assert made.json["policies"] == [FIRST, second]
    shown = servers.call("counter", "show", "views").out.splitlines()
    assert shown[-3].split() == ["events", "from", "time", "zone", "resolution"]
    assert shown[-2].split() == ["the", "beginning", "UTC", "day", "in", "force"]
    assert shown[-1].split() == [begins, "Asia/Tokyo", "day", "to", "come"]
    listed = servers.call("counter", "list").out.splitlines()
    assert listed[1].endswith(f"Asia/Tokyo day from {begins}")


def test_a_day_is_its_midnight_in_the_counters_present_zone(servers: Servers) -> None:
    servers.call("counter", "set", "views", "--time-zone", "Asia/Kathmandu")
    count(servers, "views")
    day = (datetime.now(ZoneInfo("Asia/Kathmandu")) + timedelta(days=2)).date()
    made = servers.call(
        *("counter", "set", "views", "--time-zone", "UTC"),
        *("--from", day.isoformat(), "--format", "json"),
    )
    midnight = f"{(day - timedelta(days=1)).isoformat()}T18:15Z"
    assert made.json["policies"][1]["from"] == midnight


def test_what_cannot_be_is_wrong_usage_with_the_reason(servers: Servers) -> None:
    count(servers, "views")
    for arguments, said in (
        (("--time-zone", "Mars/Olympus"), "give an IANA name such as Europe/Berlin"),
        (("--time-zone", "Asia/Tokyo"), "views has been counted"),
        (("--time-zone", "Asia/Tokyo", "--from", "2020-01-01"), "is too early"),
        (("--time-zone", "UTC", "--from", "2030-01-01T08:00"), "guessing one would begin"),
        (("--time-zone", "UTC", "--from", "tomorrow"), "is neither a day"),
        (("--time-zone", "UTC", "--from", "2030-02-30"), "is neither a day"),
        (("--time-zone", "Asia/Tokyo", "--from", "0001-01-01"), "is too early"),
        (("--from", "2030-01-01"), "is for another time zone or resolution"),
        (
            ("--resolution", "hour", "--time-zone", "Asia/Kolkata", "--from", "2030-01-01"),
            "quarter",
        ),
        (("--resolution", "week"), "not one of 'day', 'hour', 'quarter', 'minute'"),
        (("--keep-days", "0"), "a number of days from 1"),
        (("--keep-days", "always"), "neither a number of days nor 'forever'"),
        (("--app-slots", "257"), "1<=x<=256"),
        (("--keep", ""), "is no width with a time"),
        (("--keep", "minute=2d"), "nothing of views is ever counted by minute"),
        (("--keep", "hour=9d", "--keep-days", "9"), "nothing of views is ever counted by hour"),
        (("--max-keys", "0"), "a number of keys from 1"),
        (("--max-keys", "many"), "neither a number of keys nor 'none'"),
    ):
        assert said in one_sentence(servers.call("counter", "set", "views", *arguments), 2)
    shown = servers.json("counter", "show", "views")
    assert (shown["made"], shown["policies"]) == (False, [FIRST])


def test_steps_that_do_not_fit_leave_a_counter_as_it_is(servers: Servers) -> None:
    kept = ("--resolution", "minute", "--keep", "minute=2d,hour=20d")
    made = servers.json("counter", "set", "views", *kept)
    assert made["keep"] == {"minute": "2d", "hour": "20d"}
    for arguments, said in (
        (("--keep-days", "20"), "hour=20d is not shorter than the 20 days"),
        (("--time-zone", "Asia/Kolkata"), "name quarter instead of hour"),
        (("--resolution", "hour"), "nothing of views is ever counted by minute"),
        (("--keep", "minute=20d", "--keep-days", "20"), "is not shorter than the 20 days"),
    ):
        assert said in one_sentence(servers.call("counter", "set", "views", *arguments), 2)
        shown = servers.json("counter", "show", "views")
        assert shown == made


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
    assert "2 a day, as for all counters" in shown
    assert "1, in the key __overflow__" in shown
    found = servers.json("info")
    assert found["overflown"] == {"amount": 3, "counters": 2}
    assert "3 of 2 counters since yesterday" in " ".join(servers.call("info").out.split())
    doctor = " ".join(servers.call("doctor").out.split())
    assert "3 of clicks, views went to __overflow__ since yesterday" in doctor
    assert "any number" in servers.call("counter", "max-keys", "none").out
    servers.call("counter", "set", "clicks", "--max-keys", "none")
    assert "any number a day" in servers.call("counter", "show", "clicks").out


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
