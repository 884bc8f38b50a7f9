"""A new period begins again by itself, by the server's clock; past ones stay."""

import time
from datetime import UTC, date, datetime

import pytest

from countersink.database.errors import UnknownZone
from countersink.database.session import Session
from countersink.sequences import Sequences
from countersink.sequences.options import PeriodLength, SequenceOptions
from tests.sequences.conftest import ServerClock


def _values(sequences: Sequences, name: str) -> dict[date | None, int]:
    return {period.start: period.value for period in sequences.periods(name)}


def test_a_month_begins_again_and_the_past_stays(clock: ServerClock, timed: Sequences) -> None:
    timed.configure("buyers", period="month", time_zone="Europe/Berlin")
    clock.set("2026-10-31T22:59:59")
    assert [timed.next("buyers") for _ in range(3)] == [1, 2, 3]
    assert timed.next_block("buyers", 2) == range(4, 6)
    clock.set("2026-10-31T23:00")
    assert timed.peek("buyers") is None
    assert timed.list()[0].value is None
    assert [timed.next("buyers"), timed.next("buyers")] == [1, 2]
    assert _values(timed, "buyers") == {date(2026, 10, 1): 5, date(2026, 11, 1): 2}
    assert timed.peek("buyers") == 2
    assert timed.peek("buyers", period=date(2026, 10, 31)) == 5
    assert timed.peek("buyers", period=date(2026, 9, 30)) is None
    assert timed.total("buyers") == 7
    (found,) = timed.list()
    assert (found.value, found.period_start) == (2, date(2026, 11, 1))


def test_set_and_reset_are_about_the_current_period(clock: ServerClock, timed: Sequences) -> None:
    timed.configure("a", period="day")
    clock.set("2026-11-21T12:00")
    timed.set("a", 40)
    clock.set("2026-11-22T12:00")
    assert timed.reset("a") is None
    timed.set("a", 5)
    assert timed.reset("a") == 5
    assert timed.next("a") == 1
    clock.set("2026-11-23T12:00")
    assert timed.reset_all() == 0
    timed.next("a")
    assert timed.reset_all() == 1
    assert _values(timed, "a") == {date(2026, 11, 21): 40, date(2026, 11, 22): 1}
    with pytest.raises(ValueError, match="cannot change any more"):
        timed.configure("a", period="month")  # the past periods are of days


def test_all_calls_mean_the_same_period_where_a_local_date_comes_twice(
    clock: ServerClock, timed: Sequences
) -> None:
    """In Newfoundland it was the 7th for a minute, then the 6th again for most of an hour."""
    clock.set("2010-11-07T03:00")
    timed.configure("a", period="day", time_zone="America/St_Johns")
    assert [timed.next("a"), timed.next("a"), timed.peek("a")] == [1, 2, 2]
    timed.set("a", 500)
    assert [timed.peek("a"), timed.next("a")] == [500, 501]
    (found,) = timed.list()
    assert found.value == 501
    assert list(_values(timed, "a")) == [found.period_start]
    with pytest.raises(ValueError, match="the value 501 of"):
        timed.configure("a", maximum=500)
    assert timed.reset("a") == 501
    assert timed.periods("a") == []


def test_nothing_goes_by_the_clock_of_the_client(
    clock: ServerClock, timed: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an hour, a day or a year ahead or behind; nor after a machine was asleep for weeks."""
    timed.configure("a", period="day", time_zone="Asia/Tokyo")
    clock.set("2026-11-21T14:59:59")
    assert timed.next("a") == 1
    true, steady = time.time, time.monotonic
    for hours in (1, -1, 24, -24, 9000, -9000):
        shift = hours * 3600
        monkeypatch.setattr(time, "time", lambda shift=shift: true() + shift)
        monkeypatch.setattr(time, "time_ns", lambda s=shift: int((true() + s) * 1e9))
        assert timed.next("a") == 2
        monkeypatch.setattr(time, "monotonic", lambda shift=shift: steady() + shift)
        assert timed.next("a") == 3
        timed.set("a", 1)
    assert _values(timed, "a") == {date(2026, 11, 21): 1}


def test_a_clock_that_was_put_right_goes_on_in_the_period(
    clock: ServerClock, timed: Sequences
) -> None:
    """A server's clock was ahead for a while: what it has begun is begun."""
    timed.configure("a", period="month")
    clock.set("2026-11-30T23:59")
    assert [timed.next("a"), timed.next("a")] == [1, 2]
    clock.set("2026-12-01T00:01")
    assert timed.next("a") == 1
    clock.set("2026-11-30T23:59")
    assert timed.next("a") == 3
    clock.set("2026-12-01T00:01")
    assert timed.next("a") == 2
    clock.set("2031-07-01T00:00")
    assert [timed.next("a"), timed.next("a")] == [1, 2]
    clock.set("2026-12-31T00:00")
    assert timed.next("a") == 3


def test_next_in_goes_by_periods_too(
    clock: ServerClock, timed: Sequences, session: Session
) -> None:
    connection = session._connection
    timed.configure("a", period="year", start=100)
    clock.set("2026-06-01T00:00")
    session.execute("SET timestamp = UNIX_TIMESTAMP('2026-12-31 23:59:59')")
    assert timed.next_in(connection, "a") == 100
    session.execute("SET timestamp = UNIX_TIMESTAMP('2027-01-01 00:00:00')")
    assert [timed.next_in(connection, "a") for _ in range(2)] == [100, 101]
    assert _values(timed, "a") == {date(2026, 1, 1): 100, date(2027, 1, 1): 101}


def test_a_zone_that_becomes_known_is_used(sequences: Sequences, session: Session) -> None:
    """An older tzdata on one of the machines: it refuses, and goes on as soon as it may."""
    sequences.configure("a", period="day")
    session.execute("UPDATE sequence SET time_zone = 'Mars/Olympus'")
    for _ in range(2):
        with pytest.raises(UnknownZone, match="unknown on this machine: install a newer tzdata"):
            sequences.next("a")
    session.execute("UPDATE sequence SET time_zone = 'Europe/Berlin'")
    assert [sequences.next("a"), sequences.next("a")] == [1, 2]


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
        # At 00:01 Newfoundland put its clocks back to 23:01 of the day, and of the month, before;
        # what has begun has begun.
        ("day", "America/St_Johns", "2010-11-07T02:29:59", "2010-11-06"),
        ("day", "America/St_Johns", "2010-11-07T02:30", "2010-11-07"),
        ("day", "America/St_Johns", "2010-11-07T03:00", "2010-11-07"),  # the 6th once more
        ("month", "America/St_Johns", "2009-11-01T02:29:59", "2009-10-01"),
        ("month", "America/St_Johns", "2009-11-01T03:00", "2009-11-01"),
    ],
)
def test_the_period_at_a_moment(period: PeriodLength, zone: str, moment: str, first: str) -> None:
    options = SequenceOptions(period=period, time_zone=zone)
    assert options.period_at(_unix(moment)) == date.fromisoformat(first)
