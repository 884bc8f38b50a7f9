"""Days that are no longer kept: into months, without a total ever changing."""

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from countersink.reads import Reads
from countersink.reads.frames import frame
from countersink.schedules.jobs import Context, retention
from countersink.schedules.jobs.move import PassDone, open_tables
from countersink.schedules.jobs.ranges import BucketKey
from countersink.schedules.jobs.retention import roll_up
from countersink.schedules.options import JobOptions
from countersink.store import Store, errors
from countersink.store.apply import key_caps
from countersink.store.apply.apply import Applier
from countersink.store.sql import label_of
from tests.schedules.tables import MAX, Tables, spread
from tests.store.helpers import entry, minute, together
from tests.support.proxies import Deed, MySQLProxy, Phase, Request

KEYS = [b"", b"\xff", "ä".encode(), b"a", b"a "]


def run(url: str, rows: int = 2000) -> PassDone:
    return roll_up(partial(open_tables, url), rows=rows)


def keep(
    tables: Tables, days: int | None, counter: str = "v", rolled_up_to: date | None = None
) -> None:
    tables.run(
        "INSERT INTO counter (name, keep_days, rolled_up_to, created)"
        " VALUES (%s, %s, %s, '2020-01-01') ON DUPLICATE KEY UPDATE keep_days = %s",
        counter,
        days,
        rolled_up_to,
        days,
    )


def policy(tables: Tables, zone: str, resolution: str = "day", number: int = 0) -> None:
    since = "1970-01-01" if number == 0 else "2020-01-01"
    tables.run(
        "INSERT INTO counter_policy VALUES ('v', %s, %s, %s, %s, NULL, NULL, NULL)",
        number,
        since,
        zone,
        resolution,
    )


def rolled_up_to(tables: Tables, counter: str = "v") -> date | None:
    found: date | None = tables.run("SELECT rolled_up_to FROM counter WHERE name = %s", counter)[0][
        0
    ]
    return found


def day_of(days_ago: int, zone: str = "UTC") -> date:
    return datetime.now(ZoneInfo(zone)).date() - timedelta(days=days_ago)


def plant_days(tables: Tables, *days: date, keys: list[bytes] | None = None) -> None:
    for day in days:
        tables.plant(spread(keys or KEYS, (0, 1, 300), f"{day} 00:00:00"))


def test_a_month_of_fifty_counters_rolls_up_with_totals_unchanged(tables: Tables) -> None:
    today = day_of(0)
    names = [f"counter-{number:02d}" for number in range(50)]
    for number, name in enumerate(names):
        keep(tables, 30, name)
        tables.plant(
            (name, f"{today - timedelta(days=ago)} 00:00:00", key, slot, number + ago)
            for ago in range(20, 50, 3)
            for key in (b"a", b"\xff")
            for slot in (0, 256)
        )
    tables.plant(spread(KEYS, (1, 2), f"{today - timedelta(days=500)} 00:00:00"))
    before = tables.totals()
    done = run(tables.url, rows=7)
    assert (done.counters, done.rolled_up, done.finished) == (50, 50 * 6 * 4, True)
    tables.check(before)
    assert len(tables.slots()) == 10  # of a counter that keeps its days
    for name in names:
        assert rolled_up_to(tables, name) == today - timedelta(days=30)
        kept = {bucket for bucket, _, _, _ in tables.slots(name)}
        assert min(kept) >= f"{today - timedelta(days=30)} 00:00:00"
        assert {month for month, _, _ in tables.months(name)} == {
            (today - timedelta(days=ago)).replace(day=1) for ago in range(32, 50, 3)
        }
    assert run(tables.url).rolled_up == 0


@pytest.mark.servers("mariadb", "mysql")
def test_late_rows_follow(tables: Tables) -> None:
    keep(tables, 10)
    old = day_of(100)
    plant_days(tables, old)
    run(tables.url)
    applier = Applier(tables.url, 5)
    applier.apply([entry([(0, "v", "a", minute(old), 1000), (1, "v", "late", minute(old), 7)])])
    applier.close()
    before = tables.totals()
    assert run(tables.url).rolled_up == 2
    assert tables.slots() == []
    assert tables.totals() == before
    assert tables.totals()["v", b"late"] == 7
    tables.check_ledger()


def test_a_day_is_kept_for_so_many_days_of_the_counters_own_zone(tables: Tables) -> None:
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        tables.run("DELETE FROM counter")
        tables.run("DELETE FROM counter_policy")
        tables.run("DELETE FROM counter_slot")
        keep(tables, 7)
        policy(tables, zone)
        plant_days(tables, day_of(8, zone), day_of(7, zone))
        run(tables.url)
        assert rolled_up_to(tables) == day_of(7, zone)
        assert {bucket[:10] for bucket, _, _, _ in tables.slots()} == {str(day_of(7, zone))}


def test_each_bucket_goes_to_the_month_of_its_own_policy(tables: Tables) -> None:
    keep(tables, 30)
    policy(tables, "America/New_York", "hour")
    policy(tables, "Asia/Tokyo", "hour", number=1)
    policy(tables, "Europe/Berlin", "day", number=2)
    # The same hour is March in New York and April in Tokyo; for days the label is the date.
    tables.plant(spread([b"a"], (1,), "2020-03-31 20:00:00"))
    tables.plant(spread([b"b"], (1,), "2020-03-31 20:00:01"))
    tables.plant(spread([b"c"], (1,), "2020-04-01 00:00:02"))
    run(tables.url)
    assert tables.slots() == []
    assert [(month, key) for month, key, _ in tables.months()] == [
        (date(2020, 3, 1), b"a"),
        (date(2020, 4, 1), b"b"),
        (date(2020, 4, 1), b"c"),
    ]
    tables.check_ledger()


def test_a_bucket_that_lies_in_two_months_stays_and_is_named(tables: Tables) -> None:
    keep(tables, 30)
    policy(tables, "Asia/Kolkata", "hour")  # 5:30 ahead: midnight comes at 18:30 UTC
    tables.plant(spread([b"a"], (1, 2), "2020-03-31 18:00:00"))
    tables.plant(spread([b"a"], (1, 2), "2020-03-30 18:00:00"))
    done = run(tables.url)
    place = BucketKey("v", label_of(datetime(2020, 3, 31, 18)))  # noqa: DTZ001 (as the table has it)
    assert done.astride == [place]
    assert [bucket for bucket, _, _, _ in tables.slots()] == ["2020-03-31 18:00:00"] * 2
    assert done.rolled_up == 2


def test_a_bucket_that_lies_partly_in_a_day_that_is_kept_stays_for_now(tables: Tables) -> None:
    policy(tables, "Asia/Kolkata", "hour")
    keep(tables, None, rolled_up_to=date(2020, 3, 18))
    tables.plant(spread([b"a"], (1,), "2020-03-17 18:00:00"))  # to half past midnight of the 18th
    assert run(tables.url).rolled_up == 0
    tables.run("UPDATE counter SET rolled_up_to = '2020-03-19'")
    assert run(tables.url).rolled_up == 1


def test_what_is_gone_stays_gone_when_more_days_are_kept_or_all(tables: Tables) -> None:
    keep(tables, 10)
    plant_days(tables, day_of(12), day_of(9))
    run(tables.url)
    cutoff = rolled_up_to(tables)
    for days in (20, None):
        keep(tables, days)
        plant_days(tables, day_of(12), keys=[b"late"])  # late
        assert run(tables.url).rolled_up == 3
        assert rolled_up_to(tables) == cutoff == day_of(10)


def test_keeping_no_day_or_very_many(tables: Tables) -> None:
    plant_days(tables, day_of(2))
    keep(tables, 2**32 - 1)
    assert run(tables.url).rolled_up == 0
    keep(tables, 0)
    assert run(tables.url).rolled_up == 15
    assert rolled_up_to(tables) == day_of(0)


def test_the_day_is_announced_before_the_first_row_moves(tables: Tables) -> None:
    keep(tables, 10)
    plant_days(tables, day_of(20))
    announced: list[date | None] = []

    def look(_request: Request) -> None:
        announced.append(rolled_up_to(tables))

    with MySQLProxy.to(tables.url) as proxy:
        proxy.when("*", Phase.BEFORE, Deed.PASS, call=look, times=1, where=_is_locking)
        run(proxy.url(tables.url))
    assert announced == [day_of(10)]


@pytest.mark.servers("mariadb", "mysql")
def test_held_keys_stay_and_the_others_move_whatever_their_sums(tables: Tables) -> None:
    keep(tables, 10)
    old = datetime(2020, 3, 5, tzinfo=UTC).date()
    plant_days(tables, old, old + timedelta(days=1))
    tables.plant([("v", f"{day} 00:00:00", b"much", 1, MAX) for day in (old, date(2020, 3, 6))])
    tables.plant(spread([b"x"], (1, 2), "2020-03-05 00:00:07"))
    before = tables.totals()
    with tables.held(b"a", slot=1):
        done = run(tables.url)
        assert done.busy == [BucketKey("v", label_of(datetime(2020, 3, 5)), b"a")]  # noqa: DTZ001
        assert done.unknown == [BucketKey("v", label_of(datetime(2020, 3, 5, 0, 0, 7)))]  # noqa: DTZ001
    assert tables.totals() == before
    assert before["v", b"much"] == 2 * MAX
    assert sorted({key for _, key, _, _ in tables.slots()}) == [b"a", b"x"]
    tables.check_ledger()
    assert run(tables.url).rolled_up == 3


def test_a_day_that_is_gone_is_said_to_be_gone_and_the_whole_is_what_it_was(
    tables: Tables,
) -> None:
    keep(tables, 10)
    plant_days(tables, day_of(400), day_of(20), day_of(5))
    with Store(tables.url) as store:
        before = store.totals.total("v")
        run(tables.url)
        assert store.totals.total("v") == before == sum(tables.totals().values())
        with pytest.raises(errors.RolledUp) as refused:
            store.totals.daily("v", start=day_of(20), end=day_of(20))
        assert refused.value.rolled_up_to == day_of(10)
        (kept,) = store.totals.daily("v", start=day_of(5), end=day_of(5))
        assert kept[1] == before // 3


def roll_up_while(tables: Tables, change: Callable[[], object]) -> PassDone:
    """A pass, with a change right before the first of its moves."""
    with MySQLProxy.to(tables.url) as proxy:
        rule = proxy.when(
            "*",
            Phase.BEFORE,
            Deed.PASS,
            call=lambda _: change(),
            times=1,
            where=lambda request, _: "FROM control" in request.text and "SHARE" in request.text,
        )
        done = run(proxy.url(tables.url), rows=4)
    assert rule.acted == 1
    return done


@pytest.mark.parametrize("keep_days", [None, 10])
def test_a_counter_that_is_deleted_meanwhile_and_counted_anew_is_left_to_the_next_pass(
    tables: Tables, keep_days: int | None
) -> None:
    keep(tables, 10)
    plant_days(tables, date(2020, 3, 5), date(2020, 3, 6))
    with Store(tables.url) as store:

        def change() -> None:
            store.counters.delete("v")
            if keep_days is not None:
                store.counters.set("v", time_zone="Asia/Tokyo", keep_days=keep_days)
            applier = Applier(tables.url, 5)
            at = minute(date(2020, 3, 5))
            applier.apply([entry([(n, "v", f"k{n}", at, 100) for n in range(9)])])
            applier.close()

        assert roll_up_while(tables, change).rolled_up == 0
        assert tables.months() == []
        tables.check_ledger()
        assert store.totals.total("v") == 900
        again = run(tables.url)
        assert again.rolled_up == (0 if keep_days is None else 9)
        assert store.totals.total("v") == 900
        tables.check_ledger()


def test_a_change_of_another_counter_does_not_end_the_pass(tables: Tables) -> None:
    keep(tables, 10)
    plant_days(tables, date(2020, 3, 5), date(2020, 3, 6))
    before = tables.totals()
    with Store(tables.url) as store:
        done = roll_up_while(tables, lambda: store.counters.set("w", time_zone="Asia/Tokyo"))
    assert done.rolled_up == 30
    assert tables.slots() == []
    tables.check(before)


def test_the_end_of_time_is_in_no_month_yet_and_nothing_is_wrong_with_it(tables: Tables) -> None:
    # Two days are looked at beyond the last that is gone, as labels and dates lie apart.
    keep(tables, None, rolled_up_to=date(9999, 12, 29))
    policy(tables, "Asia/Tokyo", "hour")
    tables.plant(spread([b"a"], (1, 2), "9999-12-30 23:00:00"))
    done = run(tables.url)
    assert (done.rolled_up, done.unknown) == (0, [])


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_no_reader_sees_a_total_change(tables: Tables, level: str) -> None:
    keep(tables, 10)
    keys = [b"%03d" % number for number in range(80)]
    plant_days(tables, *(day_of(ago) for ago in range(20, 26)), keys=keys)
    before = tables.totals()
    tables.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    rolling_up = threading.Thread(target=run, args=(tables.url, 10))
    rolling_up.start()
    reads = 0
    while rolling_up.is_alive():
        tables.connection.begin()
        assert tables.totals() == before
        tables.connection.commit()
        reads += 1
    rolling_up.join()
    assert reads > 1
    assert tables.slots() == []
    tables.check(before)


def test_the_job_says_what_it_did(tables: Tables) -> None:
    keep(tables, 10)
    plant_days(tables, day_of(20))

    def context(stop: bool) -> Context:
        return Context(
            mysql_url=tables.url,
            redis_url="redis://127.0.0.1:1",
            options=JobOptions(compact_share=1.0, compact_rows=4),
            stop=lambda: stop,
        )

    assert "stopped early" in retention.job(context(True)).detail
    done = retention.job(context(False))
    assert done.rows == 15
    moved = "5 rows of 1 counters rolled up into wider buckets and months"
    assert done.detail == f"all buckets: 15 rows became 5; {moved}"


def _is_locking(request: Request, _reply: bytes) -> bool:
    return "FOR UPDATE NOWAIT" in request.text


def apply(tables: Tables, day: date, *names: str) -> int:
    """Count 1 for each key by a worker that remembers nothing; how many had no room."""
    applier = Applier(tables.url, 5)
    try:
        rows = [(n, "v", name, minute(day), 1) for n, name in enumerate(names)]
        return applier.apply([entry(rows)]).overflown
    finally:
        applier.close()


def test_of_a_day_that_is_rolled_up_no_key_is_made_and_those_of_its_month_go_on(
    tables: Tables,
) -> None:
    with Store(tables.url) as store:
        store.counters.set("v", keep_days=5, max_keys=3)
    old = day_of(40)
    month, other = old.replace(day=1), old.replace(day=1) + timedelta(days=old.day == 1)
    remembering = Applier(tables.url, 9)
    remembering.apply([entry([(0, "v", "a", minute(old), 1)])])
    assert apply(tables, old, "b", "none") == 0
    apply(tables, other, "of another day")
    run(tables.url)
    assert apply(tables, old, "a", "b", "c", "of another day") == 1
    remembering.apply([entry([(0, "v", "b", minute(old), 1), (1, "v", "g", minute(old), 1)])])
    assert {key for _, key, _, _ in tables.slots()} == {
        *(b"a", b"b", b"of another day", b"__overflow__")
    }
    with open_tables(tables.url) as session:
        assert key_caps.prune(session) == (2, True)
    with Store(tables.url) as store:
        store.counters.set("v", max_keys=20)
    assert apply(tables, old, "g", "h", "b") == 2
    run(tables.url)
    assert tables.months() == [
        (month, key, amount)
        for key, amount in (
            (b"__overflow__", 4),
            *((b"a", 2), (b"b", 4), (b"none", 1), (b"of another day", 2)),
        )
    ]
    remembering.close()
    tables.check_ledger()


def test_a_day_that_is_not_rolled_up_has_no_room_for_keys_of_its_month(tables: Tables) -> None:
    with Store(tables.url) as store:
        store.counters.set("v", max_keys=1)
    keep(tables, 5)
    kept = day_of(0)
    tables.run(
        "INSERT INTO counter_month (counter, bucket, counter_key, amount)"
        " VALUES ('v', %s, 'old', 1)",
        kept.replace(day=1),
    )
    assert apply(tables, kept, "a", "old") == 1


@pytest.mark.servers("mariadb", "mysql")
def test_workers_with_a_cap_and_retention_never_wait_in_a_circle(tables: Tables) -> None:
    """Late events of old keys and of new ones, while their days are rolled up again and again.

    An open snapshot keeps InnoDB from removing the rows that are deleted. Without it two upserts
    that wait for such rows may deadlock with each other, whatever the order of locks: what each of
    them asked for becomes a lock of the gap into which the other one inserts.
    """
    most, own = 4, ("a", "b", "c", "d")
    with Store(tables.url) as store:
        store.counters.set("v", keep_days=5, max_keys=most)
    days = [day_of(40), day_of(41)]
    for day in days:
        apply(tables, day, *own)
    run(tables.url)
    pauses: list[float] = []
    appliers = [Applier(tables.url, slot, pause=pauses.append) for slot in (1, 2, 3)]
    stop = threading.Event()

    def roll() -> None:
        while not stop.is_set():
            run(tables.url, rows=3)

    def count(applier: Applier, number: int) -> None:
        for turn in range(25):
            names = (*own, *(f"{number}/{turn}/{n}" for n in range(2)), f"of all/{turn}")
            rows = [(n, "v", name, minute(days[n % 2]), 1) for n, name in enumerate(names * 2)]
            applier.apply([entry(rows)])

    tables.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    rolling = threading.Thread(target=roll)
    rolling.start()
    try:
        together(*(partial(count, one, n) for n, one in enumerate(appliers)))
    finally:
        stop.set()
        rolling.join(60)
    tables.connection.commit()
    assert pauses == []
    totals = tables.totals()
    assert {key: totals["v", key.encode()] for key in own} == dict.fromkeys(own, 2 + 3 * 25 * 2)
    assert sum(totals.values()) == 8 + 3 * 25 * 14
    in_months = {key for _, key, _ in tables.months()}
    for day in days:
        new = {key for bucket, key, _, _ in tables.slots() if bucket.startswith(str(day))}
        assert len(new - in_months - {b"__overflow__"}) <= most
    tables.check_ledger()
    for applier in appliers:
        applier.close()


@pytest.mark.parametrize("bounded", [False, True])
def test_a_series_without_a_start_leaves_nothing_out_unasked(tables: Tables, bounded: bool) -> None:
    end = day_of(0) if bounded else None
    keep(tables, 10)
    tables.run(
        "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
        " VALUES ('v', %s, 'k', 1, 20), ('v', %s, 'k', 1, 20)",
        day_of(60),
        day_of(1),
    )
    run(tables.url)
    with Store(tables.url) as store:
        assert store.totals.total("v") == 40
        reads = Reads(store, None)
        asked: list[Callable[[], object]] = [
            lambda: store.totals.daily("v", end=end),
            lambda: reads.daily("v", end=end),
            *(partial(frame, store, "v", by=by, end=end) for by in ("day", "hour", "key-day")),
            lambda: store.totals.hourly("v", end=end),
        ]
        for ask in asked:
            with pytest.raises(errors.RolledUp, match="rolled up to months") as refused:
                ask()
            first = refused.value.rolled_up_to
            assert first == day_of(10)
        assert sum(total for _, total in store.totals.daily("v", start=first)) == 20
        assert sum(frame(store, "v", by="day", start=first).total) == 20
        assert sum(total for _, total in reads.daily("v", unrolled=True).value) == 20
        assert sum(total for _, total in store.totals.monthly("v")) == 40
        assert sum(frame(store, "v", by="key-month").total) == 40
