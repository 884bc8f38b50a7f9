"""Days that are no longer kept: into months, without a total ever changing."""

from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from countersink.counting.apply import key_caps
from countersink.counting.apply.applier import Applier
from countersink.schedules.jobs.move import open_tables
from countersink.schedules.jobs.ranges import BucketKey
from tests.schedules.tables import Kept, label_at, rolled_up, spread
from tests.support.entries import again_and_again, entry, minute, together

KEYS = [b"", b"\xff", "ä".encode(), b"a", b"a "]


def keep(
    kept: Kept,
    days: int | None,
    counter: str = "v",
    *,
    zone: str = "UTC",
    resolution: str = "day",
    rolled_month: str | None = None,
) -> None:
    kept.run(
        "INSERT INTO counter (name, keep_steps, time_zone, resolution, rolled_month, created)"
        " VALUES (%s, %s, %s, %s, %s, '2020-01-01')"
        " ON DUPLICATE KEY UPDATE keep_steps = VALUES(keep_steps)",
        counter,
        None if days is None else f"day={days}d",
        zone,
        resolution,
        rolled_month,
    )


def month_rolled_to(kept: Kept, counter: str = "v", zone: str = "UTC") -> date | None:
    found: datetime | None
    ((found,),) = kept.run("SELECT rolled_month FROM counter WHERE name = %s", counter)
    return None if found is None else found.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).date()


def day_of(days_ago: int, zone: str = "UTC") -> date:
    return datetime.now(ZoneInfo(zone)).date() - timedelta(days=days_ago)


def month_of(days_ago: int, zone: str = "UTC") -> date:
    """The first of the month of that day: days before it are rolled up if so many are kept."""
    return day_of(days_ago, zone).replace(day=1)


def plant_days(kept: Kept, *days: date, keys: list[bytes] | None = None) -> None:
    for day in days:
        kept.plant(spread(keys or KEYS, (0, 1, 300), f"{day} 00:00:00 4"))


@pytest.mark.parametrize(
    ("zone", "bucket", "month"),
    [
        # The same hour is March in New York and April in Tokyo; for days the label is the date.
        ("America/New_York", "2020-03-31 20:00:00 3", date(2020, 3, 1)),
        ("Asia/Tokyo", "2020-03-31 20:00:00 3", date(2020, 4, 1)),
        ("Asia/Tokyo", "2020-03-31 14:59:00 1", date(2020, 3, 1)),
        ("Asia/Tokyo", "2020-04-01 00:00:00 4", date(2020, 4, 1)),
        ("America/New_York", "2020-04-01 00:00:00 4", date(2020, 4, 1)),
        ("America/New_York", "2020-04-01 00:00:00 3", date(2020, 3, 1)),
    ],
)
def test_each_bucket_goes_to_the_month_of_its_counters_zone(
    kept: Kept, zone: str, bucket: str, month: date
) -> None:
    keep(kept, 30, zone=zone)
    kept.plant(spread([b"a"], (1, 300), bucket))
    rolled_up(kept.url)
    assert kept.slots() == []
    assert kept.months() == [(month, b"a", 301)]
    kept.check_ledger()


def test_a_bucket_that_lies_in_two_months_stays_and_is_named(kept: Kept) -> None:
    # 5:30 ahead: midnight comes at 18:30 UTC.
    keep(kept, None, zone="Asia/Kolkata", resolution="hour", rolled_month="2020-03-31 18:30:00")
    astride = "2020-03-31 18:00:00 3"
    kept.plant(spread([b"a"], (1, 2), astride))
    kept.plant(spread([b"a"], (1, 2), "2020-03-30 18:00:00 3"))
    done = rolled_up(kept.url)
    assert (done.astride, done.rolled_up) == ([], 2)  # it is not over yet
    kept.run("UPDATE counter SET rolled_month = '2020-04-30 18:30:00'")
    done = rolled_up(kept.url)
    assert (done.astride, done.rolled_up) == ([BucketKey("v", label_at(astride))], 0)
    assert [bucket for bucket, _, _, _ in kept.slots()] == [astride] * 2


def count(kept: Kept, day: date, *names: str) -> int:
    """Count 1 for each key by a worker that remembers nothing; how many had no room."""
    return kept.apply([(n, "v", name, minute(day), 1) for n, name in enumerate(names)])


def test_of_a_day_that_is_rolled_up_no_key_is_made_and_those_of_its_month_go_on(
    kept: Kept,
) -> None:
    kept.store.counters.set("v", keep="day=5d", max_keys=3)
    old = day_of(40)
    month, other = old.replace(day=1), old.replace(day=1) + timedelta(days=old.day == 1)
    remembering = Applier(kept.url, 9)
    remembering.apply([entry([(0, "v", "a", minute(old), 1)])])
    assert count(kept, old, "b", "none") == 0
    count(kept, other, "of another day")
    rolled_up(kept.url)
    assert count(kept, old, "a", "b", "c", "of another day") == 1
    remembering.apply([entry([(0, "v", "b", minute(old), 1), (1, "v", "g", minute(old), 1)])])
    assert {key for _, key, _, _ in kept.slots()} == {
        *(b"a", b"b", b"of another day", b"__overflow__")
    }
    with open_tables(kept.url) as session:
        assert key_caps.prune(session) == (2, True)
    kept.store.counters.set("v", max_keys=20)
    assert count(kept, old, "g", "h", "b") == 2
    rolled_up(kept.url)
    assert kept.months() == [
        (month, key, amount)
        for key, amount in (
            (b"__overflow__", 4),
            *((b"a", 2), (b"b", 4), (b"none", 1), (b"of another day", 2)),
        )
    ]
    remembering.close()
    kept.check_ledger()


def test_a_day_that_is_not_rolled_up_has_no_room_for_keys_of_its_month(kept: Kept) -> None:
    kept.store.counters.set("v", max_keys=1)
    keep(kept, 5)
    today = day_of(0)
    kept.run(
        "INSERT INTO counter_slot (counter, bucket, counter_key, width, slot, amount)"
        " VALUES ('v', %s, 'old', 5, 0, 1)",
        today.replace(day=1),
    )
    assert count(kept, today, "a", "old") == 1


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
@pytest.mark.parametrize(
    ("resolution", "keep", "own"), [("day", "day=5d", "abcd"), ("minute", "minute=1h", "ab")]
)
def test_a_cap_is_kept_beside_retention_and_nobody_waits_in_a_circle(
    kept: Kept, resolution: Any, keep: str, own: str
) -> None:
    """Late events of old keys and of new ones, while their days are rolled up again and again.

    An open snapshot keeps InnoDB from removing the rows that are deleted. Without it two upserts
    that wait for such rows may deadlock with each other, whatever the order of locks: what each of
    them asked for becomes a lock of the gap into which the other one inserts.
    """
    kept.store.counters.set("v", resolution=resolution, keep=keep, max_keys=4)
    days = [day_of(40), day_of(41)]
    for day in days:
        count(kept, day, *own)
    rolled_up(kept.url)
    pauses: list[float] = []
    appliers = [Applier(kept.url, slot, pause=pauses.append) for slot in (1, 2, 3)]

    def late(applier: Applier, number: int) -> None:
        for turn in range(25):
            names = (*own, *(f"{number}/{turn}/{n}" for n in range(2)), f"of all/{turn}")
            rows = [
                (n, "v", name, minute(days[n % 2]) + turn, 1) for n, name in enumerate(names * 2)
            ]
            applier.apply([entry(rows)])

    kept.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    with again_and_again(partial(rolled_up, kept.url, rows=3)):
        together(*(partial(late, one, n) for n, one in enumerate(appliers)))
    kept.connection.commit()
    assert pauses == []
    rolled_up(kept.url)
    totals = kept.totals()
    assert {key: totals["v", key.encode()] for key in own} == dict.fromkeys(own, 2 + 3 * 25 * 2)
    assert sum(totals.values()) == 2 * len(own) + 3 * 25 * 2 * (len(own) + 3)
    for day in days:
        of_day = {key for bucket, key, _, _ in kept.slots() if bucket.startswith(str(day))}
        of_day |= {key for month, key, _ in kept.months() if month == day.replace(day=1)}
        assert len(of_day - {b"__overflow__"}) == 4
    kept.check_ledger()
    for applier in appliers:
        applier.close()
