"""Which buckets and keys a pass of compaction takes, and what it says of them."""

import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest

from countersink.counting.errors import UnknownCounter
from countersink.database.errors import UnknownZone
from countersink.runtime.retry import Pace
from countersink.schedules.jobs import Context, compaction, retention
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import PassDone, open_tables
from countersink.schedules.jobs.ranges import BucketKey
from tests.schedules.tables import DAY, LABEL, Kept, Tables, spread
from tests.support.entries import minute

PAGES = [b"/%03d" % number for number in range(60)]


def run(url: str, **selected: object) -> PassDone:
    return compact(partial(open_tables, url), CompactOptions(**selected))  # type: ignore[arg-type]


def today(days_ago: int = 0) -> str:
    day = datetime.now(UTC).date() - timedelta(days=days_ago)
    return f"{day} 00:00:00 4"


def test_a_closed_bucket_is_left_with_one_row_per_key(tables: Tables) -> None:
    tables.plant(spread(PAGES, (1, 2, 3, 4)))
    before = tables.totals()
    done = run(tables.url, rows=37)
    assert (done.rows_before, done.rows_after, done.finished) == (240, 60, True)
    assert done.share == 1.0
    assert [slot for _, _, slot, _ in tables.slots()] == [0] * 60
    tables.check(before)
    again = run(tables.url)
    assert (again.rows_before, again.rows_after, again.finished) == (0, 0, True)


def test_what_workers_applied_and_apps_and_late_events_are_compacted(kept: Kept) -> None:
    at = minute(date(2020, 3, 5))
    for slot in (1, 2, 3):
        kept.apply([(0, "v", "a", at, slot), (1, "w", "b", at, 1)], slot)
    kept.plant([("app", DAY, b"a", slot, 5) for slot in (256, 1024)])
    assert run(kept.url).rows_after == 3
    for counter in ("v", "w"):
        kept.apply([(0, counter, "a", at, 10)], 9)
    assert run(kept.url, counter="v").rows_before == 2
    assert kept.slots() == [(DAY, b"a", 0, 16)]
    assert kept.store.totals.counters() == {"app": 10, "v": 16, "w": 13}
    kept.check_ledger()


def test_an_open_bucket_loses_its_crowded_keys_only(tables: Tables) -> None:
    tomorrow = today(-1)  # dated ahead, and open also if midnight comes
    tables.plant(spread([b"crowded", b"dense"], range(1, 10), tomorrow))
    tables.plant(spread([b"calm", b"few", b"zero"], range(1, 9), tomorrow))
    done = run(tables.url, threshold=8, rows=4)
    assert (done.rows_before, done.rows_after) == (18, 2)
    rows = Counter(key for _, key, _, _ in tables.slots())
    assert rows == {b"crowded": 1, b"dense": 1, b"calm": 8, b"few": 8, b"zero": 8}
    tables.check_ledger()


def test_a_bucket_is_closed_only_after_the_grace_period(tables: Tables) -> None:
    tables.plant(spread([b"a"], (1, 2), today(1)))
    since_midnight = time.time() % 86_400
    assert run(tables.url, grace_s=since_midnight + 600).rows_before == 0
    assert run(tables.url, grace_s=0.0).rows_before == 2


def test_when_a_bucket_is_over_is_for_its_width_and_time_zone_to_say(tables: Tables) -> None:
    now = datetime.now(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0)
    tables.run(
        "INSERT INTO counter (name, time_zone, resolution, counted_day, created)"
        " VALUES ('v', 'Pacific/Kiritimati', 'hour', '9000-01-01', NOW())"
    )
    over = (hour - timedelta(hours=1)).strftime("%Y-%m-%d %H:00:00 3")
    going_on = (hour + timedelta(hours=1)).strftime("%Y-%m-%d %H:00:00 3")
    # A day of 14 hours ahead of UTC that has ended there, and one that has not, whatever the hour.
    local = (now + timedelta(hours=14)).date()
    ended, current = (f"{local + timedelta(days=n)} 00:00:00 4" for n in (-1, 1))
    for bucket in (over, going_on, ended, current):
        tables.plant(spread([b"a"], (1, 2), bucket))
    run(tables.url, grace_s=0.0)
    slots = {bucket: slot for bucket, _, slot, _ in tables.slots()}
    assert slots == {over: 0, going_on: 2, ended: 0, current: 2}


def test_before_a_day_takes_its_buckets_whole_and_no_others(tables: Tables) -> None:
    for bucket in (today(2), today(1), today()):
        tables.plant(spread([b"a"], range(1, 12), bucket))
    yesterday = date.fromisoformat(today(1)[:10])
    done = run(tables.url, before=yesterday, grace_s=1e9)
    assert (done.rows_before, done.rows_after) == (11, 1)
    assert len(tables.slots()) == 1 + 11 + 11
    assert run(tables.url, before=date.max).rows_before == 22


@pytest.mark.parametrize("name", ["nothing", "v ", "V"])
def test_an_unknown_counter_is_an_error(tables: Tables, name: str) -> None:
    tables.plant(spread([b"a"], (1, 2)))
    with pytest.raises(UnknownCounter, match="neither created nor ever counted"):
        run(tables.url, counter=name)


def test_a_time_zone_that_is_unknown_here_leaves_out_its_counter_alone(tables: Tables) -> None:
    tables.run("INSERT INTO counter (name, time_zone, created) VALUES ('m', 'Mars/Phobos', NOW())")
    tables.plant((name, DAY, b"a", slot, 1) for name in ("a", "m", "z") for slot in (1, 2))
    with pytest.raises(UnknownZone, match="Mars/Phobos"):
        run(tables.url)
    assert [len(tables.slots(name)) for name in ("a", "m", "z")] == [1, 2, 1]


def test_a_stopped_pass_leaves_the_rest_to_the_next(tables: Tables) -> None:
    tables.plant(spread(PAGES, (1, 2, 3)))
    seen: list[PassDone] = []
    selected = CompactOptions(rows=30)
    connect_to = partial(open_tables, tables.url)
    before = tables.totals()
    done = compact(connect_to, selected, stop=lambda: len(seen) > 1, progress=seen.append)
    assert not done.finished
    assert 0 < done.rows_before < 180
    assert tables.totals() == before
    assert compact(connect_to, selected).rows_before == 180 - done.rows_before
    assert len(tables.slots()) == 60


READS = ("Handler_read_key", "Handler_read_next", "Handler_read_rnd_next")
"""Names of what counts the rows of tables that the server has read."""


def status(tables: Tables, *names: str) -> int:
    """The sum of these of the server's counters, for anybody."""
    found = tables.run("SHOW GLOBAL STATUS WHERE Variable_name IN %s", names)
    return sum(int(number) for _, number in found)


def test_the_number_of_statements_does_not_grow_with_counters_of_which_there_is_nothing_to_do(
    tables: Tables,
) -> None:
    names = [f"c{number:03d}" for number in range(600)]
    tables.plant(
        (name, bucket, b"a", slot, 1)
        for name in names
        for bucket, slot in ((DAY, 0), (today(1), 0), (today(-1), 1))  # the last is open
    )
    dirty = ("c007", "c300", "c599")
    tables.plant((name, DAY, b"a", slot, 1) for name in dirty for slot in (5, 6))
    crowded = ("c008", "c300")
    tables.plant((name, today(-1), b"a", slot, 1) for name in crowded for slot in range(2, 12))
    before = tables.totals()
    asked = status(tables, "Questions")
    done = run(tables.url)
    asked = status(tables, "Questions") - asked
    assert (done.rows_before, done.rows_after) == (3 * 3 + 2 * 11, 5)
    assert (done.finished, done.share) == (True, 1.0)
    tables.check(before)
    assert asked < len(names) // 2


def test_a_recent_pass_reads_no_buckets_from_before(tables: Tables) -> None:
    names = [f"c{number:02d}" for number in range(40)]
    keys = [b"%03d" % number for number in range(250)]
    tables.plant((name, DAY, key, 0, 1) for name in names for key in keys)
    tables.plant((name, today(2), b"a", slot, 1) for name in names[::8] for slot in (1, 2))
    tables.run("ANALYZE TABLE counter_slot")
    before = status(tables, *READS)
    assert run(tables.url, recent_days=3).rows_before == 10
    assert status(tables, *READS) - before < 40 * 250 // 4


def test_buckets_of_each_width_and_of_none_are_found_among_many_keys(tables: Tables) -> None:
    tables.plant(
        (name, f"{DAY[:-1]}{width}", b"%d" % key, slot, 1)
        for name, widths in (("c0", (1, 4)), ("c1", (3, 5)), ("c2", (4, 7)))
        for width in widths
        for key in range(2 if name == "c0" else 6000)
        for slot in ((0, 3) if width < 5 and key < 2 else (0,))
    )
    before = tables.totals()
    done = run(tables.url)
    assert (done.rows_before, done.rows_after) == (16, 8)
    assert done.unknown == [BucketKey("c2", LABEL + 3)]
    tables.check(before)


def test_the_job_looks_at_the_last_days_and_retention_at_everything(
    tables: Tables, context: Context
) -> None:
    tables.plant(spread(PAGES, (1, 2, 3)))
    tables.plant(spread([b"x"], (1, 2), today(2)))
    recent = compaction.job(context)
    assert recent.rows == 1
    assert recent.detail == "buckets of the last 3 days: 2 rows became 1"
    all_of_them = retention.job(context)
    assert all_of_them.rows == 120
    assert all_of_them.detail.startswith("all buckets: 180 rows became 60; 0 rows of 0 counters")


def test_a_pace_rests_nine_tenths_of_the_time_at_a_share_of_a_tenth_and_not_once_stopped() -> None:
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = partial(Pace, clock=lambda: now[0], sleep=sleep)
    resting = pace(0.1)
    for worked in (0.01, 0.02):
        now[0] += worked
        resting.rest()
    assert sum(slept) == pytest.approx(0.27)
    assert max(slept) <= 0.05
    slept.clear()
    for restless in (pace(1.0), pace(0.1, lambda: True)):
        now[0] += 5.0
        restless.rest()
    assert slept == []
    with pytest.raises(ValueError, match="share"):
        pace(0.0)
