"""A reconcile sets the total of each key and day, however fine the buckets are."""

import random
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import pytest

from countersink.backfill.options import Progress
from countersink.counting.counters.buckets import RESOLUTIONS, Resolution
from countersink.counting.counters.catalog import Scheme
from countersink.store import Store
from tests.backfill.helpers import COUNTER, Logs, line, long_log
from tests.backfill.helpers import DAY as DAY_TEXT
from tests.backfill.truths import Scene
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
T = TypeVar("T")
Events = Counter[tuple[int, str]]
"""(Unix minute, key) → amount."""


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_resolution_changes_while_sources_are_read(
    logs: Logs, store: Store, dry_run: bool
) -> None:
    logs.small_chunks(20)
    store.counters.set(COUNTER, resolution="minute")
    logs.add(logs.write("live", line("/0", minutes=7) + line("/live")), name="live")
    changes: list[Resolution] = ["day", "quarter", "hour"]
    read: list[int] = []

    def change(progress: Progress) -> None:
        if progress.doing == "reading" and progress.lines > 20 * len(read) and changes:
            read.append(progress.lines)
            store.counters.set(COUNTER, resolution=changes.pop())

    file = logs.write("a.log", long_log(100, keys=2))
    report = logs.reconcile(file, on_progress=change, dry_run=dry_run)
    assert (report.state, read) == ("done", [20, 40, 60])
    assert report.amount == 99
    if dry_run:
        assert {(one.width, one.key, one.delta) for one in report.drift} == {
            ("minute", "/0", -1),
            *(("minute", f"/{n}", delta) for n in range(2) for delta in (30, 20)),
        }
    else:
        assert logs.totals() == {
            (f"{DAY_TEXT} 12:00 minute", "/live"): 1,
            **{(f"{DAY_TEXT} 12:00 minute", f"/{n}"): 30 for n in range(2)},
            **{(f"{DAY_TEXT} 12:01 minute", f"/{n}"): 20 for n in range(2)},
        }


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_date_that_the_time_zone_left_out_is_no_day(
    logs: Logs, store: Store, dry_run: bool
) -> None:
    store.counters.set(COUNTER, time_zone="Pacific/Apia", resolution="minute")
    left_out = datetime(2011, 12, 30, 10, tzinfo=UTC)  # where it became the 31st
    lines = b"".join(line("/a", at=left_out + timedelta(hours=hours)) for hours in (-1, 1))
    file = logs.write("a.log", lines)
    days = date(2011, 12, 29), date(2011, 12, 31)
    report = logs.reconcile(file, start=days[0], end=days[1], dry_run=dry_run)
    assert (report.state, report.amount) == ("done", 2)
    assert not any("left out" in notice for notice in report.notices)
    if not dry_run:
        assert store.totals.daily(COUNTER) == [(days[0], 1), (date(2011, 12, 30), 0), (days[1], 1)]


@pytest.mark.random
@pytest.mark.parametrize(("zone", "resolution"), CASES)
def test_random_histories(scene: Scene, zone: str, resolution: Any) -> None:
    random_histories(scene, zone, resolution)


@pytest.mark.servers("mysql")
@pytest.mark.random
def test_a_random_history_on_mysql(scene: Scene) -> None:
    random_histories(scene, "America/New_York", "hour")


def random_histories(scene: Scene, zone: str, resolution: Any) -> None:
    """Whatever is set, the total of each key and day is what the sources say, and stands in the
    resolution in which they began to be read."""
    possible = [*RESOLUTIONS]
    if zone in ("Australia/Lord_Howe", "Asia/Kathmandu"):
        possible.remove("hour")  # these go beyond the days there
    if resolution not in possible:
        resolution = "quarter"
    for seed in range(20 if MANY else 2):
        chosen = random.Random(f"{zone} {resolution} {seed}")
        counter = f"c{seed}"
        setting = partial(scene.store.counters.set, counter)
        setting(time_zone=zone, resolution=resolution)
        first = DAYS[zone] - timedelta(days=1)
        last = DAYS[zone] + timedelta(days=chosen.randint(0, 1))
        had = Counter[tuple[date, str]]()
        # Rows of several widths, side by side.
        for _ in range(chosen.randint(1, 4)):
            some = events(chosen, zone)
            scene.count(some, counter)
            for (at, key), amount in some.items():
                had[local(zone, at), key] += amount
            setting(resolution=chosen.choice(possible))
        setting(resolution=resolution)
        run = scene.new_run(counter)
        said = Events()
        for _ in range(chosen.randint(1, 3)):
            chunk = {
                place: amount
                for place, amount in events(chosen, zone).items()
                if first <= local(zone, place[0]) <= last
            }
            scene.say(run, chunk, counter)
            for place, amount in chunk.items():
                said[place] += amount
            setting(resolution=chosen.choice(possible))
        delete_missing = chosen.random() < 0.3
        scene.correct(run, counter=counter, start=first, end=last, delete_missing=delete_missing)
        in_buckets = Counter[tuple[int, str]]()
        wanted = Counter[tuple[date, str]]()
        for (at, key), amount in said.items():
            wanted[local(zone, at), key] += amount
            in_buckets[scheme(zone, resolution).label(at), key] += amount
        known = {(local(zone, at), key) for at, key in said}
        for (day, key), amount in had.items():
            gone = delete_missing and first <= day <= last
            if not gone and (day, key) not in known:
                wanted[day, key] += amount
        found = scene.totals(counter)
        by_day = Counter[tuple[date, str]]()
        for (label, key), amount in found.items():
            day = scheme(zone, resolution).local_day(label)
            by_day[day, key] += amount
            if (day, key) in known:
                assert amount == in_buckets[label, key]
        assert nonzero(by_day) == nonzero(wanted)
        # Taken back, what was counted is there again.
        scene.undo(run)
        by_key = Counter[str]()
        for (_, key), amount in had.items():
            by_key[key] += amount
        assert nonzero(dict(scene.store.totals.by_key(counter))) == nonzero(by_key)


def nonzero(amounts: Mapping[T, int]) -> dict[T, int]:
    return {place: amount for place, amount in amounts.items() if amount}


def scheme(zone: str, resolution: Any) -> Scheme:
    return Scheme(time_zone=zone, resolution=resolution)


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
