"""Cron expressions: what they mean, and when they come next."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.schedules.options import Cron, parse
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
        ("5,55 9-17/4 * * *", ["Sat 2026-11-21 13:05:00", "Sat 2026-11-21 13:55:00"]),
        ("0 0 * * 0", ["Sun 2026-11-22 00:00:00", "Sun 2026-11-29 00:00:00"]),
        ("0 0 * * 7", ["Sun 2026-11-22 00:00:00", "Sun 2026-11-29 00:00:00"]),
        ("0 0 * * 1", ["Mon 2026-11-23 00:00:00", "Mon 2026-11-30 00:00:00"]),
        ("0 0 * * SAT,mon", ["Mon 2026-11-23 00:00:00", "Sat 2026-11-28 00:00:00"]),
        ("@daily", ["Sun 2026-11-22 00:00:00", "Mon 2026-11-23 00:00:00"]),
        ("@weekly", ["Sun 2026-11-22 00:00:00", "Sun 2026-11-29 00:00:00"]),
    ],
)
def test_an_expression_means_what_it_means_to_cron(text: str, times: list[str]) -> None:
    assert first(text, len(times)) == times


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a cron expression"),
        ("* * * *", "five fields"),
        ("60 * * * *", "bad minute"),
        ("* * * * 8", "bad day-of-week"),
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


def between(cron: Cron, start: datetime, end: datetime) -> Iterator[datetime]:
    """The times after the start, up to and including the end."""
    moment = cron.after(start)
    while moment is not None and moment <= end:
        yield moment
        moment = cron.after(moment)


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
TEN_MINUTES = [
    ("*/10 * * * *", zone, date(2026, month, day), 2)
    for zone in ("Europe/Berlin", "America/New_York")
    for month, day in ((3, 8), (3, 29), (10, 24), (11, 1))
]


@pytest.mark.parametrize(("text", "zone", "day", "days"), [*LEFT_OUT, *REPEATED, *TEN_MINUTES])
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
