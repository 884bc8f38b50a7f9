"""Months are in the totals, whatever is on record of how far days are rolled up."""

from datetime import date

import pytest

from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.errors import RolledUp
from countersink.store.totals import Totals
from countersink.store.totals.shapes import rolled_up_to
from tests.store.helpers import entry, minute

AFTER = date(2026, 3, 1)
"""The day after the last month that has rows."""


@pytest.fixture(params=["no row", None, date(2026, 1, 7), date(2026, 2, 1)])
def planted(request: pytest.FixtureRequest, session: Session, applier: Applier) -> None:
    """Months to February, days in it and after it, and a day on record that says otherwise."""
    if request.param != "no row":
        session.execute(
            "INSERT INTO counter (name, rolled_up_to, created) VALUES ('c', %s, '2020-01-01')",
            (request.param,),
        )
    applier.apply(
        [
            entry(
                [
                    (0, "c", "a", minute(date(2026, 2, 20)), 100),
                    (1, "c", "a", minute(date(2026, 3, 2)), 1000),
                ]
            )
        ]
    )
    session.execute(
        "INSERT INTO counter_month (counter, bucket, counter_key, amount)"
        " VALUES ('c', '2026-01-01', 'a', 3)"
    )
    session.execute(
        "INSERT INTO counter_month (counter, bucket, counter_key, amount)"
        " VALUES ('c', '2026-02-01', 'b', 40)"
    )
    session.execute("INSERT INTO counter_ledger VALUES ('c', 99, 43, 0, NULL)")


@pytest.mark.usefixtures("planted")
def test_everything_is_counted_and_what_cuts_through_a_month_is_refused(
    session: Session, totals: Totals
) -> None:
    assert totals.total("c") == totals.total("c", time_zone="UTC") == 1143
    assert totals.counters() == {"c": 1143}
    assert dict(totals.by_key("c")) == {"a": 1103, "b": 40}
    assert totals.total("c", start=date(2026, 2, 1)) == 1140
    assert totals.total("c", end=date(2026, 2, 28)) == 143
    assert totals.total("c", start=AFTER) == 1000
    assert totals.monthly("c") == [
        (date(2026, 1, 1), 3),
        (date(2026, 2, 1), 140),
        (date(2026, 3, 1), 1000),
    ]
    for start, end in (
        (date(2026, 1, 8), None),
        (date(2026, 2, 2), None),
        (None, date(2026, 2, 27)),
        (date(2026, 2, 20), date(2026, 2, 20)),
    ):
        with pytest.raises(RolledUp) as refused:
            totals.total("c", start=start, end=end)
        assert refused.value.rolled_up_to == AFTER
    with pytest.raises(RolledUp):
        totals.daily("c", start=date(2026, 2, 20), end=date(2026, 2, 20))
    assert totals.daily("c", start=AFTER, end=date(2026, 3, 2)) == [
        (AFTER, 0),
        (date(2026, 3, 2), 1000),
    ]
    assert totals.rolled_up_to("c") == rolled_up_to(session) == AFTER
    assert totals.rolled_up_to("other") is None


def test_a_month_at_the_end_of_time_is_counted(session: Session, totals: Totals) -> None:
    session.execute(
        "INSERT INTO counter_month (counter, bucket, counter_key, amount)"
        " VALUES ('c', '9999-12-01', 'a', 3)"
    )
    assert totals.total("c") == 3
    assert totals.rolled_up_to("c") == date.max


def test_of_several_counters_the_latest_day_is_told(session: Session) -> None:
    session.execute(
        "INSERT INTO counter (name, rolled_up_to, created) VALUES"
        " ('b', '2026-02-03', '2020-01-01'), ('c', '2026-05-06', '2020-01-01')"
    )
    assert rolled_up_to(session) is None
    session.execute(
        "INSERT INTO counter_month (counter, bucket, counter_key, amount)"
        " VALUES ('b', '2026-01-01', 'a', 3)"
    )
    assert rolled_up_to(session) == date(2026, 2, 3)
    session.execute(
        "INSERT INTO counter_month (counter, bucket, counter_key, amount)"
        " VALUES ('c', '2026-01-01', 'a', 3)"
    )
    assert rolled_up_to(session) == date(2026, 5, 6)
