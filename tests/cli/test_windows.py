"""Windows and times of `totals`, `top` and `export` that are none: one sentence, and its status."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from countersink.producers import Producer
from tests.cli.command import Servers, one_sentence
from tests.reads.test_windows import same_minute


@pytest.fixture(scope="module")
def filled(module_servers: Servers) -> Servers:
    """`views` counts minutes, `clicks` days; both have counts of now."""
    module_servers.call("counter", "set", "views", "--resolution", "minute")
    with Producer(module_servers.redis_url) as producer:
        producer.increment("views", "/", 3)
        producer.increment("clicks", "/", 5)
    module_servers.apply()
    return module_servers


def test_a_time_without_an_offset_is_of_the_time_zone_that_is_named(filled: Servers) -> None:
    at = "2026-11-20T08:30"
    assert filled.call("counter", "set", "named", "--resolution", "minute").status == 0
    filled.call("increment", "named", "/x", "--at", f"{at}+05:30")
    filled.apply()
    named = ("--time-zone", "Asia/Kolkata", "--from", at, "--to", "2026-11-20T08:31")
    found = filled.call("totals", "named", *named, "--by", "total", "--format", "csv")
    assert (found.status, found.out.split()) == (0, ["total", "1"])


def test_a_long_window_holds_all_and_one_in_the_future_nothing(filled: Servers) -> None:
    year = datetime.now(UTC).year + 1
    future = ("--from", f"{year}-01-01T00:00Z", "--to", f"{year}-01-01T01:00Z")
    for window, total in (
        *((("--last", last), "3") for last in ("36500d", "400000h", "24000000m")),
        (future, "0"),
    ):
        found = filled.call("totals", "views", *window, "--by", "total", "--format", "csv")
        assert (found.status, found.out.split()) == (0, ["total", total]), (window, found.err)
    done = filled.call("totals", "views", "--last", "876000h")
    assert "from 1970-01-01 on" in one_sentence(done, 2)


EAST, WEST = "Pacific/Kiritimati", "Etc/GMT+12"
"""Zones that are 26 hours apart: they never have the same day."""


def test_days_and_weeks_by_name_are_those_of_each_counter(filled: Servers) -> None:

    def check(minute: int) -> None:
        now = datetime.fromtimestamp(minute * 60, UTC)
        zones = {f"east{minute}": EAST, f"west{minute}": WEST}
        with Producer(filled.redis_url) as producer:
            for name, zone in zones.items():
                filled.call("counter", "set", name, "--time-zone", zone)
                for back in range(22):
                    producer.increment(name, "/", 2**back, at=now - timedelta(days=back))
        filled.apply()
        for name, zone in zones.items():
            today = now.astimezone(ZoneInfo(zone)).date()
            names = {(today - timedelta(days=n)).strftime("%A"): n for n in range(7)}
            for word, back in (names | {"today": 0, "yesterday": 1}).items():
                day = today - timedelta(days=back)
                (row,) = filled.rows(name, "--from", word, "--to", word)
                assert row == {"day": f"{day}", "total": 2**back}, word
            iso = today.isocalendar()
            week = f"{iso.year}-W{iso.week:02}"
            (open_week,) = filled.rows(name, "--from", week, "--to", week, "--by", "week")
            assert open_week == {"week": week, "total": 2**iso.weekday - 1}
            weeks = filled.json("totals", name, "--last", "2w", "--by", "week", "--format", "json")
            assert weeks["rows"][1:] == [open_week]
            before = sum(2**back for back in range(iso.weekday, iso.weekday + 7))
            assert weeks["rows"][0]["total"] == before
            ends = [today + timedelta(days=days - iso.weekday) for days in (-6, 7)]
            assert weeks["window"] == {"from": f"{ends[0]}", "to": f"{ends[1]}"}
            (row,) = filled.rows(name, "--last", "1w", "--by", "total", "--against", "previous")
            assert row == {"total": open_week["total"], "previous": before}
            half = filled.json("totals", name, "--from", "yesterday", "--format", "json")
            assert [row["total"] for row in half["rows"]] == [2, 1]
        every = filled.call("export", *zones, "--from", "today", "--by", "total")
        assert every.out.split() == ["counter,total", *(f"{name},1" for name in zones)]

    same_minute(check)
    done = filled.call("totals", "views", "--from", "today", "--to", "yesterday")
    assert "before it begins" in one_sentence(done, 2)


def test_a_window_before_which_there_is_no_time_has_no_previous_one(filled: Servers) -> None:
    for given in (("--last", "400000h"), ("--from", "0001-01-01", "--to", "2100-01-01")):
        for command in (("top", "views"), ("totals", "views", "--by", "total")):
            done = filled.call(*command, *given, "--against", "previous", "--format", "json")
            assert done.status == 0, (given, done.err)
            (row,) = done.json["rows"]
            assert (row["total"], row["previous"]) == (3, None)
