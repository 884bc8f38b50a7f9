"""A new period begins again by itself, by the server's clock; past ones stay."""

import time
from datetime import date

import pytest

from countersink.store import Refused
from countersink.store.connection import Session
from countersink.store.sequences import Period, Sequences
from tests.store.helpers import together
from tests.store.sequences.conftest import ServerClock


def _values(sequences: Sequences, name: str) -> dict[date | None, int]:
    return {period.start: period.value for period in sequences.periods(name)}


def test_a_month_begins_again_and_the_past_stays(clock: ServerClock) -> None:
    with clock.sequences() as sequences:
        sequences.configure("buyers", period="month", time_zone="Europe/Berlin")
        clock.set("2026-10-31T22:59:59")
        assert [sequences.next("buyers") for _ in range(3)] == [1, 2, 3]
        assert sequences.next_block("buyers", 2) == range(4, 6)
        clock.set("2026-10-31T23:00")
        assert sequences.peek("buyers") is None
        assert sequences.list()[0].value is None
        assert [sequences.next("buyers"), sequences.next("buyers")] == [1, 2]
        assert _values(sequences, "buyers") == {date(2026, 10, 1): 5, date(2026, 11, 1): 2}
        assert sequences.peek("buyers") == 2
        assert sequences.peek("buyers", period=date(2026, 10, 31)) == 5
        assert sequences.peek("buyers", period=date(2026, 9, 30)) is None
        assert sequences.total("buyers") == 7
        (found,) = sequences.list()
        assert (found.value, found.period_start) == (2, date(2026, 11, 1))


def test_each_period_begins_at_the_start(clock: ServerClock) -> None:
    with clock.sequences() as sequences:
        sequences.configure("a", period="day", start=-10, step=-3)
        for day in ("2026-12-31", "2027-01-01", "2027-01-02"):
            clock.set(f"{day}T00:00")
            assert [sequences.next("a"), sequences.next("a")] == [-10, -13]
            clock.set(f"{day}T23:59:59")
            assert sequences.next("a") == -16
        assert sequences.total("a") == -48
        days = [date(2026, 12, 31), date(2027, 1, 1), date(2027, 1, 2)]
        assert list(_values(sequences, "a")) == days


def test_years_and_limits_and_cycles(clock: ServerClock) -> None:
    with clock.sequences() as sequences:
        zone = "America/New_York"
        sequences.configure("a", period="year", time_zone=zone, maximum=2, cycle=True)
        clock.set("2027-01-01T04:59")
        assert [sequences.next("a") for _ in range(3)] == [1, 2, 1]
        clock.set("2027-01-01T05:00")
        assert [sequences.next("a") for _ in range(2)] == [1, 2]
        assert _values(sequences, "a") == {date(2026, 1, 1): 1, date(2027, 1, 1): 2}


def test_set_and_reset_are_about_the_current_period(clock: ServerClock) -> None:
    with clock.sequences() as sequences:
        sequences.configure("a", period="day")
        clock.set("2026-11-21T12:00")
        sequences.set("a", 40)
        clock.set("2026-11-22T12:00")
        assert sequences.reset("a") is None
        sequences.set("a", 5)
        assert sequences.reset("a") == 5
        assert sequences.next("a") == 1
        clock.set("2026-11-23T12:00")
        assert sequences.reset_all() == 0
        sequences.next("a")
        assert sequences.reset_all() == 1
        assert _values(sequences, "a") == {date(2026, 11, 21): 40, date(2026, 11, 22): 1}
        with pytest.raises(ValueError, match="cannot change any more"):
            sequences.configure("a", period="month")  # the past periods are of days


def test_all_calls_mean_the_same_period_where_a_local_date_comes_twice(clock: ServerClock) -> None:
    """In Newfoundland it was the 7th for a minute, then the 6th again for most of an hour."""
    with clock.sequences() as sequences:
        clock.set("2010-11-07T03:00")
        sequences.configure("a", period="day", time_zone="America/St_Johns")
        assert [sequences.next("a"), sequences.next("a"), sequences.peek("a")] == [1, 2, 2]
        sequences.set("a", 500)
        assert [sequences.peek("a"), sequences.next("a")] == [500, 501]
        (found,) = sequences.list()
        assert found.value == 501
        assert list(_values(sequences, "a")) == [found.period_start]
        with pytest.raises(ValueError, match="stands at 501"):
            sequences.configure("a", maximum=500)
        assert sequences.reset("a") == 501
        assert sequences.periods("a") == []


def test_nothing_goes_by_the_clock_of_the_client(
    clock: ServerClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an hour, a day or a year ahead or behind; nor after a machine was asleep for weeks."""
    with clock.sequences() as sequences:
        sequences.configure("a", period="day", time_zone="Asia/Tokyo")
        clock.set("2026-11-21T14:59:59")
        assert sequences.next("a") == 1
        true, steady = time.time, time.monotonic
        for hours in (1, -1, 24, -24, 9000, -9000):
            shift = hours * 3600
            monkeypatch.setattr(time, "time", lambda shift=shift: true() + shift)
            monkeypatch.setattr(time, "time_ns", lambda s=shift: int((true() + s) * 1e9))
            assert sequences.next("a") == 2
            monkeypatch.setattr(time, "monotonic", lambda shift=shift: steady() + shift)
            assert sequences.next("a") == 3
            sequences.set("a", 1)
        assert _values(sequences, "a") == {date(2026, 11, 21): 1}


def test_a_clock_that_was_put_right_goes_on_in_the_period(clock: ServerClock) -> None:
    """A server's clock was ahead for a while: what it has begun is begun."""
    with clock.sequences() as sequences:
        sequences.configure("a", period="month")
        clock.set("2026-11-30T23:59")
        assert [sequences.next("a"), sequences.next("a")] == [1, 2]
        clock.set("2026-12-01T00:01")
        assert sequences.next("a") == 1
        clock.set("2026-11-30T23:59")
        assert sequences.next("a") == 3
        clock.set("2026-12-01T00:01")
        assert sequences.next("a") == 2
        clock.set("2031-07-01T00:00")
        assert [sequences.next("a"), sequences.next("a")] == [1, 2]
        clock.set("2026-12-31T00:00")
        assert sequences.next("a") == 3


def test_next_in_goes_by_periods_too(clock: ServerClock, session: Session) -> None:
    connection = session._connection
    with clock.sequences() as sequences:
        sequences.configure("a", period="year", start=100)
        clock.set("2026-06-01T00:00")
        session.execute("SET timestamp = UNIX_TIMESTAMP('2026-12-31 23:59:59')")
        assert sequences.next_in(connection, "a") == 100
        session.execute("SET timestamp = UNIX_TIMESTAMP('2027-01-01 00:00:00')")
        assert [sequences.next_in(connection, "a") for _ in range(2)] == [100, 101]
        assert _values(sequences, "a") == {date(2026, 1, 1): 100, date(2027, 1, 1): 101}


def test_many_begin_a_period_together(clock: ServerClock) -> None:
    with clock.sequences() as sequences:
        sequences.configure("a", period="day")
        for day in range(10, 16):
            clock.set(f"2026-11-{day}T00:00")
            taken = together(*[lambda: sequences.next("a")] * 6)
            assert sorted(taken) == [1, 2, 3, 4, 5, 6]
        assert all(isinstance(found, Period) for found in sequences.periods("a"))
        assert sequences.total("a") == 36


def test_a_zone_that_becomes_known_is_used(sequences: Sequences, session: Session) -> None:
    """An older tzdata on one of the machines: it refuses, and goes on as soon as it may."""
    sequences.configure("a", period="day")
    session.execute("UPDATE sequence SET time_zone = 'Mars/Olympus'")
    for _ in range(2):
        with pytest.raises(Refused, match="install a newer tzdata"):
            sequences.next("a")
    session.execute("UPDATE sequence SET time_zone = 'Europe/Berlin'")
    assert [sequences.next("a"), sequences.next("a")] == [1, 2]
