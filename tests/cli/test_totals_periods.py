"""`countersink totals` by hour and month, in other time zones, and of days that are rolled up."""

from datetime import datetime

import pytest

from countersink.counting.apply.applier import Applier
from countersink.producers import Producer
from countersink.store import Store
from tests.cli.command import Result, Servers, one_sentence
from tests.support.entries import entry


@pytest.fixture(scope="module")
def filled(module_servers: Servers) -> Servers:
    """`views` counts quarters in Berlin, `clicks` days in UTC."""
    with Store(module_servers.mysql_url) as store:
        store.counters.set("views", time_zone="Europe/Berlin", resolution="quarter")
    with Producer(module_servers.redis_url) as producer:
        for counter, at, amount in (
            ("views", "2026-10-24T23:30Z", 1),
            ("views", "2026-10-25T00:30Z", 10),
            ("views", "2026-10-25T01:30Z", 100),
            ("views", "2026-10-31T23:15Z", 1000),
            ("clicks", "2026-10-24T23:30Z", 7),
        ):
            producer.increment(counter, "/", amount, at=datetime.fromisoformat(at))
    module_servers.apply()
    return module_servers


@pytest.fixture(scope="module")
def rolled(filled: Servers) -> Servers:
    """The days of `clicks` before November are in months, for the tests that come last."""
    filled.execute(
        "UPDATE counter_slot SET width = 5, bucket = '2026-10-01' WHERE counter = 'clicks'",
        "INSERT INTO counter (name, keep_steps, rolled_month, created)"
        " VALUES ('clicks', 'day=1d', '2026-11-01', NOW(3))",
    )
    filled.call("increment", "clicks", "/", "--amount", "70", "--at", "2026-11-02T12:00Z")
    filled.apply()
    return filled


def rows(servers: Servers, *arguments: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in servers.rows(*arguments)]


def refused(servers: Servers, *arguments: str) -> str:
    found: Result = servers.call("totals", *arguments)
    assert found.status == 1
    return one_sentence(found)


def test_weeks_months_and_days_stand_beside_those_before(filled: Servers) -> None:
    with Producer(filled.redis_url) as producer:
        for at, amount in (("2025-10-22", 40), ("2025-10-29", 50), ("2025-11-08", 25)):
            producer.increment("weeks", "/", amount, at=datetime.fromisoformat(f"{at}T12:00Z"))
        producer.increment("weeks", "/", 7)
    filled.apply()
    weeks = [("2025-W43", 40, 0), ("2025-W44", 50, 40), ("2025-W45", 25, 50)]
    cut = [("2025-W44", 0, None), *weeks[2:]]
    for options, expected in (
        (["--by", "week", "--to", "2025-11-09"], weeks),
        (["--by", "week", "--from", "2025-W44", "--to", "2025-11-09"], weeks[1:]),
        # A week of which days with counts are cut off stands beside none.
        (["--by", "week", "--from", "2025-10-30", "--to", "2025-11-09"], cut),
        (["--by", "month", "--to", "2025-11-30"], [("2025-10", 90, 0), ("2025-11", 25, 90)]),
        (["--from", "2025-10-30", "--to", "2025-10-30"], [("2025-10-30", 0, 50)]),
        (["--from", "0001-01-01", "--to", "0001-01-01"], [("0001-01-01", 0, 0)]),
        (["--from", "9999-12-31", "--to", "9999-12-31"], [("9999-12-31", 0, None)]),
        (["--by", "week", "--from", "9999-12-27", "--to", "9999-12-31"], [("9999-W52", 0, None)]),
    ):
        assert rows(filled, "weeks", *options, "--against", "previous") == expected, options
    for unit in ("day", "week", "month"):  # not over
        *_, last = rows(filled, "weeks", "--by", unit, "--against", "previous")
        assert last[1:] == (7, None)
    found = filled.call(
        "totals", "weeks", "--by", "week", "--to", "2025-11-09", "--against", "previous"
    )
    assert [line.split()[:4] for line in found.out.splitlines()[2:4]] == [
        ["2025-W44", "50", "40", "+25%"],
        ["2025-W45", "25", "50", "-50%"],
    ]


def test_hours_of_a_counter_by_day_are_refused_with_what_would_tell_them(filled: Servers) -> None:
    said = refused(filled, "clicks", "--by", "hour")
    assert "`countersink counter set clicks --resolution hour`" in said


def test_a_zone_whose_days_cannot_be_told_is_an_error(filled: Servers) -> None:
    said = refused(filled, "clicks", "--from", "2026-10-24", "--time-zone", "Asia/Tokyo")
    assert "'clicks' is counted by day in UTC" in said
    assert "counter set clicks --resolution quarter" in said
    assert refused(filled, "--all", "--from", "2026-10-24", "--time-zone", "Asia/Tokyo") == said


def test_days_that_are_rolled_up_are_not_shown_as_0(rolled: Servers) -> None:
    notice = (
        "countersink: the days before 2026-11-01 are rolled up to months: --by month shows them\n"
    )
    for options, expected in (
        ([], [("2026-11-02", 70)]),
        (["--from", "2026-10-20"], [("2026-11-01", 0), ("2026-11-02", 70)]),
        (["--from", "2026-10-20", "--to", "2026-10-21"], []),
        (["--to", "2026-10-21"], []),
    ):
        found = rolled.call("totals", "clicks", *options, "--format", "json")
        assert found.status == 0
        assert [tuple(row.values()) for row in found.json["rows"]] == expected
        assert found.err == notice
        assert found.json["rolled_up_to"] == "2026-11-01"
        assert found.json["complete_up_to"] is not None
    table = rolled.call("totals", "clicks")
    assert "2026-11-02" in table.out
    assert table.err == notice
    nothing = rolled.call("totals", "clicks", "--to", "2026-10-21")
    assert (nothing.status, nothing.err) == (0, notice)
    assert nothing.out.startswith("Complete up to")
    # October ends within a week, of which no part is shown.
    weeks = rolled.call(
        "totals", "clicks", "--by", "week", "--from", "2026-W44", "--format", "json"
    )
    assert weeks.json["rows"] == [{"week": "2026-W45", "total": 70}]
    assert weeks.err == notice.replace("days before 2026-11-01", "weeks before 2026-11-02")
    assert rows(rolled, "clicks", "--by", "week", "--from", "2026-11-01")[0] == ("2026-W44", 0)
    # Before the first month, zeros are exact.
    before = ("--from", "2026-09-29", "--to", "2026-09-30")
    assert rows(rolled, "clicks", *before) == [("2026-09-29", 0), ("2026-09-30", 0)]
    assert rolled.call("totals", "clicks", *before).err == ""
    # Nothing is missing from these.
    since = rolled.json("totals", "clicks", "--from", "2026-11-01")
    assert since["rolled_up_to"] == "2026-11-01"
    assert rolled.json("totals", "views")["rolled_up_to"] is None
    assert rows(rolled, "clicks", "--by", "month") == [("2026-10", 7), ("2026-11", 70)]
    assert rows(rolled, "clicks", "--by", "total") == [(77,)]
    assert rolled.json("totals", "--all")["rolled_up_to"] == "2026-11-01"
    every = rolled.call("totals", "--all", "--by", "day", "--format", "json")
    assert every.err == notice
    assert ["clicks", "2026-11-02", 70] in [list(row.values()) for row in every.json["rows"]]


def test_a_range_that_cuts_through_a_month_is_an_error(rolled: Servers) -> None:
    for by in ("total", "key", "month", "counter"):
        said = refused(rolled, "clicks", "--from", "2026-10-20", "--by", by)
        assert "ask for whole months, or from 2026-11-01 on" in said
    assert "whole months" in refused(rolled, "--all", "--to", "2026-10-20")
    assert rows(rolled, "clicks", "--from", "2026-10-01", "--by", "key") == [("/", 77)]


def count_in(servers: Servers, counter: str, *days: str) -> None:
    """Count on these days, however far ahead: as rows of a table have them that triggers count."""
    applier = Applier(servers.mysql_url, 9)
    for day in days:
        at = round(datetime.fromisoformat(f"{day}T00:00+00:00").timestamp()) // 60
        applier.apply([entry([(0, counter, "/", at, 1)])])
    applier.close()


@pytest.mark.parametrize(("by", "begins"), [("day", "2026-11-20"), ("month", "2026-11")])
def test_a_stray_event_does_not_hide_the_others(servers: Servers, by: str, begins: str) -> None:
    count_in(servers, "views", "2026-11-20", "2026-12-01", "9999-12-25")
    shown = servers.call("totals", "views", "--by", by, "--format", "json")
    found = shown.json["rows"]
    assert (found[0][by], sum(row["total"] for row in found)) == (begins, 2)
    assert len(found) == (12 if by == "day" else 2)
    assert "span too long a time" in shown.err
    whole = servers.call("totals", "views", "--by", "month", "--from", "0900-01-01")
    assert (whole.status, "at most 3,600" in one_sentence(whole)) == (2, True)
    assert servers.rows("views", "--by", "total") == [{"total": 3}]
