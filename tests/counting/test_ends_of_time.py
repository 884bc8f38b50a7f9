"""The first and the last events there can be: exact in every time zone, and no error."""

from datetime import date, timedelta
from itertools import product

import pytest

from countersink.counting.counters import buckets
from countersink.counting.counters.buckets import (
    MAX_MINUTE,
    NUMBER,
    RESOLUTIONS,
    Resolution,
    Width,
    date_changes,
)
from countersink.counting.counters.catalog import Scheme
from countersink.database.sql import day_label, label_of, label_time
from countersink.runtime import limits
from countersink.store import Store
from tests.support.entries import Database, entry, minute
from tests.support.width_rows import Put, put_scheme

LAST = date(9999, 12, 25)
FAR = ("Pacific/Kiritimati", "Asia/Tokyo", "UTC", "America/New_York", "Etc/GMT+12")
"""From 14 hours ahead of UTC to 12 hours behind."""


def test_the_store_and_the_stream_end_with_the_same_minute() -> None:
    assert limits.MAX_MINUTE == MAX_MINUTE == minute(LAST, 1439)


@pytest.mark.parametrize("zone", FAR)
@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_the_first_and_the_last_event_lie_in_their_buckets(
    zone: str, resolution: Resolution
) -> None:
    scheme = Scheme(time_zone=zone, resolution=resolution)
    widths: tuple[Width, ...] = (resolution, "month")
    for at, width in product((0, MAX_MINUTE), widths):
        label = scheme.label_in(width, at)
        assert scheme.starts_at(label) <= at * 60 < scheme.ends_at(label)
        assert label_of(label_time(label), NUMBER[width]) == label
        day = buckets.date_at(zone, at * 60)
        assert abs(day - date.fromordinal(date(1970, 1, 1).toordinal() + at // 1440)) <= timedelta(
            days=1
        )
        (begins,) = date_changes(zone, day)
        (ends,) = date_changes(zone, day + timedelta(days=1))
        assert (ends - begins, begins <= at * 60 < ends) == (86_400, True)


@pytest.mark.parametrize("zone", [*FAR, "Europe/Berlin", "Africa/Monrovia"])
def test_beyond_all_events_the_days_are_those_of_utc(zone: str) -> None:
    """And they follow on each other everywhere."""
    for first in (date(1969, 12, 25), date(9999, 12, 20)):
        days = [first + timedelta(days=n) for n in range(11)]
        instants = [buckets.day_begins(zone, day) for day in days]
        assert instants == sorted(set(instants))
        for day, begins in zip(days, instants, strict=True):
            assert buckets.date_at(zone, begins) == day
            assert buckets.date_at(zone, begins - 1) == day - timedelta(days=1)
    for day in (date.min, date(1969, 12, 30), date(9999, 12, 29), date.max):
        assert date_changes(zone, day) == (day_label(day) // 60 * 60,)
    scheme = Scheme(time_zone=zone)
    last = day_label(date.max)
    assert scheme.ends_at(last) - scheme.starts_at(last) == 86_400


def test_an_event_of_1970_that_is_of_1969_where_it_is_counted(db: Database) -> None:
    put_scheme(db.session, "ny", "America/New_York", "hour")
    at = [minute(date(1970, 1, 1), 120), minute(date(1970, 1, 2))]
    db.applier.apply([entry([(n, "ny", "k", one, 10**n) for n, one in enumerate(at)])])
    totals = db.store.totals
    first, last = date(1970, 1, 1), date(1970, 1, 3)
    assert totals.daily("ny", start=first, end=last) == [
        (first, 0),
        (date(1970, 1, 2), 10),
        (last, 0),
    ]
    assert totals.total("ny", start=first, end=last) == 10
    assert totals.total("ny", end=date(1969, 12, 31)) == 1
    assert totals.monthly("ny", start=first, end=last) == [(first, 10)]
    assert totals.daily("ny", end=first) == [(date(1969, 12, 31), 1), (first, 0)]
    assert sum(n for _, n in totals.hourly("ny", start=first, end=first)) == 0
    assert totals.hourly("ny", start=date.min, end=date(1, 1, 1))[0][1] == 0
    # Where it is counted by hour, every zone of whole hours can tell.
    assert totals.total("ny", start=first, time_zone="UTC") == 11
    assert totals.total("ny", end=first, time_zone="Asia/Tokyo") == 1


@pytest.mark.parametrize("own", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_the_last_events(put: Put, store: Store, own: str) -> None:
    at = [MAX_MINUTE - 1440 * 2, MAX_MINUTE - 720, MAX_MINUTE]
    put(at, own, "hour")
    totals = store.totals
    for zone in FAR:
        expected: dict[date, int] = {}
        for n, one in enumerate(at):
            day = buckets.date_at(zone, one * 60)
            expected[day] = expected.get(day, 0) + 10**n
        for end in (None, date(9999, 12, 27), date.max):
            found = totals.daily("c", start=date(9999, 12, 20), end=end, time_zone=zone)
            assert {day: total for day, total in found if total} == expected
            hours = totals.hourly("c", start=date(9999, 12, 20), end=end, time_zone=zone)
            assert [n for _, n in hours if n] == [1, 10, 100]
            months = totals.monthly("c", start=date(9999, 12, 1), end=end, time_zone=zone)
            assert months == [(date(9999, 12, 1), 111)]
            assert totals.total("c", start=min(expected), end=end, time_zone=zone) == 111
        last = max(expected)
        assert totals.total("c", start=last, end=last, time_zone=zone) == expected[last]
        assert totals.total("c", start=last + timedelta(days=1), time_zone=zone) == 0
        assert totals.span("c", time_zone=zone) == (min(expected), last)
