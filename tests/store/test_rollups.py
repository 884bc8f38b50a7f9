"""Totals of counters whose older days are in months: as before, or an error that says so."""

from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.errors import InexactZone, RolledUp
from countersink.store.totals import Totals
from tests.store.helpers import entry, minute
from tests.store.width_rows import put_rows, put_scheme
from tests.support.examples import examples

BEGIN = date(2026, 1, 20)
DAYS = [BEGIN + timedelta(days=n) for n in range(110)]
KEYS = ("a", "b")
APRIL = date(2026, 4, 1)

Cells = dict[tuple[date, str], int]


def put(session: Session, cells: Cells, up_to: date, late: Cells, counter: str = "c") -> None:
    """These days, rolled up; ``late`` came when their days were in months already."""
    for table in ("counter_slot", "counter_ledger"):
        session.execute(f"DELETE FROM {table}")
    put_scheme(session, counter, rolled_month=minute(up_to, 0))
    months = Counter[tuple[date, str]]()
    slots = [(day, key, 7, amount) for (day, key), amount in late.items()]
    for (day, key), amount in cells.items():
        if day < up_to:
            months[day.replace(day=1), key] += amount
        else:
            slots += [(day, key, 0, amount + 5), (day, key, 3, -5)]
    for day, key, slot, amount in slots:
        put_rows(session, [(counter, "day", day, key, amount)], slots=[slot])
    put_rows(
        session,
        [(counter, "month", month, key, amount) for (month, key), amount in months.items()],
        slots=[0],
    )


def month_end(day: date) -> date:
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)


_cells = st.dictionaries(
    st.tuples(st.sampled_from(DAYS), st.sampled_from(KEYS)), st.integers(-3, 9), max_size=30
)
_ends = st.none() | st.sampled_from([*DAYS, *map(month_end, DAYS), date(2025, 3, 3)])


@examples(few=15, many=60)
@given(
    cells=_cells,
    late=_cells,
    up_to=st.sampled_from([day for day in DAYS if day.day == 1]),
    start=_ends | st.sampled_from([day.replace(day=1) for day in DAYS]),
    end=_ends,
    chosen=st.sampled_from([None, ["a"], ["b", "a"], ["none"]]),
)
def test_every_question_is_answered_as_before_or_refused(
    session: Session,
    totals: Totals,
    cells: Cells,
    late: Cells,
    up_to: date,
    start: date | None,
    end: date | None,
    chosen: list[str] | None,
) -> None:
    if start and end and end < start:
        start, end = end, start
    late = {(day, key): amount for (day, key), amount in late.items() if day < up_to}
    put(session, cells, up_to, late)
    gone = {day.replace(day=1) for day, _ in cells if day < up_to}
    cut = any(
        day is not None and day.day != 1 and day.replace(day=1) in gone
        for day in (start, end and end + timedelta(days=1))
    )
    mine = Counter[tuple[date, str]]()
    for cell, amount in [*cells.items(), *late.items()]:
        if chosen is None or cell[1] in chosen:
            mine[cell] += amount
    inside = {
        (day, key): amount
        for (day, key), amount in mine.items()
        if (start is None or day >= start) and (end is None or day <= end)
    }
    options: dict[str, Any] = {"start": start, "end": end}
    try:
        total = totals.total("c", keys=chosen, **options)
    except RolledUp as error:
        refused = str(error), error.rolled_up_to
        assert str(up_to) in refused[0]
        assert refused[1] == up_to
        assert cut
        for ask in (totals.by_key, totals.monthly, totals.top):
            with pytest.raises(RolledUp):
                ask("c", **options)
        with pytest.raises(RolledUp):
            totals.counters(**options)
    else:
        assert not cut
        assert total == sum(inside.values())
        months = Counter[date]()
        keys = Counter[str]()
        for (day, key), amount in inside.items():
            months[day.replace(day=1)] += amount
            keys[key] += amount
        monthly = dict(totals.monthly("c", keys=chosen, **options))
        assert monthly == {month: months[month] for month in monthly}
        assert sum(monthly.values()) == total
        assert list(monthly) == sorted(monthly)
        if chosen is None:
            ranked = totals.by_key("c", **options)
            assert ranked == sorted(keys.items(), key=lambda pair: (-pair[1], pair[0]))
            assert totals.top("c", n=1, **options) == ranked[:1]
            assert totals.counters(**options) == {"c": total}
        else:
            assert totals.many("c", chosen, **options) == {key: keys[key] for key in chosen}
    try:
        daily = dict(totals.daily("c", keys=chosen, **options))
    except RolledUp as error:
        refused = str(error), error.rolled_up_to
        assert refused[1] == up_to
        assert any(
            (start is None or month_end(month) >= start) and (end is None or month <= end)
            for month in gone
        )
    else:
        by_day = Counter[date]()
        for (day, _), amount in inside.items():
            by_day[day] += amount
        assert not {day for day in daily if day.replace(day=1) in gone}
        assert daily == {day: by_day[day] for day in daily}
        assert sum(daily.values()) == sum(by_day.values())


@pytest.fixture
def rolled(session: Session) -> Session:
    """Days of four months, of which three are rolled up, with a late one in February."""
    days = [date(2026, 1, 5), date(2026, 2, 7), date(2026, 3, 9), date(2026, 4, 10)]
    cells = {(day, "a"): 10**n for n, day in enumerate(days)}
    put(session, cells, APRIL, {(date(2026, 2, 20), "a"): 50})
    return session


def test_what_is_possible_is_said(rolled: Session, totals: Totals) -> None:
    sentence = (
        r"before 2026-04-01 are rolled up to months: ask for whole months, or from 2026-04-01"
    )
    asks: list[Callable[..., Any]] = [totals.total, totals.by_key, totals.top, totals.monthly]
    for ask in asks:
        cuts: list[dict[str, Any]] = [{"start": date(2026, 2, 2)}, {"end": date(2026, 3, 8)}]
        for options in cuts:
            with pytest.raises(RolledUp, match=sentence) as caught:
                ask("c", **options)
            assert caught.value.rolled_up_to == APRIL
    days: list[dict[str, Any]] = [{"start": date(2026, 2, 1)}, {"end": date(2026, 3, 31)}]
    for options in days:
        with pytest.raises(RolledUp, match="ask from that day on, or for months"):
            totals.daily("c", **options)
    assert totals.rolled_up_to("c") == APRIL
    assert totals.rolled_up_to("other") is None


def test_whole_months_and_the_days_since_are_there(rolled: Session, totals: Totals) -> None:
    january, february, march = date(2026, 1, 1), date(2026, 2, 1), date(2026, 3, 1)
    last = date(2026, 4, 10)
    assert totals.total("c") == 1161
    months = [(january, 1), (february, 60), (march, 100), (APRIL, 1000)]
    assert totals.monthly("c") == months
    assert totals.total("c", start=february) == 1160
    assert totals.total("c", start=february, end=date(2026, 2, 28)) == 60
    assert totals.total("c", end=date(2026, 3, 31)) == 161
    assert totals.total("c", start=date(2026, 4, 2)) == 1000
    assert totals.monthly("c", start=february, end=date(2026, 5, 2)) == [
        *months[1:],
        (date(2026, 5, 1), 0),
    ]
    assert totals.daily("c", start=APRIL)[-2:] == [(last - timedelta(days=1), 0), (last, 1000)]
    assert totals.span("c") == (january, last)
    assert totals.span("c", key="none") is None


def test_days_before_the_first_month_and_behind_the_last_are_not_gone(
    rolled: Session, totals: Totals
) -> None:
    """Nothing was ever there that could have been rolled up."""
    assert totals.total("c", start=date(2025, 6, 15)) == 1161
    early = totals.daily("c", start=date(2025, 6, 15), end=date(2025, 6, 16))
    assert [n for _, n in early] == [0, 0]
    rolled.execute("UPDATE counter SET rolled_month = '2026-09-01'")
    assert totals.total("c", start=date(2026, 8, 10)) == 0


def test_a_counter_of_which_nothing_was_rolled_up_yet_is_whole(
    session: Session, totals: Totals
) -> None:
    put(session, {}, APRIL, {(date(2026, 3, 5), "a"): 7})
    assert totals.rolled_up_to("c") is None
    assert totals.daily("c", start=date(2026, 3, 4), end=date(2026, 3, 6)) == [
        (date(2026, 3, 4), 0),
        (date(2026, 3, 5), 7),
        (date(2026, 3, 6), 0),
    ]


def test_months_are_those_of_the_counter_s_own_zone(
    session: Session, applier: Applier, totals: Totals
) -> None:
    zone, other = "Europe/Berlin", "America/New_York"
    put_scheme(session, "c", zone, "quarter", rolled_month=minute(date(2026, 2, 28), 23 * 60))
    march = minute(date(2026, 3, 15))
    applier.apply([entry([(0, "c", "a", march, 100), (1, "c", "b", march + 1440, 1000)])])
    put_rows(session, [("c", "month", date(2026, 2, 1), "a", 5)])
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
