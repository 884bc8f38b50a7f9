"""Where periods begin, in any time zone."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.store.errors import Refused
from countersink.store.sequences.options import (
    ALL_TIME,
    PERIODS,
    PeriodLength,
    Scheme,
    first_day_at,
    place_at,
)
from countersink.store.sql import day_label, label_time
from tests.support.examples import examples

ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"),
    *("Pacific/Kiritimati", "Africa/Cairo", "America/Asuncion", "Australia/Lord_Howe"),
)


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "zone", "moment", "first"),
    [
        ("none", "UTC", "2026-11-21T12:00", "1970-01-01"),
        ("day", "UTC", "2026-11-21T23:59:59.999", "2026-11-21"),
        ("day", "UTC", "2026-11-22T00:00", "2026-11-22"),
        ("month", "Europe/Berlin", "2026-10-31T22:59:59", "2026-10-01"),
        ("month", "Europe/Berlin", "2026-10-31T23:00", "2026-11-01"),
        ("month", "Europe/Berlin", "2026-03-31T21:59:59", "2026-03-01"),
        ("month", "Europe/Berlin", "2026-03-31T22:00", "2026-04-01"),
        ("month", "UTC", "2028-02-29T23:00", "2028-02-01"),
        ("year", "America/New_York", "2027-01-01T04:59:59", "2026-01-01"),
        ("year", "America/New_York", "2027-01-01T05:00", "2027-01-01"),
        ("day", "Africa/Cairo", "2026-04-23T21:59:59", "2026-04-23"),
        ("day", "Africa/Cairo", "2026-04-23T22:00", "2026-04-24"),  # 00:00 to 01:00 is left out
    ],
)
def test_the_period_at_a_moment(period: PeriodLength, zone: str, moment: str, first: str) -> None:
    assert first_day_at(Scheme(period, zone), _unix(moment)) == date.fromisoformat(first)


@examples(few=30, many=100)
@given(
    st.sampled_from(PERIODS[1:]),
    st.sampled_from(ZONES),
    st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001
)
def test_the_local_date_is_in_the_period(period: PeriodLength, zone: str, moment: datetime) -> None:
    instant = moment.replace(tzinfo=UTC).timestamp()
    local = datetime.fromtimestamp(instant, ZoneInfo(zone)).date()
    first = first_day_at(Scheme(period, zone), instant)
    assert first <= local
    assert first.day == 1 or period == "day"
    assert (first.year, first.month) == (local.year, local.month if period != "year" else 1)
    assert local - first < timedelta(days={"day": 1, "month": 31, "year": 366}[period])


@examples(few=30, many=100)
@given(
    st.sampled_from(PERIODS[1:]),
    st.sampled_from(ZONES),
    st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001
    st.floats(-20, 20),
)
def test_the_statement_knows_the_neighbouring_periods(
    period: PeriodLength, zone: str, moment: datetime, hours: float
) -> None:
    """The server's clock is known roughly; what it says itself counts."""
    scheme, instant = Scheme(period, zone), moment.replace(tzinfo=UTC).timestamp()
    place = place_at(scheme, instant)
    at = instant + hours * 3600
    expected = first_day_at(scheme, at)
    assert _evaluated(place.expression, place.condition, at) == label_time(day_label(expected))


def _evaluated(expression: str, condition: str, instant: float) -> datetime | None:
    """What the server makes of it, at a moment."""
    now = datetime.fromtimestamp(instant // 1, UTC).replace(tzinfo=None)
    lower, upper = (datetime.fromisoformat(part.split("'")[1]) for part in condition.split(" AND "))
    if not lower <= now < upper:
        return None
    for branch in expression.removeprefix("CASE WHEN ").removesuffix(" END").split(" WHEN "):
        end, period = (datetime.fromisoformat(text) for text in branch.split("'")[1::2])
        if now < end:
            return period
    return None


def test_without_periods_there_is_one() -> None:
    place = place_at(Scheme("none", "Europe/Berlin"), 0)
    assert (place.expression, place.condition) == ("TIMESTAMP'1970-01-01 00:00:00'", "")
    assert first_day_at(Scheme(), 2e9) == ALL_TIME


def test_a_time_zone_that_is_unknown_here() -> None:
    with pytest.raises(Refused, match="unknown here: install a newer tzdata"):
        place_at(Scheme("day", "Mars/Olympus"), 0)
