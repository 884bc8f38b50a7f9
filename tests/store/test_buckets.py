"""Buckets: each event lies in its own, and they leave no gaps, whatever clocks do."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.store.counters import buckets
from countersink.store.counters.buckets import RESOLUTIONS, Resolution
from countersink.store.counters.policies import DEFAULT, Policies, Policy
from countersink.store.sql import label_of, label_text, label_time
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
@given(st.sampled_from(ZONES), st.sampled_from(RESOLUTIONS), st.integers(0, 59), SINCE_1980)
def test_an_event_lies_in_its_bucket(
    zone: str, resolution: Resolution, number: int, at: int
) -> None:
    policy = Policy(number=number, time_zone=zone, resolution=resolution)
    label = policy.label(at)
    assert policy.starts_at(label) <= at * 60 < policy.ends_at(label)
    assert buckets.policy_number(label) == number
    assert (
        policy.local_day(label)
        == datetime.fromtimestamp(
            policy.starts_at(label) if resolution != "day" else at * 60, ZoneInfo(zone)
        ).date()
    )


@examples(few=30, many=100)
@given(st.sampled_from(ZONES), st.sampled_from(RESOLUTIONS), SINCE_1980)
def test_where_a_bucket_ends_the_next_one_begins(
    zone: str, resolution: Resolution, at: int
) -> None:
    policy = Policy(number=7, time_zone=zone, resolution=resolution)
    label = policy.label(at)
    following = policy.label(policy.ends_at(label) // 60)
    assert following > label
    assert policy.starts_at(following) == policy.ends_at(label)
    assert policy.label(policy.starts_at(label) // 60) == label
    assert policy.label(policy.ends_at(label) // 60 - 1) == label


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("Australia/Lord_Howe", date(2026, 4, 5), 24.5),
        ("Australia/Lord_Howe", date(2026, 10, 4), 23.5),
        ("America/Sao_Paulo", date(2018, 11, 4), 23),  # its midnight was left out
        ("America/Sao_Paulo", date(2018, 2, 17), 25),  # the midnight after it came twice
        ("Europe/Berlin", date(2026, 11, 21), 24),
    ],
)
def test_a_day_has_the_hours_that_the_clocks_there_gave_it(
    zone: str, day: date, hours: float
) -> None:
    begin = buckets.day_begins(zone, day)
    end = buckets.day_begins(zone, day + timedelta(days=1))
    assert (end - begin) / 3600 == hours


def test_a_date_that_was_left_out_begins_where_the_next_one_does() -> None:
    left_out = buckets.day_begins("Pacific/Apia", date(2011, 12, 30))
    assert left_out == buckets.day_begins("Pacific/Apia", date(2011, 12, 31))


def test_labels_are_what_the_table_holds() -> None:
    policy = Policy(number=3, time_zone="Europe/Berlin")
    label = policy.label(minute("2026-11-20T23:00+00:00"))
    assert label_text(label) == "2026-11-21 00:00:03"
    assert label_of(label_time(label)) == label
    quarter = Policy(number=0, time_zone="Europe/Berlin", resolution="quarter")
    text = label_text(quarter.label(minute("2026-11-20T23:59+00:00")))
    assert text == "2026-11-20 23:45:00"


@pytest.mark.parametrize(
    "name",
    ["", "Berlin", "europe/berlin", "/etc/localtime", "../x", "posixrules", "+01:00", "UTC "],
)
def test_what_is_no_zone_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ValueError, match="Europe/Berlin"):
        buckets.zone(name)


def test_an_events_minute_decides_which_policy_it_is_under() -> None:
    first = Policy()
    second = Policy(number=1, valid_from=1000, time_zone="Asia/Tokyo")
    third = Policy(number=2, valid_from=2000, resolution="hour")
    found = Policies(1, False, {"c": (first, second, third)})
    under = [found.at("c", at) for at in (0, 999, 1000, 1999, 2000, 10**9)]
    assert under == [first, first, second, second, third, third]
    assert found.of("other") == (DEFAULT,)
    assert found.bucket("c", 1000) == second.label(1000)
    assert found.numbered("c", third.label(5)) == third
    with pytest.raises(LookupError, match="no policy 9"):
        found.numbered("c", 9)


def test_days_are_looked_for_in_a_zone_once() -> None:
    day = date(2026, 10, 25)
    found = buckets.date_changes("America/Havana", day)
    hits = buckets.date_changes.cache_info().hits
    assert buckets.date_changes("America/Havana", day) is found
    assert buckets.date_changes.cache_info().hits == hits + 1
