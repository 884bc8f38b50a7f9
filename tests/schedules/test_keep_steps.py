"""Buckets that are no longer kept so fine: into wider ones, without a total ever changing."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.schedules.jobs.move import PassDone, open_tables
from countersink.schedules.jobs.ranges import BucketKey
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.connection import connect as open_session
from countersink.store.errors import InexactZone, Refused
from countersink.store.sql import unix_seconds
from countersink.store.verify import open_session as open_for_verify
from countersink.store.verify import verify
from tests.schedules.tables import MAX, Tables, label_at
from tests.store.helpers import entry, together
from tests.support.examples import MANY, examples
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.traffic import now_minute
from tests.support.waiting import eventually

KEYS = ("", "a", "a ", "ä", "/page")
WIDTH = {"minute": 1, "quarter": 15, "hour": 60, "day": 1440}
WIDTHS = [*WIDTH, "month"]
UNITS = {"m": 1, "h": 60, "d": 1440}
Event = tuple[str, int]
"""(key, Unix minute)."""


class Kept(Tables):
    """The tables, with a store and the applier of a worker."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store = Store(url)
        self.applier = Applier(url, 5)

    def keep_minutes(self, steps: str = "minute=2d,hour=90d", **more: Any) -> None:
        """``v`` counts minutes, and keeps them for so long."""
        self.store.counters.set("v", resolution="minute", keep=steps, **more)

    def count(self, events: dict[Event, int], counter: str = "v") -> None:
        """Count events as a worker does."""
        rows = [
            (n, counter, key, at, amount) for n, ((key, at), amount) in enumerate(events.items())
        ]
        self.applier.apply([entry(rows)])

    def close(self) -> None:
        """Close the connections."""
        self.applier.close()
        self.store.close()
        super().close()


@pytest.fixture
def tables(mysql_url: str) -> Iterator[Kept]:
    made = Kept(mysql_url)
    yield made
    made.close()


def run(url: str, rows: int = 2000) -> PassDone:
    return roll_up(partial(open_tables, url), rows=rows)


def rolled_to(tables: Tables, counter: str = "v") -> dict[str, int]:
    """By width up to which Unix minute finer buckets are rolled up to such."""
    columns = ", ".join(f"rolled_{width}" for width in WIDTHS[1:])
    (times,) = tables.run(f"SELECT {columns} FROM counter WHERE name = %s", counter)
    return {
        width: unix_seconds(time) // 60
        for width, time in zip(WIDTHS[1:], times, strict=True)
        if time is not None
    }


def verified(url: str) -> list[str]:
    with open_for_verify(url) as session:
        return [f"{one.problem}: {one.detail}" for one in verify(session).differences]


def midnight(zone: str, at: int, day: int | None = None) -> int:
    """The Unix minute at which the local day of a Unix minute began, or such a day of its month."""
    local = datetime.fromtimestamp(at * 60, ZoneInfo(zone)).date()
    return (
        int(datetime(local.year, local.month, day or local.day, tzinfo=ZoneInfo(zone)).timestamp())
        // 60
    )


def begins(width: str, zone: str, at: int) -> int:
    """The Unix minute at which the bucket of a Unix minute begins."""
    if width in WIDTH and width != "day":
        return at // WIDTH[width] * WIDTH[width]
    return midnight(zone, at, 1 if width == "month" else None)


def label(width: str, zone: str, at: int) -> str:
    """The bucket of a Unix minute, as the tests name it."""
    if width in WIDTH and width != "day":
        time = datetime(1970, 1, 1) + timedelta(minutes=begins(width, zone, at))  # noqa: DTZ001
    else:
        time = datetime.fromtimestamp(at * 60, ZoneInfo(zone)).replace(hour=0, minute=0, second=0)
        time = time.replace(tzinfo=None, day=1 if width == "month" else time.day)
    return f"{time} {WIDTHS.index(width) + 1}"


class Oracle:
    """What was counted, and where all of it must be, by no code of the product's."""

    def __init__(self, tables: Tables, zone: str, steps: str) -> None:
        self.tables = tables
        self.zone = zone
        self.steps = [
            (width, int(age[:-1]) * UNITS[age[-1]])
            for width, _, age in (one.partition("=") for one in steps.split(","))
        ]
        self.events: Counter[tuple[str, Event]] = Counter()

    def add(self, resolution: str, events: dict[Event, int]) -> None:
        for event, amount in events.items():
            self.events[resolution, event] += amount

    def by_day(self) -> Counter[tuple[date, str]]:
        found = Counter[tuple[date, str]]()
        for (_, (key, at)), amount in self.events.items():
            found[datetime.fromtimestamp(at * 60, ZoneInfo(self.zone)).date(), key] += amount
        return found

    def check_totals(self) -> None:
        by_key = Counter[str]()
        for (_, (key, _)), amount in self.events.items():
            by_key[key] += amount
        found = self.tables.totals()
        assert found == {("v", key.encode()): amount for key, amount in by_key.items()}

    def due(self, now: int) -> dict[str, int]:
        """Wider widths, and up to which Unix minute what is before is in them."""
        last = "month" if self.steps[-1][0] == "day" else "day"
        wider = [*(width for width, _ in self.steps[1:]), last]
        return {
            to: begins(to, self.zone, now - age)
            for (_, age), to in zip(self.steps, wider, strict=True)
        }

    def check_places(self) -> None:
        """Every event is in the widest bucket that is due, and nothing is anywhere else."""
        until = rolled_to(self.tables)
        expected = Counter[tuple[str, bytes]]()
        for (resolution, (key, at)), amount in self.events.items():
            first = begins(resolution, self.zone, at)
            ends = (
                begins(resolution, self.zone, first + WIDTH[resolution] + 200)
                if resolution == "day"
                else first + WIDTH[resolution]
            )
            due = [
                wider
                for wider in WIDTHS[WIDTHS.index(resolution) + 1 :]
                if ends <= until.get(wider, 0)
            ]
            place = label([resolution, *due][-1], self.zone, at)
            expected[place, key.encode()] += amount
        found = Counter[tuple[str, bytes]]()
        for bucket, encoded, _, amount in self.tables.slots():
            found[bucket, encoded] += amount
        for month, encoded, amount in self.tables.months():
            found[f"{month} 00:00:00 5", encoded] += amount
        assert +found == +expected
        assert -found == -expected


HOURLY = ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati", "Pacific/Pago_Pago"]
ODD = ["Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns"]
STEPS = {
    "minute=30m,quarter=3h,hour=2d": HOURLY,
    "minute=2h,hour=3d": HOURLY,
    "minute=50h": HOURLY + ODD,
    "quarter=26h": HOURLY + ODD,
    "minute=1h,quarter=2d": HOURLY + ODD,
    "quarter=90m,hour=47h": HOURLY,
    "minute=1h,hour=3d,day=35d": HOURLY,
    "minute=26h,day=40d": HOURLY + ODD,
}
LONG_AGO = 9 * 1440
HOURS, TURNS = (99, 50) if MANY else (30, 17)


@st.composite
def counters(draw: Any) -> tuple[str, list[str], str]:
    """Time zone of a counter, its resolutions one after the other, and its steps."""
    steps = draw(st.sampled_from(sorted(STEPS)))
    finest = steps.partition("=")[0]
    # Hours as resolution need a zone that is whole hours from UTC.
    resolution = st.sampled_from(
        [each for each in WIDTH if each != "hour" or STEPS[steps] == HOURLY]
    )
    later = draw(st.lists(resolution, min_size=1, max_size=3))
    return draw(st.sampled_from(STEPS[steps])), [finest, *later], steps


@examples(few=5, many=25)
@given(made=counters(), seed=st.integers(0, 2**32))
def test_buckets_become_wider_step_by_step_and_no_total_changes(
    tables: Kept, made: Any, seed: int
) -> None:
    zone, resolutions, steps = made
    chance = random.Random(seed)
    for table in ("counter_slot", "counter_ledger", "counter"):
        tables.run(f"DELETE FROM {table}")
    oracle = Oracle(tables, zone, steps)
    tables.store.counters.set("v", time_zone=zone, resolution=resolutions[0], keep=steps)

    def some() -> dict[Event, int]:
        now = now_minute()
        at = [now - chance.randrange(LONG_AGO) for _ in range(40)]
        at += [now - chance.randrange(3 * 60) for _ in range(20)]
        at += [now - chance.randrange(30 * 1440, 99 * 1440) for _ in range(20)]
        return {(chance.choice(KEYS), one): chance.randint(-2, 9) for one in at}

    for resolution in resolutions:
        tables.store.counters.set("v", resolution=resolution)
        events = some()
        tables.count(events)
        oracle.add(resolution, events)
        oracle.check_totals()
        before = now_minute()
        done = run(tables.url, rows=chance.choice((3, 20, 2000)))
        assert (done.busy, done.astride, done.unknown, done.finished) == ([], [], [], True)
        oracle.check_totals()
        oracle.check_places()
        assert rolled_to(tables) in [oracle.due(at) for at in (before, now_minute())]
        tables.check_ledger()
        assert verified(tables.url) == []
    assert tables.store.totals.total("v") == sum(oracle.events.values())
    # Some may have become due meanwhile; but it comes to an end.
    eventually(lambda: run(tables.url).rolled_up == 0)
    if not tables.months():
        by_day = oracle.by_day()
        for key in KEYS:
            for day, total in tables.store.totals.daily("v", key=key):
                assert total == by_day[day, key], (day, key)


def test_late_rows_follow_and_steps_that_are_removed_leave_what_is_wide_as_it_is(
    tables: Kept,
) -> None:
    tables.keep_minutes()
    old = now_minute() - 3 * 1440
    tables.count({("a", old): 1})
    assert run(tables.url).rolled_up == 1
    tables.store.counters.set("v", keep="forever")
    tables.count({("a", old): 5, ("b", old): 6, ("a", now_minute() - 1440): 7})
    said = rolled_to(tables)
    assert run(tables.url).rolled_up == 2
    assert rolled_to(tables) == said
    assert sorted(amount for _, _, _, amount in tables.slots()) == [6, 6, 7]
    tables.check_ledger()
    assert verified(tables.url) == []


@pytest.mark.random
def test_steps_that_come_and_go_only_ever_make_buckets_wider(tables: Kept) -> None:
    hour = (now_minute() - 3 * 1440) // 60 * 60
    events = {("a", hour + n): 1 for n in range(20)} | {
        ("b", hour - 60 * n): 1 for n in range(HOURS)
    }
    for steps in ("minute=2d,hour=90d", "minute=1d,quarter=30d", "forever", "quarter=1h"):
        tables.keep_minutes(steps)
        tables.count(events)
        before = tables.totals()
        run(tables.url)
        tables.check(before)
        assert verified(tables.url) == []
    assert {bucket[-1] for bucket, _, _, _ in tables.slots()} == {"4"}


def test_what_is_kept_in_days_becomes_months_afterwards(tables: Kept) -> None:
    tables.keep_minutes("minute=2d,hour=10d,day=60d")
    now = now_minute()
    events = {("a", now - days * 1440): days for days in (1, 5, 20, 100, 101)}
    tables.count(events)
    run(tables.url)
    assert sum(amount for _, _, amount in tables.months()) == 201
    assert [(bucket[-1], amount) for bucket, _, _, amount in tables.slots()] == [
        ("4", 20),
        ("3", 5),
        ("1", 1),
    ]
    # Late rows of months that are gone go there at once, whatever their width.
    tables.count({("a", now - 100 * 1440): 100, ("b", now - 20 * 1440): 1000})
    tables.store.counters.set("v", resolution="day")
    tables.count({("b", now - 100 * 1440): 10_000})
    run(tables.url)
    assert sum(amount for _, _, amount in tables.months()) == 201 + 100 + 10_000
    assert [amount for _, _, _, amount in tables.slots()] == [20, 1000, 5, 1]
    tables.check_ledger()
    assert verified(tables.url) == []


def test_many_small_buckets_of_an_hour_move_in_one_transaction(tables: Kept) -> None:
    tables.keep_minutes()
    hour = now_minute() // 60 * 60 - 4 * 1440
    tables.count({(key, hour + n): 1 for n in range(60) for key in ("a", "b")})
    with MySQLProxy.to(tables.url) as proxy:
        run(proxy.url(tables.url))
        moves = [one for one in proxy.seen if one.text.startswith("DELETE counter_slot")]
    assert len(moves) == 1
    assert [(key, slot, amount) for _, key, slot, amount in tables.slots()] == [
        (b"a", 0, 60),
        (b"b", 0, 60),
    ]
    tables.check_ledger()


def test_held_keys_stay_and_the_others_move_whatever_their_sums(tables: Kept) -> None:
    tables.keep_minutes()
    hour = now_minute() // 60 * 60 - 4 * 1440
    tables.count({(key, hour + n): 1 for n in range(9) for key in ("a", "b")})
    tables.count({("much", hour): MAX})
    tables.count({("much", hour + 1): 1})
    before = tables.totals()
    held = label("minute", "UTC", hour + 3)
    with tables.held(b"a", bucket=held, slot=5):
        done = run(tables.url)
        assert done.busy == [BucketKey("v", label_at(held), b"a")]
    tables.check(before)
    assert run(tables.url).rolled_up == 1
    assert {key: amount for _, key, slot, amount in tables.slots() if slot == 0} == {
        b"a": 9,
        b"b": 9,
        b"much": MAX + 1,
    }
    tables.check(before)


def test_a_bucket_that_would_lie_in_two_days_stays_and_is_named(tables: Kept) -> None:
    tables.keep_minutes("minute=2d,hour=90d", time_zone="Asia/Pyongyang")
    at = int(datetime(2016, 3, 5, 15, 29, tzinfo=UTC).timestamp()) // 60
    tables.count({("a", at): 1, ("a", at + 1): 2, ("a", at - 30): 4})
    tables.store.counters.set("v", keep="forever")
    tables.run("UPDATE counter SET rolled_hour = '2020-01-01'")
    done = run(tables.url)
    assert done.astride == [BucketKey("v", (at + n) * 60 + 1) for n in (0, 1)]
    assert done.rolled_up == 1
    # As days they can be told apart.
    tables.run("UPDATE counter SET rolled_day = '2020-01-01'")
    done = run(tables.url)
    assert (done.astride, done.rolled_up) == ([], 3)
    assert [(bucket[:10], amount) for bucket, _, _, amount in tables.slots()] == [
        ("2016-03-05", 5),
        ("2016-03-06", 2),
    ]
    tables.check_ledger()


def is_locking(request: Request, _reply: bytes) -> bool:
    return "FOR UPDATE NOWAIT" in request.text


def test_the_time_is_announced_before_the_first_row_moves_and_never_goes_back(tables: Kept) -> None:
    tables.keep_minutes("minute=2h")
    tables.count({("a", now_minute() - 3 * 1440): 1})
    announced: list[dict[str, int]] = []

    def look(_request: Request) -> None:
        announced.append(rolled_to(tables))

    with MySQLProxy.to(tables.url) as proxy:
        proxy.when("*", Phase.BEFORE, Deed.PASS, call=look, times=1, where=is_locking)
        run(proxy.url(tables.url))
    assert announced in (
        [{"day": midnight("UTC", now_minute() - 120)}],
        [{"day": midnight("UTC", now_minute() - 121)}],
    )
    tables.keep_minutes("minute=20d")
    run(tables.url)
    assert [rolled_to(tables)] == announced


def roll_up_while(tables: Tables, change: Callable[[], object]) -> PassDone:
    """A pass, with a change right before the first of its moves."""
    moving = threading.Event()

    def before_a_move(request: Request, _reply: bytes) -> bool:
        if "SELECT bucket FROM counter_slot" in request.text:
            moving.set()
        return moving.is_set() and "FROM control" in request.text and "SHARE" in request.text

    with MySQLProxy.to(tables.url) as proxy:
        rule = proxy.when(
            "*",
            Phase.BEFORE,
            Deed.PASS,
            call=lambda _: change(),
            times=1,
            where=before_a_move,
        )
        done = run(proxy.url(tables.url), rows=40)
    assert rule.acted == 1
    return done


def test_a_counter_that_is_deleted_meanwhile_and_made_anew_is_left_to_the_next_pass(
    tables: Kept,
) -> None:
    tables.keep_minutes()
    old = now_minute() - 3 * 1440
    tables.count({("a", old - n): 1 for n in range(99)})

    def change() -> None:
        tables.store.counters.delete("v")
        tables.store.counters.set("v", resolution="quarter", keep="quarter=1h")
        tables.count({("b", old - n): 100 for n in range(9)})

    assert roll_up_while(tables, change).rolled_up == 0
    tables.check({("v", b"b"): 900})
    assert run(tables.url).rolled_up > 0
    tables.check({("v", b"b"): 900})
    assert verified(tables.url) == []


def test_a_change_of_another_counter_does_not_end_the_pass(tables: Kept) -> None:
    tables.keep_minutes()
    old = now_minute() - 3 * 1440
    tables.count({("a", old - n): 1 for n in range(99)})
    assert (
        roll_up_while(
            tables, lambda: tables.store.counters.set("w", time_zone="Asia/Tokyo")
        ).rolled_up
        == 99
    )
    tables.check_ledger()


@pytest.mark.random
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_no_reader_sees_a_total_change(tables: Kept, level: str) -> None:
    tables.keep_minutes("minute=1h,quarter=1d,hour=3d")
    now = now_minute()
    for start in range(0, 4 * 1440, 720):
        tables.count({(f"{n % 7}", now - start - n): 1 for n in range(0, 720, 2 if MANY else 18)})
    before = tables.totals()
    tables.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    rolling_up = threading.Thread(target=run, args=(tables.url, 10))
    rolling_up.start()
    reads = 0
    while rolling_up.is_alive():
        tables.connection.begin()
        assert tables.totals() == before
        tables.connection.commit()
        assert tables.store.totals.total("v") == sum(before.values())
        reads += 1
    rolling_up.join()
    assert reads > 1
    tables.check(before)
    assert verified(tables.url) == []


@pytest.mark.random
def test_verify_is_content_while_workers_bring_late_rows_and_buckets_become_wider(
    tables: Kept,
) -> None:
    """Three workers, retention without a pause, and verify, all at once; nothing is lost."""
    tables.keep_minutes("minute=1h,quarter=1d,hour=2d")
    appliers = [Applier(tables.url, slot) for slot in (1, 2, 3)]
    now = now_minute()
    stop = threading.Event()
    wrong: list[str] = []
    passes: list[int] = []

    def roll() -> None:
        while not stop.is_set():
            passes.append(run(tables.url, rows=30).rolled_up)

    def look() -> None:
        while not stop.is_set():
            wrong.extend(verified(tables.url))

    def work(applier: Applier, number: int) -> None:
        chance = random.Random(number)
        for _ in range(TURNS):
            at = [now - chance.randrange(3 * 1440) for _ in range(40)]
            applier.apply([entry([(n, "v", f"{m % 5}", m, 1) for n, m in enumerate(at)])])

    others = [threading.Thread(target=one) for one in (roll, look)]
    for other in others:
        other.start()
    try:
        together(*(partial(work, one, n) for n, one in enumerate(appliers)))
    finally:
        stop.set()
        for other in others:
            other.join(60)
        for one in appliers:
            one.close()
    assert wrong == []
    assert sum(passes) > 0
    run(tables.url)
    assert sum(tables.totals().values()) == 3 * TURNS * 40
    tables.check_ledger()
    assert verified(tables.url) == []


@pytest.mark.random
def test_a_cap_on_keys_is_exact_while_rows_move(tables: Kept) -> None:
    tables.keep_minutes("minute=1h", max_keys=4)
    now = now_minute()
    days = [now - 5 * 1440, now - 6 * 1440]
    appliers = [Applier(tables.url, slot) for slot in (1, 2, 3)]
    stop = threading.Event()

    def roll() -> None:
        while not stop.is_set():
            run(tables.url, rows=3)

    def work(applier: Applier, number: int) -> None:
        for turn in range(TURNS):
            names = ("a", "b", f"{number}/{turn}", f"of all/{turn}")
            rows = [(n, "v", name, days[n % 2] + turn, 1) for n, name in enumerate(names * 2)]
            rows += [(n + 8, "v", name, days[1] - turn, 1) for n, name in enumerate(names)]
            applier.apply([entry(rows)])

    rolling = threading.Thread(target=roll)
    rolling.start()
    try:
        together(*(partial(work, one, n) for n, one in enumerate(appliers)))
    finally:
        stop.set()
        rolling.join(60)
        for one in appliers:
            one.close()
    run(tables.url)
    totals = tables.totals()
    assert sum(totals.values()) == 3 * TURNS * 12
    for day in days:
        of_day = label("day", "UTC", day)[:10]
        keys = {key for bucket, key, _, _ in tables.slots() if bucket.startswith(of_day)}
        assert len(keys - {b"__overflow__"}) == 4
    tables.check_ledger()


def test_keys_that_moved_are_known_to_whoever_remembers_nothing(tables: Kept) -> None:
    tables.keep_minutes("minute=1h", time_zone="America/New_York", max_keys=3)
    noon = midnight("America/New_York", now_minute() - 5 * 1440) + 720

    def apply(*names: str) -> int:
        fresh = Applier(tables.url, 7)
        try:
            rows = [(n, "v", name, noon + n, 1) for n, name in enumerate(names)]
            return fresh.apply([entry(rows)]).overflown
        finally:
            fresh.close()

    assert apply("a", "b") == 0
    run(tables.url)
    assert apply("a", "b", "c", "d") == 1
    run(tables.url)
    tables.store.counters.set("other", time_zone="UTC")  # another version
    assert apply("e", "c", "a") == 1
    tables.check_ledger()


def damaged(session: Session, sql: str, *args: object) -> None:
    assert session.execute(sql, args) == 1


def test_verify_finds_what_was_changed_in_minutes_and_in_wider_buckets(tables: Kept) -> None:
    tables.keep_minutes()
    now = now_minute()
    hour = now // 60 * 60 - 4 * 1440
    tables.count({(key, hour + n): n + 1 for n in range(60) for key in ("a", "b")})
    tables.count({(key, now - n): n + 1 for n in range(40) for key in ("a", "b")})
    run(tables.url)
    assert verified(tables.url) == []
    wide = label("hour", "UTC", hour)[:-2]
    fine = label("minute", "UTC", now - 20)[:-2]
    other = label("minute", "UTC", now - 20 - (1 if (now - 20) % 15 else -1))[:-2]
    where = "WHERE counter = 'v' AND counter_key = 'a' AND bucket"
    columns = "counter, bucket, counter_key, width, slot, amount"
    with open_session(tables.url) as session:
        for sql, *args in (
            (f"UPDATE counter_slot SET amount = amount + 1 {where} = %s", fine),
            (f"DELETE FROM counter_slot {where} = %s", fine),
            (f"UPDATE counter_slot SET counter_key = 'c' {where} = %s", fine),
            (f"UPDATE counter_slot SET bucket = %s, slot = 9 {where} = %s", other, fine),
            (f"UPDATE counter_slot SET amount = amount - 1 {where} > %s LIMIT 1", wide),
            (f"DELETE FROM counter_slot {where} > %s LIMIT 1", wide),
            (f"UPDATE counter_slot SET width = 1 {where} = %s", wide),
        ):
            rows = session.query(f"SELECT {columns} FROM counter_slot")
            damaged(session, sql, *args)
            assert len(verified(tables.url)) == 1, sql
            session.execute("DELETE FROM counter_slot")
            for row in rows:
                session.execute(
                    f"INSERT INTO counter_slot ({columns}) VALUES (%s, %s, %s, %s, %s, %s)", row
                )
        assert verified(tables.url) == []


def test_hours_that_begin_at_a_quarter_are_refused_once_minutes_are_hours(tables: Kept) -> None:
    tables.store.counters.set("v", resolution="minute", keep="minute=2h,hour=90d")
    at = now_minute() - 10 * 60
    tables.count({("a", at): 3})
    begin = datetime.fromtimestamp(at // 60 * 3600, UTC)

    def hours(zone: str) -> list[int]:
        found = tables.store.totals.hourly(
            "v", start=begin, end=begin + timedelta(hours=1), time_zone=zone
        )
        return [amount for _, amount in found]

    assert sorted(hours("Asia/Kathmandu")) == [0, 3]  # 5:45 ahead of UTC
    run(tables.url)
    with pytest.raises(InexactZone, match="begin in the middle of one"):
        hours("Asia/Kathmandu")
    assert hours("UTC") == [3]


def test_a_counter_in_an_unknown_zone_stops_no_other_one(tables: Kept) -> None:
    for name in ("a", "b"):
        tables.store.counters.set(name, resolution="minute", keep="minute=2h")
        tables.count({("k", now_minute() - 3 * 1440): 3}, name)
    tables.run("UPDATE counter SET time_zone = 'Mars/Olympus' WHERE name = 'a'")
    with pytest.raises(Refused, match="Mars/Olympus"):
        run(tables.url)
    assert rolled_to(tables, "a") == {}
    assert list(rolled_to(tables, "b")) == ["day"]
    assert tables.run("SELECT width FROM counter_slot WHERE counter = 'b'") == [(4,)]
