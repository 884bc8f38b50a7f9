"""Days that are no longer kept: into months, without a total ever changing."""

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from countersink.reads.frames import frame
from countersink.schedules.jobs import Context, retention
from countersink.schedules.jobs.move import PassDone, open_tables
from countersink.schedules.jobs.ranges import BucketKey
from countersink.schedules.jobs.retention import roll_up
from countersink.schedules.options import JobOptions
from countersink.store import Store, errors
from countersink.store.apply import key_caps
from countersink.store.apply.apply import Applier
from tests.schedules.tables import LABEL, MAX, Tables, label_at, spread
from tests.store.helpers import entry, minute, together
from tests.support.asking import Asking
from tests.support.proxies import Deed, MySQLProxy, Phase, Request

KEYS = [b"", b"\xff", "ä".encode(), b"a", b"a "]


def run(url: str, rows: int = 2000) -> PassDone:
    return roll_up(partial(open_tables, url), rows=rows)


def keep(
    tables: Tables,
    days: int | None,
    counter: str = "v",
    *,
    zone: str = "UTC",
    resolution: str = "day",
    rolled_month: str | None = None,
) -> None:
    tables.run(
        "INSERT INTO counter (name, keep_steps, time_zone, resolution, rolled_month, created)"
        " VALUES (%s, %s, %s, %s, %s, '2020-01-01')"
        " ON DUPLICATE KEY UPDATE keep_steps = VALUES(keep_steps)",
        counter,
        None if days is None else f"day={days}d",
        zone,
        resolution,
        rolled_month,
    )


def rolled_up_to(tables: Tables, counter: str = "v", zone: str = "UTC") -> date | None:
    found: datetime | None
    ((found,),) = tables.run("SELECT rolled_month FROM counter WHERE name = %s", counter)
    return None if found is None else found.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).date()


def day_of(days_ago: int, zone: str = "UTC") -> date:
    return datetime.now(ZoneInfo(zone)).date() - timedelta(days=days_ago)


def month_of(days_ago: int, zone: str = "UTC") -> date:
    """The first of the month of that day: days before it are rolled up if so many are kept."""
    return day_of(days_ago, zone).replace(day=1)


def plant_days(tables: Tables, *days: date, keys: list[bytes] | None = None) -> None:
    for day in days:
        tables.plant(spread(keys or KEYS, (0, 1, 300), f"{day} 00:00:00 4"))


def test_a_month_of_fifty_counters_rolls_up_with_totals_unchanged(tables: Tables) -> None:
    today, first = day_of(0), month_of(30)
    days = [today - timedelta(days=ago) for ago in range(20, 99, 7)]
    gone = [day for day in days if day < first]
    names = [f"counter-{number:02d}" for number in range(50)]
    for number, name in enumerate(names):
        keep(tables, 30, name)
        tables.plant(
            (name, f"{day} 00:00:00 4", key, slot, number + day.day)
            for day in days
            for key in (b"a", b"\xff")
            for slot in (0, 256)
        )
    tables.plant(spread(KEYS, (1, 2), f"{today - timedelta(days=500)} 00:00:00 4"))
    before = tables.totals()
    done = run(tables.url, rows=7)
    assert (done.counters, done.rolled_up, done.finished) == (50, 50 * len(gone) * 4, True)
    tables.check(before)
    assert len(tables.slots()) == 10  # of a counter that keeps its days
    for name in names:
        assert rolled_up_to(tables, name) == first
        kept = {bucket[:10] for bucket, _, _, _ in tables.slots(name)}
        assert kept == {str(day) for day in days if day >= first}
        months = {month for month, _, _ in tables.months(name)}
        assert months == {day.replace(day=1) for day in gone}
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


def test_months_end_in_the_counters_own_zone(tables: Tables) -> None:
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        tables.run("DELETE FROM counter")
        tables.run("DELETE FROM counter_slot")
        keep(tables, 7, zone=zone)
        first = month_of(7, zone)
        plant_days(tables, first - timedelta(days=1), first)
        run(tables.url)
        assert rolled_up_to(tables, zone=zone) == first
        assert {bucket[:10] for bucket, _, _, _ in tables.slots()} == {str(first)}


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
    tables: Tables, zone: str, bucket: str, month: date
) -> None:
    keep(tables, 30, zone=zone)
    tables.plant(spread([b"a"], (1, 300), bucket))
    run(tables.url)
    assert tables.slots() == []
    assert tables.months() == [(month, b"a", 301)]
    tables.check_ledger()


def test_a_bucket_that_lies_in_two_months_stays_and_is_named(tables: Tables) -> None:
    # 5:30 ahead: midnight comes at 18:30 UTC.
    keep(tables, None, zone="Asia/Kolkata", resolution="hour", rolled_month="2020-03-31 18:30:00")
    astride = "2020-03-31 18:00:00 3"
    tables.plant(spread([b"a"], (1, 2), astride))
    tables.plant(spread([b"a"], (1, 2), "2020-03-30 18:00:00 3"))
    done = run(tables.url)
    assert (done.astride, done.rolled_up) == ([], 2)  # it is not over yet
    tables.run("UPDATE counter SET rolled_month = '2020-04-30 18:30:00'")
    done = run(tables.url)
    assert (done.astride, done.rolled_up) == ([BucketKey("v", label_at(astride))], 0)
    assert [bucket for bucket, _, _, _ in tables.slots()] == [astride] * 2


def test_what_is_gone_stays_gone_when_more_days_are_kept_or_all(tables: Tables) -> None:
    keep(tables, 10)
    plant_days(tables, day_of(50), day_of(9))
    run(tables.url)
    for days in (100, None):
        keep(tables, days)
        plant_days(tables, day_of(50), keys=[b"late"])
        assert run(tables.url).rolled_up == 3
        assert rolled_up_to(tables) == month_of(10)


def test_keeping_one_day_or_very_many(tables: Tables) -> None:
    plant_days(tables, day_of(40))
    for days in (100_000, 0):  # the latter means nothing
        keep(tables, days)
        assert run(tables.url).rolled_up == 0
    keep(tables, 1)
    assert run(tables.url).rolled_up == 15
    assert rolled_up_to(tables) == month_of(1)


def test_the_day_is_announced_before_the_first_row_moves(tables: Tables) -> None:
    keep(tables, 10)
    plant_days(tables, day_of(50))
    announced: list[date | None] = []

    def look(_request: Request) -> None:
        announced.append(rolled_up_to(tables))

    with MySQLProxy.to(tables.url) as proxy:
        proxy.when("*", Phase.BEFORE, Deed.PASS, call=look, times=1, where=_is_locking)
        run(proxy.url(tables.url))
    assert announced == [month_of(10)]


@pytest.mark.servers("mariadb", "mysql")
def test_held_keys_stay_and_the_others_move_whatever_their_sums(tables: Tables) -> None:
    keep(tables, 10)
    old = datetime(2020, 3, 5, tzinfo=UTC).date()
    plant_days(tables, old, old + timedelta(days=1))
    tables.plant([("v", f"{day} 00:00:00 4", b"much", 1, MAX) for day in (old, date(2020, 3, 6))])
    tables.plant(spread([b"x"], (1, 2), "2020-03-05 00:00:00 0"))
    before = tables.totals()
    with tables.held(b"a", slot=1):
        done = run(tables.url)
        assert done.busy == [BucketKey("v", LABEL, b"a")]
        assert done.unknown == [BucketKey("v", label_at("2020-03-05 00:00:00 0"))]
    assert tables.totals() == before
    assert before["v", b"much"] == 2 * MAX
    assert sorted({key for _, key, _, _ in tables.slots()}) == [b"a", b"x"]
    tables.check_ledger()
    assert run(tables.url).rolled_up == 3


def test_a_day_that_is_gone_is_said_to_be_gone_and_the_whole_is_what_it_was(
    tables: Tables,
) -> None:
    keep(tables, 10)
    plant_days(tables, day_of(400), day_of(50), day_of(5))
    with Store(tables.url) as store:
        before = store.totals.total("v")
        run(tables.url)
        assert store.totals.total("v") == before == sum(tables.totals().values())
        with pytest.raises(errors.RolledUp) as refused:
            store.totals.daily("v", start=day_of(50), end=day_of(50))
        assert refused.value.rolled_up_to == month_of(10)
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
            skip=1,  # of what is announced
            times=1,
            where=lambda request, _: "FROM control" in request.text and "SHARE" in request.text,
        )
        done = run(proxy.url(tables.url), rows=4)
    assert rule.acted == 1
    return done


@pytest.mark.parametrize("kept", [None, "day=10d"])
def test_a_counter_that_is_deleted_meanwhile_and_counted_anew_is_left_to_the_next_pass(
    tables: Tables, kept: str | None
) -> None:
    keep(tables, 10)
    plant_days(tables, date(2020, 3, 5), date(2020, 3, 6))
    with Store(tables.url) as store:

        def change() -> None:
            store.counters.delete("v")
            if kept is not None:
                store.counters.set("v", keep=kept)
            applier = Applier(tables.url, 5)
            at = minute(date(2020, 3, 5))
            applier.apply([entry([(n, "v", f"k{n}", at, 100) for n in range(9)])])
            applier.close()

        assert roll_up_while(tables, change).rolled_up == 0
        assert tables.months() == []
        tables.check_ledger()
        assert store.totals.total("v") == 900
        again = run(tables.url)
        assert again.rolled_up == (0 if kept is None else 9)
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


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_no_reader_sees_a_total_change(tables: Tables, level: str) -> None:
    keep(tables, 10)
    keys = [b"%03d" % number for number in range(80)]
    plant_days(tables, *(day_of(ago) for ago in range(50, 56)), keys=keys)
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
    plant_days(tables, day_of(50))

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
    moved = "5 rows of 1 counters rolled up into wider buckets"
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
        store.counters.set("v", keep="day=5d", max_keys=3)
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
        "INSERT INTO counter_slot (counter, bucket, counter_key, width, slot, amount)"
        " VALUES ('v', %s, 'old', 5, 0, 1)",
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
        store.counters.set("v", keep="day=5d", max_keys=most)
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
        reads = Asking(store, None)
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
            assert first == month_of(10)
        assert sum(total for _, total in store.totals.daily("v", start=first)) == 20
        assert sum(frame(store, "v", by="day", start=first).total) == 20
        assert sum(total for _, total in reads.daily("v", unrolled=True).value) == 20
        assert sum(total for _, total in store.totals.monthly("v")) == 40
        assert sum(frame(store, "v", by="key-month").total) == 40
