"""Months are in the totals, and what cuts through one that has rows is refused."""

from datetime import date
from typing import Any

import pytest

from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.errors import RolledUp
from countersink.store.totals import Totals
from countersink.store.totals.snapshot import Snapshot
from tests.store.helpers import entry, minute
from tests.store.width_rows import put_rows, put_scheme

AFTER = date(2026, 4, 1)
"""The first day that is not rolled up; March has only days, which came late."""


@pytest.fixture
def planted(session: Session, applier: Applier) -> None:
    """Months to February, and days in it and after it."""
    put_scheme(session, "c", resolution="hour", rolled_month=minute(AFTER, 0))
    at = [(date(2026, 2, 20), 100), (date(2026, 3, 2), 1000), (date(2026, 4, 3), 7)]
    applier.apply(
        [entry([(n, "c", "a", minute(day), amount) for n, (day, amount) in enumerate(at)])]
    )
    put_rows(session, [("c", "month", date(2026, 1, 1), "a", 3)])
    put_rows(session, [("c", "month", date(2026, 2, 1), "b", 40)])
    session.execute("INSERT INTO counter_ledger VALUES ('c', 99, 43, 0, NULL)")


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
    assert totals.total("c", start=AFTER) == 7
    assert totals.monthly("c") == [(january, 3), (february, 140), (march, 1000), (april, 7)]
    for start, end in (
        (date(2026, 1, 8), None),
        (date(2026, 2, 2), None),
        (None, date(2026, 2, 27)),
        (date(2026, 2, 20), date(2026, 2, 20)),
    ):
        for ask in (totals.total, totals.by_key, totals.monthly, totals.daily):
            with pytest.raises(RolledUp, match="2026-04-01 are rolled up to months") as refused:
                ask("c", start=start, end=end)
            assert refused.value.rolled_up_to == AFTER
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
    assert totals.span("c") == (january, date(2026, 4, 3))
    assert totals.span("c", key="b") == (february, date(2026, 2, 28))
    assert totals.rolled_up_to("c") == _up_to(session) == AFTER
    assert totals.rolled_up_to("other") is None


@pytest.mark.usefixtures("planted")
def test_months_are_of_their_own_zone(totals: Totals) -> None:
    everything = totals.total("c", time_zone="Asia/Tokyo")
    assert everything == 1150
    asked = "of its own time zone: ask for Asia/Tokyo from 2026-04-02 on"
    days = "before 2026-04-02 are rolled up to months: ask from that day on"
    for ask, says in ((totals.total, asked), (totals.monthly, asked), (totals.daily, days)):
        with pytest.raises(RolledUp, match=says) as refused:
            ask("c", start=date(2026, 2, 1), end=date(2026, 2, 28), time_zone="Asia/Tokyo")
        assert refused.value.rolled_up_to == date(2026, 4, 2)
    for each in (totals.monthly, totals.span):
        with pytest.raises(RolledUp, match="of its own time zone"):
            each("c", time_zone="Asia/Tokyo")
    # A zone whose months begin at the same instants tells them all.
    assert totals.total("c", end=date(2026, 2, 28), time_zone="Etc/UTC") == 143
    assert [total for _, total in totals.monthly("c", time_zone="Etc/UTC")] == [3, 140, 1000, 7]


def test_a_month_near_the_end_of_time_is_counted(session: Session, totals: Totals) -> None:
    put_scheme(session, "c", rolled_month=minute(date(9999, 12, 1), 0))
    put_rows(session, [("c", "month", date(9999, 11, 1), "a", 3)])
    assert totals.total("c") == totals.total("c", start=date(9999, 11, 1)) == 3
    assert totals.total("c", start=date(9999, 12, 2)) == totals.total("c", start=date.max) == 0
    assert totals.monthly("c", end=date.max, start=date(9999, 11, 1))[0][1] == 3
    assert totals.rolled_up_to("c") == date(9999, 12, 1)


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
