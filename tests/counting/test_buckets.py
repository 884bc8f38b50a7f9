"""Buckets: each event lies in its own, and they leave no gaps, whatever clocks do."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.counting.counters import buckets
from countersink.counting.counters.buckets import NUMBER, WIDTHS, Width
from countersink.counting.counters.catalog import DEFAULT, Scheme
from countersink.database.sql import (
    day_label,
    label_of,
    label_text,
    label_time,
    labels_where,
    month_label,
    width_number,
)
from tests.support.examples import examples

ZONES = (
    "UTC",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
    "Pacific/Chatham",
)
SINCE_1980 = st.integers(
    min_value=round(datetime(1980, 1, 1, tzinfo=UTC).timestamp()) // 60,
    max_value=round(datetime(2045, 1, 1, tzinfo=UTC).timestamp()) // 60,
)


def minute(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp()) // 60


@examples(few=30, many=100)
@given(st.sampled_from(ZONES), st.sampled_from(WIDTHS), SINCE_1980)
def test_an_event_lies_in_its_bucket_and_where_that_ends_the_next_one_begins(
    zone: str, width: Width, at: int
) -> None:
    scheme = Scheme(time_zone=zone)
    label = scheme.label_in(width, at)
    assert scheme.starts_at(label) <= at * 60 < scheme.ends_at(label)
    assert (buckets.width_of(label), width_number(label)) == (width, NUMBER[width])
    begins = at * 60 if width in ("day", "month") else scheme.starts_at(label)
    day = datetime.fromtimestamp(begins, ZoneInfo(zone)).date()
    assert scheme.local_day(label) == (day.replace(day=1) if width == "month" else day)
    if width == "day":
        assert label == day_label(day)
    if width == "month":
        assert label == month_label(day)
    following = scheme.label_in(width, scheme.ends_at(label) // 60)
    assert following > label
    assert scheme.starts_at(following) == scheme.ends_at(label)
    assert scheme.label_in(width, scheme.starts_at(label) // 60) == label
    assert scheme.label_in(width, scheme.ends_at(label) // 60 - 1) == label


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("Australia/Lord_Howe", date(2026, 4, 5), 24.5),
        ("Australia/Lord_Howe", date(2026, 10, 4), 23.5),
        ("America/Sao_Paulo", date(2018, 11, 4), 23),  # its midnight was left out
        ("America/Sao_Paulo", date(2018, 2, 17), 25),  # the midnight after it came twice
        ("Pacific/Apia", date(2011, 12, 30), 0),  # it was left out
        ("Europe/Berlin", date(2026, 11, 21), 24),
    ],
)
def test_a_day_has_the_hours_that_the_clocks_there_gave_it(
    zone: str, day: date, hours: float
) -> None:
    begin = buckets.day_begins(zone, day)
    end = buckets.day_begins(zone, day + timedelta(days=1))
    assert (end - begin) / 3600 == hours


def test_labels_are_what_the_table_holds() -> None:
    scheme = Scheme(time_zone="Europe/Berlin", resolution="quarter")
    at = minute("2026-11-20T23:59+00:00")
    day, quarter = scheme.label_in("day", at), scheme.label(at)
    assert (label_text(day), width_number(day)) == ("2026-11-21 00:00:00", 4)
    assert (label_text(quarter), width_number(quarter)) == ("2026-11-20 23:45:00", 2)
    assert label_of(label_time(day), 4) == day
    where, values = labels_where([day, quarter, day + 86_400])
    assert where == ("((bucket IN (%s, %s) AND width = 4) OR (bucket = %s AND width = 2))")
    assert values == [label_time(day), label_time(day + 86_400), label_time(quarter)]


@pytest.mark.parametrize("number", [0, 6, 59])
def test_a_width_that_there_is_not_is_said_so(number: int) -> None:
    label = day_label(date(2026, 11, 21)) - 4 + number
    for ask in (buckets.width_of, DEFAULT.starts_at, DEFAULT.ends_at, DEFAULT.local_day):
        with pytest.raises(LookupError, match=f"2026-11-21 00:00:00 has the width {number}"):
            ask(label)


@pytest.mark.parametrize(
    "name",
    ["", "Berlin", "europe/berlin", "/etc/localtime", "../x", "posixrules", "+01:00", "UTC "],
)
def test_what_is_no_zone_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ValueError, match="Europe/Berlin"):
        buckets.zone(name)
