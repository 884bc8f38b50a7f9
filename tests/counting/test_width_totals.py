"""Totals over buckets of several widths, against adding up the events one by one."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from countersink.counting.apply.applier import Applier
from countersink.counting.counters import buckets
from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals import Totals
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.series import series
from countersink.counting.totals.snapshot import Snapshot
from countersink.database.errors import Refused
from countersink.database.session import Session
from tests.support.entries import Database, entry, minute
from tests.support.width_rows import Put, plant, put_rows, put_scheme


def _shown(hours: Sequence[tuple[datetime, int]]) -> list[tuple[str, int]]:
    return [(hour.isoformat(timespec="minutes"), n) for hour, n in hours]


def test_hours_of_several_widths_are_those_of_the_clock(session: Session, totals: Totals) -> None:
    at_ten = minute(date(2026, 11, 21), 600)
    put_scheme(session, "c", "Europe/Berlin", "quarter", counted_hour=at_ten)
    hours = [datetime(2026, 11, 21, hour) for hour in (8, 9)]  # noqa: DTZ001
    quarters = [datetime(2026, 11, 21, 8, 30), datetime(2026, 11, 21, 10)]  # noqa: DTZ001
    quarters.append(datetime(2026, 11, 21, 12))  # noqa: DTZ001
    put_rows(session, [("c", "hour", one, "k", 10**n) for n, one in enumerate(hours)])
    put_rows(session, [("c", "quarter", one, "k", 10 ** (n + 2)) for n, one in enumerate(quarters)])
    assert _shown(totals.hourly("c")) == [
        ("2026-11-21T09:00+01:00", 101),
        ("2026-11-21T10:00+01:00", 10),
        ("2026-11-21T11:00+01:00", 1000),
        ("2026-11-21T12:00+01:00", 0),
        ("2026-11-21T13:00+01:00", 10000),
    ]
    day = date(2026, 11, 21)
    assert len(totals.hourly("c", start=day, end=day)) == 24
    asked = totals.hourly("c", time_zone="Asia/Tokyo")
    assert _shown(asked)[:2] == [("2026-11-21T17:00+09:00", 101), ("2026-11-21T18:00+09:00", 10)]
    assert sum(n for _, n in asked) == 11111
    for options in ({}, {"key": "k"}, {"key": "none", "start": day, "end": day}):
        with pytest.raises(InexactZone, match=r"Asia/Kolkata.*from 2026-11-21 10:00Z on"):
            totals.hourly("c", time_zone="Asia/Kolkata", **options)
    day += timedelta(days=1)
    late = totals.hourly("c", start=day, end=day, time_zone="Asia/Kolkata")
    assert len(late) == 24
    # Before, too, where no hour goes on.
    day = date(2026, 11, 19)
    early = totals.hourly("c", start=day, end=day, time_zone="Asia/Kolkata")
    assert [n for _, n in early] == [0] * 24


def test_a_day_counter_has_hours_from_the_day_after_it_got_them(
    db: Database, totals: Totals
) -> None:
    noon = minute(date(2026, 11, 21))
    put_scheme(db.session, "c", "UTC", "hour", counted_day=noon + 720)
    put_rows(db.session, [("c", "day", date(2026, 11, 21), "k", 1)])
    db.applier.apply([entry([(1, "c", "k", noon + 1440, 2)])])
    day = date(2026, 11, 21)
    ranges: list[dict[str, Any]] = [
        *({"key": key, **one} for key in (None, "k") for one in ({}, {"start": day})),
        {"end": date(2026, 11, 30)},
        {"key": "none", "start": day, "end": day},
    ]
    for options in ranges:
        with pytest.raises(RolledUp, match=r"hours of .* before 2026-11-22 00:00Z") as raised:
            totals.hourly("c", **options)
        assert raised.value.rolled_up_to == date(2026, 11, 22)
    told = series(Snapshot(db.session), Selection("c"), "hour")
    assert [n for _, n in told.rows] == [0] * 12 + [2]
    assert told.told_from == datetime(2026, 11, 22, tzinfo=UTC)
    found = totals.hourly("c", start=date(2026, 11, 22))
    assert [n for _, n in found] == [0] * 12 + [2]
    # What comes late is counted by hour, on days that have nothing else.
    db.applier.apply([entry([(0, "c", "k", noon - 1440, 4)])])
    found = totals.hourly("c", start=date(2026, 11, 20), end=date(2026, 11, 20))
    assert [n for _, n in found] == [0] * 12 + [4] + [0] * 11


def test_what_may_go_on_is_refused_where_there_is_a_row_of_any_key(
    session: Session, totals: Totals
) -> None:
    noon = minute(date(2026, 11, 21))
    put_scheme(session, "c", "UTC", "minute", rolled_hour=noon, rolled_day=noon - 720 - 30 * 1440)
    put_rows(
        session,
        [
            ("c", "hour", datetime(2026, 11, 21, 8), "k", 1),  # noqa: DTZ001
            ("c", "minute", datetime(2026, 11, 21, 9, 30), "k", 2),  # noqa: DTZ001
            ("c", "minute", datetime(2026, 11, 21, 10), "k", 4),  # noqa: DTZ001
        ],
    )
    at = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
    for key in ("k", "none"):
        with pytest.raises(InexactZone, match="rolled up, before 2026-11-21 12:00Z, to each hour"):
            totals.total("c", key=key, start=at)
    told = at + timedelta(hours=1, minutes=1)
    assert totals.total("c", start=told) == 4
    assert totals.total("c", end=told) == 3
    assert totals.total("c", start=at - timedelta(days=1), end=told) == 3
    assert totals.minutely("c", start=told - timedelta(minutes=2), end=told)[1][1] == 2
    with pytest.raises(RolledUp) as refused:
        totals.minutely("c", start=at, end=told)
    assert refused.value.rolled_up_to == date(2026, 11, 22)


def test_rows_of_a_width_that_never_was_are_not_guessed_at(
    session: Session, totals: Totals
) -> None:
    put_scheme(session, "c", counted_hour=minute(date(2026, 11, 21)))
    plant(session, ("c", "2026-11-21", "", 1, 5), width=7)
    with pytest.raises(Refused, match="countersink verify"):
        totals.daily("c")


def test_buckets_of_two_widths_that_have_the_same_time_in_the_table_are_two(
    session: Session, totals: Totals
) -> None:
    """The 21st of New York, and the hour of UTC that is 19:00 of its 20th."""
    day = date(2026, 11, 21)
    put_scheme(session, "c", "America/New_York", "hour", counted_day=minute(day, 1740))
    put_rows(session, [("c", "day", day, key, 1) for key in "ab"])
    put_rows(session, [("c", "hour", day, key, 10) for key in "ab"])
    put_rows(session, [("c", "hour", datetime(2026, 11, 22, 6), "a", 100)])  # noqa: DTZ001
    before, following = day - timedelta(days=1), day + timedelta(days=1)
    assert totals.daily("c") == [(before, 20), (day, 2), (following, 100)]
    assert totals.daily("c", key="a") == [(before, 10), (day, 1), (following, 100)]
    assert totals.daily("c", match=KeyMatch(prefix="b")) == [(before, 10), (day, 1)]
    assert totals.counters(start=day, end=day) == {"c": 2}
    assert totals.span("c") == (before, following)
    assert totals.span("c", key="b") == (before, day)
    assert totals.hourly("c", start=following)[1][1] == 100


def test_a_counter_that_was_made_and_never_counted_is_known(
    session: Session, totals: Totals
) -> None:
    put_scheme(session, "c", "Europe/Berlin", "hour")
    day = date(2026, 11, 21)
    asks: list[Callable[..., Any]] = [totals.daily, totals.hourly, totals.monthly, totals.by_key]
    for ask in asks:
        assert ask("c") == []
    assert (totals.total("c"), totals.span("c")) == (0, None)
    assert totals.counters() == {"c": 0}
    assert totals.counters(start=day) == {"c": 0}
    assert totals.daily("c", start=day, end=day) == [(day, 0)]


def test_hours_of_a_zone_that_was_off_by_half_an_hour_do_not_tell_its_days_then(
    put: Put, totals: Totals
) -> None:
    """Caracas was 4:30 behind UTC until May 2016: its 2 May 2012 began at 04:30 UTC."""
    second = date(2012, 5, 2)
    at = [minute(second, 250), minute(second, 285), minute(date(2026, 11, 21))]
    put(at, "America/Caracas", "hour")
    series: list[Callable[..., Any]] = [totals.daily, totals.hourly, totals.total, totals.monthly]
    asks: list[Callable[..., Any]] = [*(partial(each, "c") for each in series), totals.counters]
    for ask in asks:
        for zone in (None, "America/Caracas"):
            with pytest.raises(
                InexactZone, match=r"ask for the time zone UTC, .*quarter"
            ) as raised:
                ask(start=second, end=second + timedelta(days=60), time_zone=zone)
            assert "time zone America/Caracas" not in str(raised.value)
    with pytest.raises(InexactZone):
        totals.span("c")
    assert totals.daily("c", start=second, end=second, time_zone="UTC") == [(second, 11)]
    assert totals.total("c") == 111
    # Since then it is 4 hours.
    day = date(2026, 11, 21)
    assert totals.daily("c", start=day, end=day) == [(day, 100)]
    assert totals.total("c", start=date(2016, 6, 1)) == 100


def test_too_many_hours_are_refused_before_anybody_looks_at_each_day(
    db: Database, totals: Totals
) -> None:
    put_scheme(db.session, "c", "UTC", "hour")
    db.applier.apply([entry([(0, "c", "k", 0, 1), (1, "c", "k", minute(date(9990, 1, 1)), 1)])])
    before = buckets._clock_changes.cache_info().misses
    with pytest.raises(ValueError, match="at most 100,000"):
        totals.hourly("c", time_zone="Asia/Kolkata")
    assert buckets._clock_changes.cache_info().misses == before


def test_what_is_counted_ahead_of_a_change_is_of_the_bucket_it_was_counted_in(db: Database) -> None:
    """An event of 23:30, counted before the change was made, lies in a day of UTC: so where
    Berlin's 22 November begins, at 23:00, that bucket tells nothing.
    """
    day = date(2030, 11, 21)
    db.applier.apply([entry([(0, "c", "k", minute(day, 1410), 1)])])
    db.store.counters.set("c", resolution="quarter")
    db.applier.apply([entry([(0, "c", "k", minute(day, 1411), 2)])])
    with pytest.raises(InexactZone):
        db.store.totals.total("c", start=day + timedelta(days=1), time_zone="Europe/Berlin")
    assert db.store.totals.total("c", start=day, end=day) == 3
    assert db.store.totals.total("c", start=day, time_zone="Europe/Berlin") == 3
    assert db.store.totals.total("c", start=day + timedelta(days=2), time_zone="Europe/Berlin") == 0


def test_a_change_where_a_bucket_ends_leaves_nothing_that_cannot_be_told(
    session: Session, put: Put, totals: Totals
) -> None:
    day = date(2026, 11, 21)
    midnight = minute(day, 0)
    put([midnight, minute(day, 1380)], "UTC", "quarter", counted_day=midnight)
    put_rows(session, [("c", "day", day - timedelta(days=1), "k", 100)])
    following = day + timedelta(days=1)
    assert totals.daily("c", start=following, time_zone="Europe/Berlin") == [(following, 10)]
    assert totals.daily("c", start=day) == [(day, 11)]


@pytest.mark.parametrize("zone", ["America/St_Johns", None])
def test_a_series_does_not_begin_with_a_bucket_of_a_day_that_comes_back(
    db: Database, totals: Totals, zone: str | None
) -> None:
    """In 2010 clocks went from 00:01 back to 23:01: that quarter is of two days."""
    own = "UTC" if zone else "America/St_Johns"
    db.store.counters.set("c", time_zone=own, resolution="quarter")
    at = round(datetime(2010, 11, 7, 2, 35, tzinfo=UTC).timestamp()) // 60
    db.applier.apply([entry([(0, "c", "a", at, 7)])])
    with pytest.raises(InexactZone, match="changes to or from 2010-11-07"):
        totals.daily("c", time_zone=zone)
    assert totals.monthly("c", time_zone=zone) == [(date(2010, 11, 1), 7)]
    db.store.counters.set("c", resolution="minute")
    db.store.counters.delete("c")
    db.applier.apply([entry([(0, "c", "a", at, 7)])])
    assert totals.daily("c", time_zone=zone) == [(date(2010, 11, 6), 7)]


APRIL = date(2026, 4, 1)
"""The first day that is not rolled up."""


def test_months_are_those_of_the_counter_s_own_zone(db: Database, totals: Totals) -> None:
    zone, other = "Europe/Berlin", "America/New_York"
    put_scheme(db.session, "c", zone, "quarter", rolled_month=minute(date(2026, 2, 28), 23 * 60))
    march = minute(date(2026, 3, 15))
    db.applier.apply([entry([(0, "c", "a", march, 100), (1, "c", "b", march + 1440, 1000)])])
    put_rows(db.session, [("c", "month", date(2026, 2, 1), "a", 5)])
    assert totals.total("c", time_zone=zone, start=date(2026, 2, 1)) == 1105
    assert totals.monthly("c", time_zone=zone) == [(date(2026, 2, 1), 5), (date(2026, 3, 1), 1100)]
    # All of it, or nothing of it, needs no months of New York.
    assert totals.total("c", time_zone=other) == 1105
    assert totals.total("c", time_zone=other, start=date(2026, 1, 1)) == 1105
    assert totals.total("c", time_zone=other, start=date(2026, 3, 11)) == 1100
    assert totals.total("c", time_zone=other, end=date(2026, 3, 15)) == 105
    assert totals.daily("c", time_zone=other, start=date(2026, 3, 15)) == [
        (date(2026, 3, 15), 100),
        (date(2026, 3, 16), 1000),
    ]
    assert totals.monthly("c", time_zone=other, start=date(2026, 3, 11)) == [
        (date(2026, 3, 1), 1100)
    ]
    for ask in (totals.total, totals.monthly, totals.by_key):
        with pytest.raises((RolledUp, InexactZone), match="own time zone"):
            ask("c", time_zone=other, start=date(2026, 2, 1))
    with pytest.raises(RolledUp, match="own time zone"):
        totals.monthly("c", time_zone=other)
    with pytest.raises(RolledUp, match="own time zone"):
        totals.span("c", time_zone=other)
    with pytest.raises(RolledUp):
        totals.hourly("c", time_zone=other, start=date(2026, 2, 20))
    # A zone whose months begin at the same instants tells them all.
    assert totals.monthly("c", time_zone="Arctic/Longyearbyen") == totals.monthly("c")
    assert totals.total("c", start=date(2026, 3, 1), time_zone="Arctic/Longyearbyen") == 1100


WHOLE = "before 2026-04-01 are rolled up to months: ask for whole months, or from 2026-04-01"


@pytest.fixture
def planted(session: Session, applier: Applier) -> None:
    """Months to February, and days in it and after it; March has only days, which came late."""
    put_scheme(session, "c", resolution="hour", rolled_month=minute(APRIL, 0))
    at = [(date(2026, 2, 20), 100), (date(2026, 3, 2), 1000), (date(2026, 4, 3), 7)]
    applier.apply(
        [entry([(n, "c", "a", minute(day), amount) for n, (day, amount) in enumerate(at)])]
    )
    put_rows(session, [("c", "month", date(2026, 1, 1), "a", 3)])
    put_rows(session, [("c", "month", date(2026, 2, 1), "b", 40)])


@pytest.mark.usefixtures("planted")
def test_everything_is_counted_and_what_cuts_through_a_month_is_refused(
    session: Session, totals: Totals
) -> None:
    january, february, march, april = (date(2026, month, 1) for month in range(1, 5))
    assert totals.total("c") == totals.total("c", time_zone="UTC") == 1150
    assert totals.counters() == {"c": 1150}
    assert dict(totals.by_key("c")) == {"a": 1110, "b": 40}
    assert totals.total("c", start=february) == 1147
    assert totals.total("c", end=date(2026, 2, 28)) == 143
    assert totals.counters(start=february, end=date(2026, 2, 28)) == {"c": 140}
    assert totals.total("c", start=APRIL) == 7
    assert totals.monthly("c") == [(january, 3), (february, 140), (march, 1000), (april, 7)]
    for start, end in (
        (date(2026, 1, 8), None),
        (date(2026, 2, 2), None),
        (None, date(2026, 2, 27)),
        (date(2026, 2, 20), date(2026, 2, 20)),
    ):
        for ask in (totals.total, totals.by_key, totals.top, totals.monthly):
            with pytest.raises(RolledUp, match=WHOLE) as refused:
                ask("c", start=start, end=end)
            assert refused.value.rolled_up_to == APRIL
        with pytest.raises(RolledUp, match="2026-04-01 are rolled up to months: ask from that day"):
            totals.daily("c", start=start, end=end)
    with pytest.raises(RolledUp, match=r"ask for whole months.*from 2026-02-01 on would be cut"):
        totals.counters(end=date(2026, 2, 27))
    for start, end in ((None, None), (february, None), (january, february)):
        with pytest.raises(RolledUp, match="ask from that day on, or for months"):
            totals.daily("c", start=start, end=end)
    # Where no month has rows its days are told.
    assert totals.total("c", start=date(2026, 3, 2), end=date(2026, 3, 2)) == 1000
    assert totals.daily("c", start=date(2026, 3, 2), end=date(2026, 3, 3)) == [
        (date(2026, 3, 2), 1000),
        (date(2026, 3, 3), 0),
    ]
    assert totals.daily("c", start=date(2025, 12, 30), end=date(2025, 12, 31))[1][1] == 0
    assert totals.total("c", start=date(2025, 6, 15)) == 1150
    assert totals.span("c") == (january, date(2026, 4, 3))
    assert totals.span("c", key="b") == (february, date(2026, 2, 28))
    assert totals.rolled_up_to("c") == _up_to(session) == APRIL
    assert totals.rolled_up_to("other") is None
    # Nor is anything gone behind the last month.
    session.execute("UPDATE counter SET rolled_month = '2026-09-01'")
    assert totals.total("c", start=date(2026, 8, 10)) == 0


def _up_to(session: Session, counter: str | None = None, **asked: Any) -> date | None:
    return Snapshot(session).rolled_up_to(counter, **asked)


def test_of_several_counters_the_latest_day_is_told(session: Session) -> None:
    put_scheme(session, "b", "Europe/Berlin", rolled_month=minute(date(2026, 2, 1), -60))
    put_scheme(session, "c", rolled_month=minute(date(2026, 5, 1), 0))
    for name in ("c", "d"):
        put_rows(session, [(name, "day", date(2026, 4, 30), "a", 3)])
    assert _up_to(session) is None
    put_rows(session, [("b", "month", date(2026, 1, 1), "a", 3)])
    assert _up_to(session) == _up_to(session, "b") == date(2026, 2, 1)
    put_rows(session, [("c", "month", date(2026, 1, 1), "a", 3)])
    assert _up_to(session) == _up_to(session, "c") == date(2026, 5, 1)
    assert _up_to(session, visible=lambda name: name != "c") == date(2026, 2, 1)
    session.execute("UPDATE counter SET time_zone = 'Mars/Olympus' WHERE name = 'b'")
    assert _up_to(session, "b") == date(2026, 1, 31)
