"""Where periods begin, in any time zone."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.store.errors import UnknownZone
from countersink.store.sequences.options import ALL_TIME, PERIODS, PeriodLength, SequenceOptions
from tests.support.examples import examples

ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"),
    *("Pacific/Kiritimati", "Africa/Cairo", "America/Asuncion", "Australia/Lord_Howe"),
)


def _unix(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


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
    options = SequenceOptions(period=period, time_zone=zone)
    assert options.period_at(_unix(moment)) == date.fromisoformat(first)


@examples(few=30, many=100)
@given(
    st.sampled_from(PERIODS[1:]),
    st.sampled_from(ZONES),
    st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001
)
def test_the_local_date_is_in_the_period(period: PeriodLength, zone: str, moment: datetime) -> None:
    instant = int(moment.replace(tzinfo=UTC).timestamp())
    local = datetime.fromtimestamp(instant, ZoneInfo(zone)).date()
    first = SequenceOptions(period=period, time_zone=zone).period_at(instant)
    assert first <= local
    assert first.day == 1 or period == "day"
    assert (first.year, first.month) == (local.year, local.month if period != "year" else 1)
    assert local - first < timedelta(days={"day": 1, "month": 31, "year": 366}[period])


def test_what_has_begun_has_begun_where_a_date_comes_again() -> None:
    """At 00:01 Newfoundland put its clocks back to 23:01 of the day, and of the month, before."""
    for period, moment, first in (
        ("day", "2010-11-07T02:29:59", "2010-11-06"),
        ("day", "2010-11-07T02:30", "2010-11-07"),
        ("day", "2010-11-07T03:00", "2010-11-07"),  # it is the 6th, for the second time
        ("month", "2009-11-01T02:29:59", "2009-10-01"),
        ("month", "2009-11-01T03:00", "2009-11-01"),
    ):
        options = SequenceOptions(period=period, time_zone="America/St_Johns")  # type: ignore[arg-type]
        assert options.period_at(_unix(moment)) == date.fromisoformat(first), moment


def test_without_periods_there_is_one() -> None:
    assert SequenceOptions(time_zone="Mars/Olympus").period_at(2 * 10**9) == ALL_TIME


def test_a_time_zone_that_is_unknown_here() -> None:
    options = SequenceOptions(period="day", time_zone="Mars/Olympus")
    with pytest.raises(UnknownZone, match="unknown here: install a newer tzdata"):
        options.period_at(0)
