"""Cron expressions: what they mean, and when they come next."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.schedules.cron import Cron, parse
from tests.support.examples import examples

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
        ("0 12 L * *", ["Mon 2026-11-30 12:00:00", "Thu 2026-12-31 12:00:00"]),
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
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("5-3 * * * *", "bad minute"),
        ("٣ * * * *", "bad minute"),
        ("0 0 31 4 *", "bad day-of-month"),
        ("0 " * 200, "at most 255"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("*", r"\*")):
        parse(text)


def test_off_is_no_expression_and_a_time_zone_has_to_exist() -> None:
    assert parse(" OFF ") is None
    for text in ("off", "* * * * *"):
        with pytest.raises(ValueError, match="is no time zone"):
            parse(text, "Europe/Atlantis")
    with pytest.raises(ValueError, match="is no time zone"):
        parse("* * * * *", "../../etc/passwd")


def test_fixed_hours_come_once_when_clocks_go_back_and_once_when_they_go_forward() -> None:
    back = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert first("30 2 * * *", 2, start=back, zone="Europe/Berlin") == [
        "Sun 2026-10-25 00:30:00",
        "Mon 2026-10-26 01:30:00",
    ]
    forward = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert first("30 2 * * *", 2, start=forward, zone="Europe/Berlin") == [
        "Sun 2026-03-29 01:00:00",  # 03:00 there: the first time after the hour left out
        "Mon 2026-03-30 00:30:00",
    ]


def between(cron: Cron, start: datetime, end: datetime) -> Iterator[datetime]:
    """The times after the start, up to and including the end."""
    moment = cron.after(start)
    while moment is not None and moment <= end:
        yield moment
        moment = cron.after(moment)


@pytest.mark.parametrize(
    "year", [2026, *(pytest.param(n, marks=pytest.mark.long("other years")) for n in (2011, 2017))]
)
def test_midnight_comes_once_on_every_date_that_exists_in_every_zone(year: int) -> None:
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    noons = [datetime(year, 1, 3, 12) + timedelta(days=n) for n in range(360)]  # noqa: DTZ001
    courses = set()
    for name in sorted(available_timezones() - {"localtime"}):
        zone = ZoneInfo(name)
        looks = (start + timedelta(hours=3 * n) for n in range(366 * 8))
        course = tuple(moment.astimezone(zone).utcoffset() for moment in looks)
        if len(set(course)) == 1 or course in courses:
            continue  # its clock was not set in this year, or as that of another zone
        courses.add(course)
        found = Counter(
            each.astimezone(zone).date() for each in between(Cron("0 0 * * *", name), start, end)
        )
        assert set(found.values()) == {1}, name
        there = (noon.replace(tzinfo=zone).astimezone(UTC).astimezone(zone) for noon in noons)
        assert {each.date() for each in there} <= set(found), name


ZONES = st.sampled_from(
    ["Africa/Cairo", "America/Havana", "America/Sao_Paulo", "Europe/Berlin",
      "Pacific/Apia", "Asia/Gaza", "Africa/Casablanca", "Antarctica/Troll"]
)  # fmt: skip


@examples(few=20, many=100)
@given(
    st.sampled_from(["*/20 * * * *", "5 */2 * * *", "0,30 0,2,3 * * *", "59 23 * * *"]),
    ZONES,
    st.integers(0, 16 * 366),
)
def test_the_times_are_those_of_a_look_at_every_minute(text: str, zone: str, day: int) -> None:
    start = datetime(2011, 1, 1, tzinfo=UTC) + timedelta(days=day)
    end = start + timedelta(days=2)
    assert list(between(Cron(text, zone), start, end)) == minute_by_minute(text, zone, start, end)


def numbers(field: str) -> set[int]:
    """A list, `*` or `*/step`."""
    if field.startswith("*"):
        return set(range(0, 60, int(field[2:] or 1)))
    return set(map(int, field.split(",")))


def minute_by_minute(text: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """The times of an expression whose minutes and hours alone are restricted."""
    named = "*" not in "".join(text.split()[:2])
    minutes, hours = map(numbers, text.split()[:2])
    local = ZoneInfo(zone)
    found, moment, shown = [], start, start.astimezone(local).replace(tzinfo=None)
    while moment < end:
        moment += timedelta(minutes=1)
        here = moment.astimezone(local)
        before, shown = shown, here.replace(tzinfo=None)
        if not named:
            before = shown - timedelta(minutes=1)
        elif here.fold:
            continue
        while before < shown:  # this minute, and those that were left out before it
            before += timedelta(minutes=1)
            if before.minute in minutes and before.hour in hours:
                found.append(moment)
                break
    return found


LEFT_OUT = [
    *(("30 0 * * *", zone, date(2026, 3, 28), 2) for zone in ("Asia/Beirut", "Asia/Gaza")),
    ("0 0 * * *", "Africa/Cairo", date(2026, 4, 23), 2),
    ("0 0 * * *", "America/Santiago", date(2026, 9, 5), 3),
    ("0 0 * * *", "America/Havana", date(2026, 3, 7), 3),
    ("0 0 * * *", "America/Sao_Paulo", date(2017, 10, 14), 3),
    ("0 0 * * *", "Pacific/Apia", date(2011, 12, 29), 3),  # without the 30th
    # Several that are left out come once, and one that comes then anyway comes once, too.
    *((text, "Europe/Berlin", date(2026, 3, 28), 3) for text in ("0,30 2 * * *", "0 2,3 * * *")),
    ("45 1,2 * * *", "Europe/Berlin", date(2026, 3, 28), 3),
]
REPEATED = [
    (text, "Europe/Berlin", date(2026, 10, 24), 3)
    for text in ("5 * * * *", "50 * * * *", "5 */2 * * *", "5 1,2,3,4 * * *", "0,1 2,3 * * *")
]
"""An hour that comes twice counts twice for a star, and once for hours that are named."""
SET_BY_HALF_AN_HOUR = [
    (text, "Australia/Lord_Howe", date(2026, month, day), 4)
    for text in ("15 */12 * * *", "45 * * * *", "10 */5 * * *", "*/7 */2 * * *")
    for month, day in ((4, 3), (10, 2))
]
TEN_MINUTES = [
    ("*/10 * * * *", zone, date(2026, month, day), 2)
    for zone in ("Europe/Berlin", "Australia/Lord_Howe", "America/New_York")
    for month, day in ((3, 8), (3, 29), (4, 4), (10, 3), (10, 24), (11, 1))
]


@pytest.mark.parametrize(
    ("text", "zone", "day", "days"), [*LEFT_OUT, *REPEATED, *SET_BY_HALF_AN_HOUR, *TEN_MINUTES]
)
def test_no_time_is_lost_across_clock_changes_wherever_one_looks_from(
    text: str, zone: str, day: date, days: int
) -> None:
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    end = start + timedelta(days=days)
    wanted = minute_by_minute(text, zone, start, end)
    if text == "*/10 * * * *":
        assert {b - a for a, b in pairwise(wanted)} == {timedelta(minutes=10)}
    cron = Cron(text, zone)
    assert list(between(cron, start, end)) == wanted
    moment = start
    while moment < wanted[-1]:
        assert cron.after(moment) == next(each for each in wanted if each > moment)
        moment += timedelta(minutes=30)
