"""Cron expressions: what they mean, and when they come next and came last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.schedules.cron import Cron, parse

NOON = datetime(2026, 11, 21, 12, 0, 5, tzinfo=UTC)  # a Saturday


def first(text: str, count: int = 3, *, start: datetime = NOON, zone: str = "UTC") -> list[str]:
    cron, moment = Cron(text, zone), start
    found: list[str] = []
    while len(found) < count:
        following = cron.after(moment)
        assert following is not None
        assert following > moment
        moment = following
        found.append(f"{moment:%a %Y-%m-%d %H:%M:%S}")
    return found


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("* * * * * *", ["Sat 2026-11-21 12:00:06", "Sat 2026-11-21 12:00:07"]),
        ("* * * * *", ["Sat 2026-11-21 12:01:00", "Sat 2026-11-21 12:02:00"]),
        ("*/25 * * * *", ["Sat 2026-11-21 12:25:00", "Sat 2026-11-21 12:50:00"]),
        ("5,55 9-17/4 * * *", ["Sat 2026-11-21 13:05:00", "Sat 2026-11-21 13:55:00"]),
        ("20 3 * * *", ["Sun 2026-11-22 03:20:00", "Mon 2026-11-23 03:20:00"]),
        ("0 0 * * 0", ["Sun 2026-11-22 00:00:00", "Sun 2026-11-29 00:00:00"]),
        ("0 0 * * 7", ["Sun 2026-11-22 00:00:00", "Sun 2026-11-29 00:00:00"]),
        ("0 0 * * 1", ["Mon 2026-11-23 00:00:00", "Mon 2026-11-30 00:00:00"]),
        ("0 0 * * SAT,mon", ["Mon 2026-11-23 00:00:00", "Sat 2026-11-28 00:00:00"]),
        ("0 0 * * fri-sun", ["Sun 2026-11-22 00:00:00", "Fri 2026-11-27 00:00:00"]),
        ("0 0 * * 5-7", ["Sun 2026-11-22 00:00:00", "Fri 2026-11-27 00:00:00"]),
        ("0 0 1 jan,7 *", ["Fri 2027-01-01 00:00:00", "Thu 2027-07-01 00:00:00"]),
        ("0 0 29 2 *", ["Tue 2028-02-29 00:00:00", "Sun 2032-02-29 00:00:00"]),
        ("@daily", ["Sun 2026-11-22 00:00:00", "Mon 2026-11-23 00:00:00"]),
        ("@weekly", ["Sun 2026-11-22 00:00:00", "Sun 2026-11-29 00:00:00"]),
    ],
)
def test_an_expression_means_what_it_means_to_cron(text: str, times: list[str]) -> None:
    assert first(text, len(times)) == times


def test_day_of_month_and_day_of_week_together_mean_either() -> None:
    assert first("0 0 13 * 5", 5) == [
        "Fri 2026-11-27 00:00:00",
        "Fri 2026-12-04 00:00:00",
        "Fri 2026-12-11 00:00:00",
        "Sun 2026-12-13 00:00:00",
        "Fri 2026-12-18 00:00:00",
    ]
    # with a * in one of them both have to fit, as in cron
    assert first("0 0 13 * *", 2) == ["Sun 2026-12-13 00:00:00", "Wed 2027-01-13 00:00:00"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a cron expression"),
        ("* * * *", "five fields"),
        ("* * * * * * *", "five fields"),
        ("60 * * * *", "'60' does not fit the minute"),
        ("* 24 * * *", "'24' does not fit the hour"),
        ("* * 0 * *", "'0' does not fit the day of month"),
        ("* * * 13 *", "'13' does not fit the month"),
        ("* * * * 8", "'8' does not fit the day of week"),
        ("* * * * foo", "'foo' does not fit the day of week"),
        ("*/0 * * * *", "step of '*/0'"),
        ("5-3 * * * *", "ends before it begins"),
        ("*-5 * * * *", "does not fit the minute"),
        ("1,,2 * * * *", "'' does not fit the minute"),
        ("L * * * *", "does not fit the minute"),
        ("-1 * * * *", "does not fit the minute"),
        ("٣ * * * *", "does not fit the minute"),
        ("0 0 31 4 *", "never comes"),
        ("0 " * 200, "at most 255"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("*", r"\*")):
        parse(text)


def test_off_is_no_expression_and_a_time_zone_has_to_exist() -> None:
    assert parse(" OFF ") is None
    for text in ("off", "* * * * *"):
        with pytest.raises(ValueError, match="not a time zone"):
            parse(text, "Europe/Atlantis")
    with pytest.raises(ValueError, match="not a time zone"):
        parse("* * * * *", "../../etc/passwd")


def test_fixed_hours_come_once_when_clocks_go_back_and_once_when_they_go_forward() -> None:
    back = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert first("30 2 * * *", 2, start=back, zone="Europe/Berlin") == [
        "Sun 2026-10-25 00:30:00",
        "Mon 2026-10-26 01:30:00",
    ]
    forward = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert first("30 2 * * *", 2, start=forward, zone="Europe/Berlin") == [
        "Sun 2026-03-29 01:30:00",
        "Mon 2026-03-30 00:30:00",
    ]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/New_York"])
@pytest.mark.parametrize(("month", "day"), [(3, 8), (3, 29), (4, 4), (10, 3), (10, 24), (11, 1)])
def test_every_ten_minutes_stays_every_ten_minutes_across_clock_changes(
    zone: str, month: int, day: int
) -> None:
    start = datetime(2026, month, day, tzinfo=UTC)
    cron = Cron("*/10 * * * *", zone)
    times = list(cron.between(start, start + timedelta(days=2)))
    assert len(times) == 2 * 144
    assert {b - a for a, b in pairwise(times)} == {timedelta(minutes=10)}


EXPRESSIONS = st.sampled_from(
    ["* * * * * *", "*/7 * * * * *", "* * * * *", "*/10 * * * *", "20 3 * * *", "0 0 * * 1-5",
     "0 12 13 * 5", "* * * 1 *", "59 59 23 31 12 *", "30 2 * * *"]
)  # fmt: skip


@given(
    EXPRESSIONS,
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
    st.integers(0, 4 * 366 * 86_400),
)
def test_the_last_time_is_the_one_after_which_none_came(text: str, zone: str, seconds: int) -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    cron = Cron(text, zone)
    last = cron.last(moment)
    assert last is not None
    assert last <= moment
    following = cron.after(last)
    assert following is not None
    assert following > moment
    assert cron.after(last - timedelta(seconds=1)) == last


def test_what_comes_every_few_years_is_found_too() -> None:
    last = Cron("0 0 29 2 *").last(datetime(2104, 2, 28, tzinfo=UTC))
    assert last == datetime(2096, 2, 29, tzinfo=UTC)
