"""Days, hours and months of any time zone, against counting the events one by one with zoneinfo."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from countersink.counting.apply.applier import Applier
from countersink.counting.counters.catalog import Scheme
from countersink.counting.errors import InexactZone
from countersink.counting.totals import Totals
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.totals.views import View
from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.database.session import Session
from countersink.store import Store
from tests.support.entries import EPOCH, days_of, entry
from tests.support.examples import MANY
from tests.support.servers import MySQLServer
from tests.support.width_rows import put_scheme

ZONES = (
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Pacific/Chatham",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "Pacific/Apia",
    "Africa/Cairo",
    "Asia/Tehran",
    "America/Havana",
    "Antarctica/Casey",
    "UTC",
)
WHOLE_HOURS = ("America/Sao_Paulo", "Europe/Berlin", "America/New_York", "Africa/Cairo", "UTC")
FIRST, LAST = (
    (date(1980, 1, 1), date(2026, 12, 31)) if MANY else (date(2009, 1, 1), date(2013, 12, 31))
)
"""The years of the events; the few ones have the oddest changes of clocks."""
ROUND = {"America/St_Johns": date(2012, 1, 1)}
"""Until 2011 clocks there were changed at 00:01, which is on no quarter."""
KEYS = ("a", "b")

pytestmark = pytest.mark.random

Event = tuple[int, str, int]
"""(Unix minute, key, amount)."""


def _unix_minute(day: date) -> int:
    return (day.toordinal() - EPOCH) * 1440


def _changes(zone: str) -> list[int]:
    """Unix minutes near which clocks are changed."""
    place = ZoneInfo(zone)
    found = []
    before = None
    for minute in range(_unix_minute(FIRST), _unix_minute(LAST), 1440):
        offset = datetime.fromtimestamp(minute * 60, place).utcoffset()
        if before is not None and offset != before:
            found.append(minute)
        before = offset
    return found


def _events() -> list[Event]:
    """At random over the years, around midnights, and thick where clocks are changed."""
    chance = random.Random(20261121)
    minutes = [
        chance.randrange(_unix_minute(FIRST), _unix_minute(LAST))
        for _ in range(1500 if MANY else 200)
    ]
    for zone in ZONES:
        changes = _changes(zone)
        for change in chance.sample(changes, min(len(changes), 12)):
            minutes += [change + chance.randrange(-2880, 2880) for _ in range(12 if MANY else 6)]
    # Clocks at Apia, Samoa, went from the end of 29 December 2011 to the begin of the 31st.
    apia = _unix_minute(date(2011, 12, 30)) + 600
    minutes += range(apia - 120, apia + 120, 7)
    return [(minute, chance.choice(KEYS), chance.randint(-2, 9)) for minute in sorted(minutes)]


EVENTS = _events()


@pytest.fixture(scope="module")
def totals(mysql_server: MySQLServer) -> Iterator[Totals]:
    """The events in three counters, by quarter, by hour and by day, each of UTC."""
    url = mysql_server.url_for("test_zones")
    migrate(url)
    with connect(url) as session:
        for name in ("quarter", "hour", "day"):
            put_scheme(session, name, resolution=name)
        applier = Applier(url, 5)
        for name in ("quarter", "hour", "day"):
            applier.apply(
                [
                    entry([(n, name, key, minute, amount) for n, (minute, key, amount) in part])
                    for part in [list(enumerate(EVENTS))]
                ]
            )
        applier.close()
    with Store(url) as store:
        yield store.totals
    with connect(mysql_server.url, database=False) as session:
        session.execute("DROP DATABASE test_zones")


def _by_day(zone: str, key: str | None = None) -> Counter[date]:
    place = ZoneInfo(zone)
    found = Counter[date]()
    for minute, own, amount in EVENTS:
        if key in (None, own):
            found[datetime.fromtimestamp(minute * 60, UTC).astimezone(place).date()] += amount
    return found


def _first(zone: str) -> date:
    return ROUND.get(zone, FIRST)


@pytest.mark.parametrize("zone", ZONES)
def test_days_of_quarters_are_those_of_the_events(totals: Totals, zone: str) -> None:
    for key, start in ((None, _first(zone)), ("a", date(LAST.year, 1, 1))):
        expected = _by_day(zone, key)
        found = totals.daily("quarter", key=key, start=start, end=LAST, time_zone=zone)
        assert found == [(day, expected[day]) for day in days_of(start, LAST)]


@pytest.mark.parametrize("zone", ZONES)
def test_every_question_about_a_range_of_days(totals: Totals, zone: str) -> None:
    chance = random.Random(zone)
    by_day = {key: _by_day(zone, key) for key in KEYS}
    for days in (0, 30, 400) * (4 if MANY else 1):
        start = _first(zone) + timedelta(days=chance.randrange((LAST - _first(zone)).days))
        end = start + timedelta(days=days)
        expected = {key: sum(by_day[key][day] for day in days_of(start, end)) for key in KEYS}
        asked: dict[str, Any] = {"start": start, "end": end, "time_zone": zone}
        assert totals.total("quarter", **asked) == sum(expected.values()), (start, end)
        assert totals.total("quarter", key="a", **asked) == expected["a"], (start, end)
        assert totals.many("quarter", KEYS, **asked) == expected, (start, end)
        ranked = dict(totals.by_key("quarter", **asked))
        assert {key: ranked.get(key, 0) for key in KEYS} == expected, (start, end)
        months = Counter[date]()
        for key in KEYS:
            for day in days_of(start, end):
                months[day.replace(day=1)] += by_day[key][day]
        assert totals.monthly("quarter", **asked) == sorted(months.items()), (start, end)


@pytest.mark.parametrize("zone", WHOLE_HOURS)
def test_days_of_hours_are_exact_in_zones_of_whole_hours(totals: Totals, zone: str) -> None:
    expected = _by_day(zone)
    found = totals.daily("hour", start=FIRST, end=LAST, time_zone=zone)
    assert found == [(day, expected[day]) for day in days_of(FIRST, LAST)]


@pytest.mark.parametrize("zone", sorted({*ZONES} - {*WHOLE_HOURS}))
def test_whatever_hours_tell_of_other_zones_is_exact_or_an_error(totals: Totals, zone: str) -> None:
    expected = _by_day(zone)
    years, told = range(FIRST.year, LAST.year + 1, 3), []
    for year in years:
        start, end = date(year, 1, 1), date(year, 12, 31)
        try:
            found = totals.daily("hour", start=start, end=end, time_zone=zone)
        except InexactZone:
            continue
        assert found == [(day, expected[day]) for day in days_of(start, end)], year
        told.append(year)
    whole = ("Pacific/Apia", "America/Havana", "Antarctica/Casey")
    # Lord Howe was 10 hours off until 1981.
    assert told == [
        year for year in years if zone in whole or (zone[10:], year) == ("Lord_Howe", 1980)
    ]


@pytest.mark.parametrize("zone", sorted({*ZONES} - {"Antarctica/Casey"}))  # changes at 00:01
def test_hours_are_those_of_the_clock(totals: Totals, zone: str) -> None:
    """The repeated hour comes twice, the one that is left out does not."""
    chance = random.Random(zone)
    place = ZoneInfo(zone)
    since = _unix_minute(_first(zone) + timedelta(days=3))
    changes = [change for change in _changes(zone) if change > since] or [since + 9999]
    amounts = Counter[int]()
    for minute, _, amount in EVENTS:
        amounts[minute] += amount
    for change in chance.sample(changes, min(4 if MANY else 1, len(changes))):
        middle = datetime.fromtimestamp(change * 60, place).date()
        start, end = middle - timedelta(days=2), middle + timedelta(days=2)
        expected: dict[tuple[str, int], int] = {}
        begin = _unix_minute(start) - 1800
        for minute in range(begin, begin + 9 * 1440):
            local = datetime.fromtimestamp(minute * 60, UTC).astimezone(place)
            if start <= local.date() <= end:
                offset = local.utcoffset()
                assert offset is not None
                name = f"{local:%Y-%m-%dT%H}", round(offset.total_seconds())
                expected[name] = expected.get(name, 0) + amounts[minute]
        found = totals.hourly("quarter", start=start, end=end, time_zone=zone)
        instants = [hour for hour, _ in found]
        assert instants == sorted(instants)
        shown = {
            (f"{hour:%Y-%m-%dT%H}", round((hour.utcoffset() or timedelta()).total_seconds())): total
            for hour, total in found
        }
        assert all(hour.minute == 0 for hour in instants)
        assert shown == expected, (start, end)
        assert list(shown) == list(expected)
        assert len(shown) == len(found)


def test_a_day_that_a_zone_left_out_is_0(totals: Totals) -> None:
    gone = date(2011, 12, 30)
    before, between, after = totals.daily(
        "quarter",
        start=gone - timedelta(days=1),
        end=gone + timedelta(days=1),
        time_zone="Pacific/Apia",
    )
    assert between == (gone, 0)
    assert before[1]
    assert after[1]
    assert totals.total("quarter", start=gone, end=gone, time_zone="Pacific/Apia") == 0
    assert totals.hourly("quarter", start=gone, end=gone, time_zone="Pacific/Apia") == []


def test_a_day_that_came_in_two_pieces_not_on_the_quarter_is_refused(totals: Totals) -> None:
    """St John's fell back at 00:01: the 1st began, went back to the 31st, and began again."""
    zone, day = "America/St_Johns", date(2009, 11, 1)
    for start, end in ((day, day), (date(2009, 10, 1), day - timedelta(days=1))):
        with pytest.raises(InexactZone, match=r"2009-11-01 02:31 UTC.*America/St_Johns"):
            totals.total("quarter", start=start, end=end, time_zone=zone)
    for ask in (totals.daily, totals.hourly):
        with pytest.raises(InexactZone):
            ask("quarter", start=date(2009, 10, 1), end=date(2009, 11, 30), time_zone=zone)
    # A range around it does not need that boundary.
    start, end = date(2009, 10, 1), date(2009, 11, 30)
    expected = _by_day(zone)
    found = totals.total("quarter", start=start, end=end, time_zone=zone)
    assert found == sum(expected[day] for day in days_of(start, end))


def test_hours_do_not_tell_the_days_of_half_hour_zones(totals: Totals) -> None:
    for zone in ("Asia/Kolkata", "Asia/Kathmandu", "Pacific/Chatham"):
        for ask in (totals.total, totals.daily, totals.hourly, totals.monthly, totals.by_key):
            with pytest.raises(InexactZone, match="--resolution quarter"):
                ask("hour", start=date(2020, 1, 1), end=date(2020, 2, 1), time_zone=zone)
        with pytest.raises(InexactZone):
            totals.many("hour", ["a"], end=date(2020, 2, 1), time_zone=zone)
        with pytest.raises(InexactZone):
            totals.counters(start=date(2020, 1, 1), time_zone=zone)


def test_days_tell_only_days_that_begin_with_them(totals: Totals) -> None:
    expected = _by_day("UTC")
    days = days_of(date(2012, 1, 1), date(2012, 12, 31))
    for zone in ("Etc/UTC", "Africa/Abidjan", "Atlantic/Reykjavik"):
        found = totals.daily("day", start=days[0], end=days[-1], time_zone=zone)
        assert found == [(day, expected[day]) for day in days]
    # London's winter begins its days with UTC's, its summer does not.
    winter = days_of(date(2011, 10, 31), date(2012, 3, 24))
    found = totals.daily("day", start=winter[0], end=winter[-1], time_zone="Europe/London")
    assert found == [(day, expected[day]) for day in winter]
    with pytest.raises(InexactZone, match="counted by day in UTC"):
        totals.daily(
            "day", start=winter[0], end=winter[-1] + timedelta(1), time_zone="Europe/London"
        )
    with pytest.raises(InexactZone):
        totals.span("day", time_zone="Asia/Tokyo")
    with pytest.raises(InexactZone, match="--resolution hour"):
        totals.hourly("day", start=winter[0], end=winter[0])
    with pytest.raises(InexactZone):
        totals.daily("day", time_zone="Asia/Tokyo")
    with pytest.raises(InexactZone):
        totals.monthly("day", time_zone="Asia/Tokyo")


def test_a_total_of_all_needs_no_days(totals: Totals) -> None:
    everything = sum(amount for _, _, amount in EVENTS)
    for counter in ("quarter", "hour", "day"):
        for zone in ("Asia/Kolkata", "America/St_Johns"):
            assert totals.total(counter, time_zone=zone) == everything
    assert set(totals.counters(time_zone="Asia/Kolkata").values()) == {everything}


def test_a_range_open_to_one_side_needs_only_the_other(totals: Totals) -> None:
    expected = _by_day("America/St_Johns")
    late = totals.total("quarter", start=date(2012, 5, 1), time_zone="America/St_Johns")
    assert late == sum(amount for day, amount in expected.items() if day >= date(2012, 5, 1))
    early = totals.total("quarter", end=date(2012, 4, 30), time_zone="America/St_Johns")
    assert late + early == sum(expected.values())


def test_a_zone_that_was_no_whole_minutes_off_is_refused(totals: Totals) -> None:
    with pytest.raises(InexactZone):  # Liberia, 44:30 behind until 1972
        totals.total("quarter", start=date(1971, 5, 1), time_zone="Africa/Monrovia")
    with pytest.raises(InexactZone):  # Kiritimati, 10:40 behind until October 1979
        totals.daily(
            "quarter",
            start=date(1979, 1, 1),
            end=date(1979, 2, 1),
            time_zone="Pacific/Kiritimati",
        )


def test_an_unknown_zone_is_refused(totals: Totals) -> None:
    for name in ("Mars/Olympus", "", "../UTC", "berlin"):
        with pytest.raises(ValueError, match="is no time zone"):
            totals.total("quarter", time_zone=name)
        with pytest.raises(ValueError, match="is no time zone"):
            totals.counters(start=FIRST, time_zone=name)


def test_series_without_ends_reach_from_the_first_event_to_the_last(totals: Totals) -> None:
    zone = "Asia/Tehran"
    expected = _by_day(zone)
    found = totals.daily("quarter", time_zone=zone)
    assert found == [(day, expected[day]) for day in days_of(min(expected), max(expected))]
    assert totals.span("quarter", time_zone=zone) == (min(expected), max(expected))
    assert totals.daily("quarter", end=date(1979, 1, 1), time_zone=zone) == []
    with pytest.raises(ValueError, match="at most 100,000"):
        totals.hourly("quarter", start=date(1999, 1, 1), time_zone=zone)


def test_days_that_come_in_two_pieces_do_not_tell_those_of_their_neighbours(
    session: Session,
) -> None:
    """Casey went back from 2:00 to 23:00 on 5 March 2010; before, its days were Noumea's."""
    view = View(
        Snapshot(session), Scheme(counter="c", time_zone="Antarctica/Casey"), "Pacific/Noumea"
    )
    view.require_days([date(2010, 3, 4), date(2010, 2, 1)])
    with pytest.raises(InexactZone, match="2010-03-04 13:00 UTC"):
        view.require_days([date(2010, 3, 5)])
