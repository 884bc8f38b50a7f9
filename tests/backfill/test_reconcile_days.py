"""A reconcile sets the total of each key and day, however fine the buckets are."""

import random
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from countersink.store import Store
from countersink.store.apply import dead
from countersink.store.counters.buckets import WIDTH
from countersink.stream.entry import new_entry_id
from tests.backfill import truths
from tests.backfill.helpers import COUNTER, NOON, Logs, line
from tests.backfill.truths import DAY, Scene, hour_ago
from tests.store.helpers import entry, minute
from tests.support.examples import MANY

pytestmark = pytest.mark.usefixtures("store")

DAYS = {
    "UTC": date(2026, 3, 14),
    "Europe/Berlin": date(2026, 3, 29),
    "America/New_York": date(2026, 3, 8),
    "Australia/Lord_Howe": date(2026, 4, 5),
    "Asia/Kathmandu": date(2026, 3, 14),
    "Pacific/Kiritimati": date(2026, 3, 14),
    "America/Santiago": date(2026, 4, 5),
}
"""Zones, and a day on which clocks change in most of them."""
CASES = [
    (zone, resolution)
    for number, zone in enumerate(DAYS)
    for place, resolution in enumerate(("minute", "quarter", "hour"))
    if MANY or number % 3 == place
]
KEYS = ["", "a", "b", "ä"]
Events = Counter[tuple[int, str]]
"""(Unix minute, key) → amount."""


@pytest.mark.parametrize("resolution", ["minute", "quarter", "hour", "day"])
def test_the_other_buckets_of_a_key_and_day_go_too(
    logs: Logs, store: Store, resolution: Any
) -> None:
    store.counters.set(COUNTER, resolution=resolution)
    live = logs.write("live", line("/a", minutes=7) + line("/a", minutes=180) * 3)
    logs.add(live, name="live")
    file = logs.write("log", line("/a", minutes=68) + line("/a", minutes=181) * 3)
    day = NOON.date()
    dry = logs.reconcile(file, start=day, end=day, dry_run=True)
    report = logs.reconcile(file, start=day, end=day)
    assert (dry.corrections, dry.amount) == (report.corrections, report.amount)
    assert report.amount == 0
    assert sum(logs.totals().values()) == 4
    assert logs.reconcile(file, start=day, end=day).corrections == 0


def test_what_was_accepted_before_counts_in_no_bucket_of_the_days(scene: Scene) -> None:
    scene.store.counters.set("views", resolution="minute")
    run = scene.said_by({(minute(DAY, 500), "/"): 9})
    t0 = hour_ago()
    scene.correct(run, t0, start=DAY, end=DAY)
    spooled = entry(
        [(0, "views", "/", minute(DAY, 900), 8)], id=bytes.fromhex(new_entry_id(t0 - 86_400_000))
    )
    assert scene.applier.apply([spooled]).dead == 1
    assert dead.count(scene.session) == {"reconciled": 1}
    assert scene.store.totals.total("views") == 9


@pytest.mark.random
@pytest.mark.parametrize(("zone", "resolution"), CASES)
def test_random_histories(scene: Scene, zone: str, resolution: Any) -> None:
    random_histories(scene, zone, resolution)


@pytest.mark.servers("mysql")
@pytest.mark.random
def test_a_random_history_on_mysql(scene: Scene) -> None:
    random_histories(scene, "America/New_York", "hour")


def random_histories(scene: Scene, zone: str, resolution: Any) -> None:
    """Whatever is set, the total of each key and day is what the sources say."""
    if resolution == "hour" and zone in ("Australia/Lord_Howe", "Asia/Kathmandu"):
        resolution = "quarter"  # hours go beyond the days there
    for seed in range(20 if MANY else 1):
        chosen = random.Random(f"{zone} {resolution} {seed}")
        counter = f"c{seed}"
        scene.store.counters.set(counter, time_zone=zone, resolution=resolution)
        first = DAYS[zone] - timedelta(days=1)
        last = DAYS[zone] + timedelta(days=chosen.randint(0, 1))
        had, said = events(chosen, zone), events(chosen, zone)
        in_days = {place for place in said if first <= local(zone, place[0]) <= last}
        truths.count(scene.applier, had, counter)
        run = truths.said_by(scene.session, {place: said[place] for place in in_days}, counter)
        delete_missing = chosen.random() < 0.3
        scene.correct(run, counter=counter, start=first, end=last, delete_missing=delete_missing)
        known = {(local(zone, at), key) for at, key in in_days}
        wanted = Counter[tuple[int, str]]()
        for (at, key), amount in had.items():
            day = local(zone, at)
            gone = delete_missing and first <= day <= last
            if not gone and (day, key) not in known:
                wanted[bucket(resolution, at), key] += amount
        for at, key in in_days:
            wanted[bucket(resolution, at), key] += said[at, key]
        assert {place: n for place, n in truths.totals(scene.session, counter).items() if n} == {
            place: n for place, n in wanted.items() if n
        }


def events(chosen: random.Random, zone: str) -> Events:
    """Some events of the five days around a zone's; many beside midnights and changes of clocks."""
    found = Events()
    for _ in range(chosen.randint(1, 60)):
        day = DAYS[zone] + timedelta(days=chosen.randint(-2, 2))
        hour = chosen.choice([0, 1, 2, 3, 22, 23, chosen.randrange(24)])
        at = datetime.combine(day, time(hour, chosen.randrange(60)), ZoneInfo(zone))
        found[int(at.timestamp()) // 60, chosen.choice(KEYS)] += chosen.choice([1, 2, -1, 10**12])
    return found


def local(zone: str, at: int) -> date:
    return datetime.fromtimestamp(at * 60, UTC).astimezone(ZoneInfo(zone)).date()


def bucket(resolution: Any, at: int) -> int:
    width = WIDTH[resolution]
    return at // width * width * 60
