"""Totals over a counter's policies, whenever they changed, against asking for each event's."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.buckets import RESOLUTIONS
from countersink.store.errors import InexactZone, Refused
from countersink.store.totals import Totals
from tests.store.helpers import days_of, entry, minute
from tests.store.policy_rows import Change, Put, brute_policy, put_policies
from tests.support.examples import MANY, examples

BEGIN = minute(date(2026, 3, 1), 0)
LENGTH = 60 * 1440
"""Minutes over which events and changes are spread; clocks change in many zones."""
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/St_Johns",
]
KEYS = ("a", "b", "")

Event = tuple[int, str, int]


def _local(zone: str, at: int) -> date:
    return datetime.fromtimestamp(at * 60, UTC).astimezone(ZoneInfo(zone)).date()


class Made:
    """Events counted under policies that were changed between two batches of them."""

    def __init__(
        self, session: Session, applier: Applier, changes: list[Change], seed: int, early: int
    ) -> None:
        chance = random.Random(seed)
        edges = [since for since, _, _ in changes[1:]]
        at = [BEGIN + chance.randrange(LENGTH) for _ in range(120)]
        at += [edge + chance.choice((-61, -16, -1, 0, 1, 14, 61, 700)) for edge in edges * 6]
        self.events = [(one, chance.choice(KEYS), chance.randint(-2, 9)) for one in at]
        chance.shuffle(self.events)
        for table in ("counter_slot", "counter_ledger", "counter_policy", "counter"):
            session.execute(f"DELETE FROM {table}")
        # Some are counted before anybody knew of the later changes, those of later times too.
        known = min(early, len(changes))
        first, rest = self.events[:60], self.events[60:]
        put_policies(session, "c", changes[:known])
        self.counted: list[tuple[Event, Change]] = []
        for part, own in ((first, changes[:known]), (rest, changes)):
            put_policies(session, "c", own)
            applier.apply([entry([(n, "c", k, m, a) for n, (m, k, a) in enumerate(part)])])
            self.counted += [(event, brute_policy(own, event[0])) for event in part]

    def by_day(self, zone: str | None = None, key: str | None = None) -> Counter[date]:
        """The totals of days, of each policy's own zone or of ``zone``."""
        found = Counter[date]()
        for (at, own, amount), (_, its_zone, _) in self.counted:
            if key in (None, own):
                found[_local(zone or its_zone, at)] += amount
        return found


_zone = st.sampled_from(ZONES)
_change = st.tuples(
    st.integers(BEGIN + 1440, BEGIN + LENGTH - 1440), _zone, st.sampled_from(RESOLUTIONS)
)
_changes = st.builds(
    lambda first, later: [(0, *first), *sorted(later)],
    st.tuples(_zone, st.sampled_from(RESOLUTIONS)),
    st.lists(_change, min_size=1, max_size=4, unique_by=lambda change: change[0]),
)


def _hours_fit(changes: list[Change]) -> bool:
    """Whether no policy has hours in a zone whose days they do not add up to."""
    odd = ("Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns")
    return not any(zone in odd and resolution == "hour" for _, zone, resolution in changes)


@examples(few=3, many=12)
@given(
    changes=_changes.filter(_hours_fit),
    seed=st.integers(0, 2**32),
    early=st.integers(1, 5),
    asked=_zone,
)
def test_days_of_changing_policies_and_of_any_zone(
    session: Session,
    applier: Applier,
    totals: Totals,
    changes: list[Change],
    seed: int,
    early: int,
    asked: str,
) -> None:
    made = Made(session, applier, changes, seed, early)
    _compare(totals, made, seed, None)
    only_quarters = all(resolution in ("quarter", "minute") for _, _, resolution in changes)
    try:
        _compare(totals, made, seed, asked)
    except InexactZone:
        assert not only_quarters


def _compare(totals: Totals, made: Made, seed: int, zone: str | None) -> None:
    chance = random.Random(seed)
    expected = made.by_day(zone)
    first, last = min(expected), max(expected)
    everything = sum(amount for (_, _, amount), _ in made.counted)
    assert totals.total("c", time_zone=zone) == everything
    ranges: list[tuple[date | None, date | None]] = [(None, None), (first, last)]
    for _ in range(4 if MANY else 1):
        begin = first + timedelta(days=chance.randrange(60))
        stop = begin + timedelta(days=chance.choice((0, 1, 2, 20)))
        ranges += [(begin, stop), (begin, None), (None, begin)]
    for start, end in ranges:
        days = days_of(start or first, end or last)
        options: dict[str, Any] = {"start": start, "end": end, "time_zone": zone}
        found = dict(totals.daily("c", **options))
        assert found == {day: expected[day] for day in found}, (start, end)
        assert sum(found.values()) == sum(expected[day] for day in days), (start, end)
        if start and end:
            assert list(found) == days
        by_key = {key: sum(made.by_day(zone, key)[day] for day in days) for key in KEYS}
        assert totals.total("c", **options) == sum(by_key.values()), (start, end)
        assert totals.total("c", keys=["a", "b"], **options) == by_key["a"] + by_key["b"]
        assert totals.many("c", KEYS, **options) == by_key
        ranked = totals.by_key("c", **options)
        assert {key: dict(ranked).get(key, 0) for key in KEYS} == by_key
        assert ranked == sorted(ranked, key=lambda pair: (-pair[1], pair[0]))
        assert totals.top("c", n=2, **options) == ranked[:2]
        assert totals.counters(**options)["c"] == sum(by_key.values())
        months = Counter[date]()
        for day in days:
            months[day.replace(day=1)] += expected[day]
        monthly = dict(totals.monthly("c", **options))
        assert monthly == {month: months[month] for month in monthly}
        assert sum(monthly.values()) == sum(months.values())
    assert totals.span("c", time_zone=zone) == (first, last)


FIXED: list[list[Change]] = [
    [(0, "UTC", "day"), (BEGIN + 30_003, "Europe/Berlin", "day")],
    [(0, "Pacific/Apia", "day"), (BEGIN + 30_003, "Pacific/Honolulu", "day")],
    [
        (0, "America/New_York", "day"),
        (BEGIN + 20_000, "America/New_York", "hour"),
        (BEGIN + 20_007, "Asia/Kolkata", "quarter"),
        (BEGIN + 40_001, "Asia/Kolkata", "day"),
    ],
    [
        (0, "Asia/Tokyo", "day"),
        (BEGIN + 15_015, "Asia/Tokyo", "hour"),
        (BEGIN + 33_333, "Asia/Tokyo", "quarter"),
        (BEGIN + 50_000, "Asia/Tokyo", "day"),
    ],
]


@pytest.mark.random
@pytest.mark.parametrize(
    ("changes", "early"),
    [
        *((changes, 1) for changes in FIXED),
        (FIXED[2], 3),
        *(
            pytest.param(changes, 3, marks=pytest.mark.long("as the one before"))
            for changes in (*FIXED[:2], FIXED[3])
        ),
    ],
)
def test_days_over_chosen_changes(
    session: Session, applier: Applier, totals: Totals, changes: list[Change], early: int
) -> None:
    _compare(totals, Made(session, applier, changes, 7, early), 7, None)


def test_two_policies_share_the_day_on_which_one_followed_the_other(
    put: Put, totals: Totals
) -> None:
    """21 November begins an hour earlier in Berlin; its first half was counted as UTC's."""
    noon = minute(date(2026, 11, 21))
    at = [noon - 1, noon, noon + 659, noon + 660]
    put([(0, "UTC", "day"), (noon, "Europe/Berlin", "day")], at)
    assert totals.daily("c") == [(date(2026, 11, 21), 111), (date(2026, 11, 22), 1000)]
    assert totals.span("c") == (date(2026, 11, 21), date(2026, 11, 22))
    # Berlin's own 21st began within a UTC day that is one bucket.
    with pytest.raises(InexactZone):
        totals.total("c", start=date(2026, 11, 21), time_zone="Europe/Berlin")
    # So is UTC's 22nd, which Berlin's day of that date begins before.
    with pytest.raises(InexactZone):
        totals.total("c", start=date(2026, 11, 22), time_zone="UTC")


def test_hours_of_changing_policies_are_shown_in_the_zone_they_were_counted_in(
    put: Put, totals: Totals
) -> None:
    at_ten = minute(date(2026, 11, 21), 600)
    at = [at_ten - 61, at_ten - 1, at_ten, at_ten + 59, at_ten + 120]
    put([(0, "UTC", "hour"), (at_ten, "Europe/Berlin", "quarter")], at)
    shown = [(hour.isoformat(timespec="minutes"), n) for hour, n in totals.hourly("c")]
    assert shown == [
        ("2026-11-21T08:00+00:00", 1),
        ("2026-11-21T09:00+00:00", 10),
        ("2026-11-21T11:00+01:00", 1100),
        ("2026-11-21T12:00+01:00", 0),
        ("2026-11-21T13:00+01:00", 10000),
    ]
    day = date(2026, 11, 21)
    assert len(totals.hourly("c", start=day, end=day)) == 10 + 13
    asked = totals.hourly("c", time_zone="Asia/Tokyo")
    assert [(hour.isoformat(timespec="minutes"), n) for hour, n in asked][:2] == [
        ("2026-11-21T17:00+09:00", 1),
        ("2026-11-21T18:00+09:00", 10),
    ]
    assert sum(n for _, n in asked) == 11111
    with pytest.raises(InexactZone, match="Asia/Kolkata"):
        totals.hourly("c", time_zone="Asia/Kolkata")
    late = totals.hourly(
        "c", start=date(2026, 11, 22), end=date(2026, 11, 22), time_zone="Asia/Kolkata"
    )
    assert len(late) == 24


def test_a_day_counter_has_hours_from_the_day_after_it_got_them(
    session: Session, applier: Applier, totals: Totals
) -> None:
    noon = minute(date(2026, 11, 21))
    put_policies(session, "c", [(0, "UTC", "day"), (noon, "UTC", "hour")])
    applier.apply([entry([(0, "c", "k", noon - 5, 1), (1, "c", "k", noon + 1440, 2)])])
    ranges: list[dict[str, Any]] = [{}, {"start": date(2026, 11, 21)}, {"end": date(2026, 11, 30)}]
    for options in ranges:
        with pytest.raises(
            InexactZone, match=r"ask from 2026-11-22 on.*counter set c --resolution"
        ):
            totals.hourly("c", **options)
    found = totals.hourly("c", start=date(2026, 11, 22))
    assert [n for _, n in found] == [0] * 12 + [2]


def test_rows_of_a_policy_that_never_was_are_not_guessed_at(
    session: Session, applier: Applier, totals: Totals
) -> None:
    noon = minute(date(2026, 11, 21))
    put_policies(session, "c", [(0, "UTC", "day"), (noon, "UTC", "hour")])
    session.execute(
        "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
        " VALUES ('c', '2026-11-21 00:00:07', '', 1, 5)"
    )
    with pytest.raises(Refused, match="countersink verify"):
        totals.daily("c")


def test_a_counter_that_was_made_and_never_counted_is_known(
    session: Session, totals: Totals
) -> None:
    put_policies(session, "c", [(0, "Europe/Berlin", "hour")])
    day = date(2026, 11, 21)
    asks: list[Callable[..., Any]] = [totals.daily, totals.hourly, totals.monthly, totals.by_key]
    for ask in asks:
        assert ask("c") == []
    assert (totals.total("c"), totals.span("c")) == (0, None)
    assert totals.counters() == {"c": 0}
    assert totals.counters(start=day) == {"c": 0}
    assert totals.daily("c", start=day, end=day) == [(day, 0)]


def test_the_first_bucket_of_a_policy_holds_nothing_from_before_it(
    put: Put, totals: Totals
) -> None:
    """Berlin's 21st begins at 23:00 UTC; the day of New York, at 5:00; the policy, at 12:00."""
    noon = minute(date(2026, 11, 21))
    at = [noon - 421, noon - 420, noon - 1, noon]
    put([(0, "UTC", "quarter"), (noon, "Europe/Berlin", "day")], at)
    day, zone = date(2026, 11, 21), "America/New_York"
    assert totals.total("c", start=day, time_zone=zone) == 1110
    assert totals.total("c", end=day - timedelta(days=1), time_zone=zone) == 1
    assert totals.daily("c", start=day, time_zone=zone) == [(day, 1110)]
    assert totals.daily("c", time_zone=zone) == [(day - timedelta(days=1), 1), (day, 1110)]
    assert totals.many("c", ["k"], start=day, time_zone=zone) == {"k": 1110}
    with pytest.raises(InexactZone, match="2026-11-22 05:00 UTC"):
        totals.total("c", start=day, end=day, time_zone=zone)


def test_hours_of_a_zone_that_was_off_by_half_an_hour_do_not_tell_its_days_then(
    put: Put, totals: Totals
) -> None:
    """Caracas was 4:30 behind UTC until May 2016: its 2 May 2012 began at 04:30 UTC."""
    second = date(2012, 5, 2)
    at = [minute(second, 250), minute(second, 285), minute(date(2026, 11, 21))]
    put([(0, "America/Caracas", "hour")], at)
    series: list[Callable[..., Any]] = [totals.daily, totals.hourly, totals.total, totals.monthly]
    asks: list[Callable[..., Any]] = [*(partial(each, "c") for each in series), totals.counters]
    for ask in asks:
        for zone in (None, "America/Caracas"):
            with pytest.raises(InexactZone, match=r"ask for the time zone UTC;.*quarter") as raised:
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
    session: Session, applier: Applier, totals: Totals
) -> None:
    put_policies(session, "c", [(0, "UTC", "hour")])
    applier.apply([entry([(0, "c", "k", 0, 1), (1, "c", "k", minute(date(9990, 1, 1)), 1)])])
    before = buckets._clock_changes.cache_info().misses
    with pytest.raises(ValueError, match="at most 100,000"):
        totals.hourly("c", time_zone="Asia/Kolkata")
    assert buckets._clock_changes.cache_info().misses == before


def test_what_is_counted_ahead_of_a_change_is_of_the_bucket_it_was_counted_in(
    session: Session, applier: Applier, totals: Totals
) -> None:
    """An event of 23:30, counted before the change at noon was made, lies in the old policy's day:
    so where Berlin's 22 November begins, at 23:00, that bucket tells nothing.
    """
    noon, day = minute(date(2026, 11, 21)), date(2026, 11, 21)
    put_policies(session, "c", [(0, "UTC", "day")])
    applier.apply([entry([(0, "c", "k", minute(day, 1410), 1)])])
    put_policies(session, "c", [(0, "UTC", "day"), (noon, "Europe/Berlin", "quarter")])
    with pytest.raises(InexactZone):
        totals.total("c", start=day + timedelta(days=1), time_zone="Europe/Berlin")
    assert totals.total("c", start=day + timedelta(days=2), time_zone="Europe/Berlin") == 0


def test_a_change_where_a_bucket_ends_leaves_nothing_that_cannot_be_told(
    put: Put, totals: Totals
) -> None:
    day = date(2026, 11, 21)
    midnight = minute(day, 0)
    at = [midnight - 1, midnight, minute(day, 1380)]
    put([(0, "UTC", "day"), (midnight, "Europe/Berlin", "quarter")], at)
    following = day + timedelta(days=1)
    assert totals.daily("c", start=following, time_zone="Europe/Berlin") == [(following, 100)]
