"""Buckets that are no longer kept so fine: into wider ones, without a total ever changing."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.counting.apply.applier import Applier
from countersink.database.errors import Refused
from countersink.database.sql import unix_seconds
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.ranges import BucketKey
from countersink.store.verify import open_session as open_for_verify
from countersink.store.verify import verify
from tests.faults.scenarios.history_books import (
    FINER,
    MINUTES,
    WIDTHS,
    Book,
    Event,
    bucket,
    day_of,
    local,
)
from tests.schedules.tables import MAX, Kept, label_at, rolled_up, spread
from tests.support.entries import again_and_again, beside, entry, says, together
from tests.support.examples import MANY, examples
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.traffic import now_minute
from tests.support.waiting import eventually

KEYS = ("", "a", "a ", "ä", "/page")
UNITS = {"m": 1, "h": 60, "d": 1440}
LOCKING = says("FOR UPDATE NOWAIT")


def rolled_to(kept: Kept, counter: str = "v") -> dict[str, int]:
    """By width up to which Unix minute finer buckets are rolled up to such."""
    columns = ", ".join(f"rolled_{width}" for width in WIDTHS[1:])
    (times,) = kept.run(f"SELECT {columns} FROM counter WHERE name = %s", counter)
    return {
        width: unix_seconds(time) // 60
        for width, time in zip(WIDTHS[1:], times, strict=True)
        if time is not None
    }


def verified(url: str) -> list[str]:
    with open_for_verify(url) as session:
        return [f"{one.problem}: {one.detail}" for one in verify(session).differences]


def begins(width: str, zone: str, at: int) -> int:
    """The Unix minute at which the bucket of a Unix minute begins."""
    return bucket(zone, width, at)[0]


def label(width: str, zone: str, at: int) -> str:
    """The bucket of a Unix minute, as the tests name it."""
    if width in FINER:
        time = datetime.fromtimestamp(begins(width, zone, at) * 60, UTC)
    else:
        time = local(zone, at).replace(hour=0, minute=0)
        time = time.replace(day=1 if width == "month" else time.day)
    return f"{time:%Y-%m-%d %H:%M}:00 {WIDTHS.index(width) + 1}"


class Oracle:
    """What was counted, and where all of it must be, by no code of the product's: books of each
    resolution.
    """

    def __init__(self, kept: Kept, zone: str, steps: str) -> None:
        self.kept = kept
        self.zone = zone
        pairs = (one.partition("=") for one in steps.split(","))
        self.steps = tuple((width, int(age[:-1]) * UNITS[age[-1]]) for width, _, age in pairs)
        self.books = {width: Book(zone, width, self.steps) for width in WIDTHS[:-1]}

    def add(self, resolution: str, events: dict[Event, int]) -> None:
        for event, amount in events.items():
            self.books[resolution].add(*event, amount)

    def amounts(self) -> Iterator[tuple[Event, int]]:
        return chain(*(book.amounts.items() for book in self.books.values()))

    def by_day(self) -> Counter[tuple[date, str]]:
        found = Counter[tuple[date, str]]()
        for (key, at), amount in self.amounts():
            found[day_of(self.zone, at), key] += amount
        return found

    def check_totals(self) -> None:
        by_key = Counter[tuple[str, bytes]]()
        for (key, _), amount in self.amounts():
            by_key["v", key.encode()] += amount
        assert self.kept.totals() == by_key

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
        until = rolled_to(self.kept)
        expected = Counter[tuple[str, bytes]]()
        for resolution, book in self.books.items():
            for (key, at), amount in book.amounts.items():
                end = bucket(self.zone, resolution, at)[1]
                wider = WIDTHS[WIDTHS.index(resolution) + 1 :]
                due = [width for width in wider if end < until.get(width, 0)]
                expected[label([resolution, *due][-1], self.zone, at), key.encode()] += amount
        found = Counter[tuple[str, bytes]]()
        for place, encoded, _, amount in self.kept.slots():
            found[place, encoded] += amount
        for month, encoded, amount in self.kept.months():
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
        [each for each in WIDTHS[:-1] if each != "hour" or STEPS[steps] == HOURLY]
    )
    later = draw(st.lists(resolution, min_size=1, max_size=3))
    return draw(st.sampled_from(STEPS[steps])), [finest, *later], steps


@examples(few=5, many=25)
@given(made=counters(), seed=st.integers(0, 2**32))
def test_buckets_become_wider_step_by_step_and_no_total_changes(
    kept: Kept, made: Any, seed: int
) -> None:
    zone, resolutions, steps = made
    chance = random.Random(seed)
    for table in ("counter_slot", "counter_ledger", "counter"):
        kept.run(f"DELETE FROM {table}")
    oracle = Oracle(kept, zone, steps)
    kept.store.counters.set("v", time_zone=zone, resolution=resolutions[0], keep=steps)

    def some() -> dict[Event, int]:
        now = now_minute()
        at = [now - chance.randrange(LONG_AGO) for _ in range(40)]
        at += [now - chance.randrange(3 * 60) for _ in range(20)]
        at += [now - chance.randrange(30 * 1440, 99 * 1440) for _ in range(20)]
        return {(chance.choice(KEYS), one): chance.randint(-2, 9) for one in at}

    for resolution in resolutions:
        kept.store.counters.set("v", resolution=resolution)
        events = some()
        kept.count(events)
        oracle.add(resolution, events)
        oracle.check_totals()
        before = now_minute()
        done = rolled_up(kept.url, rows=chance.choice((3, 20, 2000)))
        assert (done.busy, done.astride, done.unknown, done.finished) == ([], [], [], True)
        oracle.check_totals()
        oracle.check_places()
        assert rolled_to(kept) in [oracle.due(at) for at in (before, now_minute())]
        kept.check_ledger()
        assert verified(kept.url) == []
    assert kept.store.totals.total("v") == sum(amount for _, amount in oracle.amounts())
    # Some may have become due meanwhile; but it comes to an end.
    eventually(lambda: rolled_up(kept.url).rolled_up == 0)
    if not kept.months():
        by_day = oracle.by_day()
        for key in KEYS:
            for day, total in kept.store.totals.daily("v", key=key):
                assert total == by_day[day, key], (day, key)


def test_late_rows_follow_and_steps_that_are_removed_leave_what_is_wide_as_it_is(
    kept: Kept,
) -> None:
    kept.keep_minutes()
    old = now_minute() - 3 * 1440
    kept.count({("a", old): 1})
    assert rolled_up(kept.url).rolled_up == 1
    kept.store.counters.set("v", keep="forever")
    kept.count({("a", old): 5, ("b", old): 6, ("a", now_minute() - 1440): 7})
    said = rolled_to(kept)
    assert rolled_up(kept.url).rolled_up == 2
    assert rolled_to(kept) == said
    assert sorted(amount for _, _, _, amount in kept.slots()) == [6, 6, 7]
    kept.check_ledger()
    assert verified(kept.url) == []


def test_counters_without_settings_follow_the_default_steps(kept: Kept) -> None:
    kept.store.counters.set_defaults(resolution="hour", keep="hour=90d")
    now = now_minute()
    kept.count({("a", now - 100 * 1440): 1, ("a", now): 2}, "plain")
    assert rolled_up(kept.url).rolled_up == 1
    assert rolled_to(kept, "plain").keys() == {"day"}
    assert verified(kept.url) == []


STEPS_TO = [("minute", "minute=2d,hour=90d"), ("day", "day=10d")]
"""A resolution, and steps by which buckets of sixty days ago become wider."""


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize(("resolution", "steps"), STEPS_TO)
def test_held_keys_stay_and_the_others_move_whatever_their_sums(
    kept: Kept, resolution: Any, steps: str
) -> None:
    kept.store.counters.set("v", resolution=resolution, keep=steps)
    unit, first = MINUTES[resolution], begins("day", "UTC", now_minute() - 60 * 1440)
    kept.count({(key, first + n * unit): 1 for n in range(9) for key in ("a", "b")})
    kept.count({("much", first): MAX})
    kept.count({("much", first + unit): MAX})
    held = label(resolution, "UTC", first + 3 * unit)
    unknown = f"{held[:-1]}0"
    kept.plant(spread([b"x"], (1, 2), unknown))
    before = kept.totals()
    assert before["v", b"much"] == 2 * MAX
    with kept.held(b"a", bucket=held, slot=5):
        done = rolled_up(kept.url)
        assert done.busy == [BucketKey("v", label_at(held), b"a")]
        assert done.unknown == [BucketKey("v", label_at(unknown))]
    kept.check(before)
    left = {(bucket, key) for bucket, key, _, _ in kept.slots() if bucket[-1] == held[-1]}
    assert left == {(held, b"a")}
    assert rolled_up(kept.url).rolled_up == 1
    kept.check(before)
    assert not [bucket for bucket, _, _, _ in kept.slots() if bucket[-1] == held[-1]]


def test_a_bucket_that_would_lie_in_two_days_stays_and_is_named(kept: Kept) -> None:
    kept.keep_minutes("minute=2d,hour=90d", time_zone="Asia/Pyongyang")
    at = int(datetime(2016, 3, 5, 15, 29, tzinfo=UTC).timestamp()) // 60
    kept.count({("a", at): 1, ("a", at + 1): 2, ("a", at - 30): 4})
    kept.store.counters.set("v", keep="forever")
    kept.run("UPDATE counter SET rolled_hour = '2020-01-01'")
    done = rolled_up(kept.url)
    assert done.astride == [BucketKey("v", (at + n) * 60 + 1) for n in (0, 1)]
    assert done.rolled_up == 1
    # As days they can be told apart.
    kept.run("UPDATE counter SET rolled_day = '2020-01-01'")
    done = rolled_up(kept.url)
    assert (done.astride, done.rolled_up) == ([], 3)
    assert [(bucket[:10], amount) for bucket, _, _, amount in kept.slots()] == [
        ("2016-03-05", 5),
        ("2016-03-06", 2),
    ]
    kept.check_ledger()


@pytest.mark.parametrize(
    ("steps", "age", "to"), [("minute=2h", 120, "day"), ("day=10d", 10 * 1440, "month")]
)
def test_the_time_is_announced_before_the_first_row_moves_and_never_goes_back(
    kept: Kept, steps: str, age: int, to: str
) -> None:
    kept.keep_minutes(steps)
    kept.count({("a", now_minute() - 60 * 1440): 1})
    announced: list[dict[str, int]] = []

    def look(_request: Request) -> None:
        announced.append(rolled_to(kept))

    with MySQLProxy.to(kept.url) as proxy:
        proxy.when("*", Phase.BEFORE, Deed.PASS, call=look, times=1, where=LOCKING)
        rolled_up(proxy.url(kept.url))
    assert announced in [[{to: begins(to, "UTC", now_minute() - age - n)}] for n in (0, 1)]
    for later in (f"{steps.partition('=')[0]}=100d", "forever"):
        kept.keep_minutes(later)
        kept.count({("late", now_minute() - 60 * 1440): 1})
        assert rolled_up(kept.url).rolled_up == 1
        assert [rolled_to(kept)] == announced


def roll_up_while(kept: Kept, change: Callable[[], object]) -> PassDone:
    """A pass, with a change right before the first of its moves."""
    moving = threading.Event()

    def before_a_move(request: Request, _reply: bytes) -> bool:
        if "SELECT bucket FROM counter_slot" in request.text:
            moving.set()
        return moving.is_set() and "FROM control" in request.text and "SHARE" in request.text

    with MySQLProxy.to(kept.url) as proxy:
        rule = proxy.when(
            "*",
            Phase.BEFORE,
            Deed.PASS,
            call=lambda _: change(),
            times=1,
            where=before_a_move,
        )
        done = rolled_up(proxy.url(kept.url), rows=40)
    assert rule.acted == 1
    return done


@pytest.mark.parametrize("anew", [None, {"resolution": "quarter", "keep": "quarter=1h"}])
@pytest.mark.parametrize(("resolution", "steps"), STEPS_TO)
def test_a_counter_that_is_deleted_meanwhile_and_made_anew_is_left_to_the_next_pass(
    kept: Kept, resolution: Any, steps: str, anew: Any
) -> None:
    kept.store.counters.set("v", resolution=resolution, keep=steps)
    old, unit = now_minute() - 60 * 1440, MINUTES[resolution]
    kept.count({(f"{n}", old - n * unit): 1 for n in range(99)})

    def change() -> None:
        kept.store.counters.delete("v")
        if anew:
            kept.store.counters.set("v", **anew)
        kept.count({("b", old - n): 100 for n in range(9)})

    assert roll_up_while(kept, change).rolled_up == 0
    kept.check({("v", b"b"): 900})
    assert kept.months() == []
    assert bool(rolled_up(kept.url).rolled_up) == bool(anew)
    kept.check({("v", b"b"): 900})
    assert verified(kept.url) == []


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_no_reader_sees_a_total_change(kept: Kept, level: str) -> None:
    kept.keep_minutes("minute=1h,quarter=1d,hour=3d,day=20d")
    now = now_minute()
    for start in (*range(0, 4 * 1440, 720), 60 * 1440):
        kept.count({(f"{n % 7}", now - start - n): 1 for n in range(0, 720, 2 if MANY else 18)})
    before = kept.totals()
    kept.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    reads = 0
    with beside(partial(rolled_up, kept.url, rows=10)) as rolling:
        while not rolling.done():
            kept.connection.begin()
            assert kept.totals() == before
            kept.connection.commit()
            assert kept.store.totals.total("v") == sum(before.values())
            reads += 1
    assert rolling.result().rolled_up > 0
    assert reads > 1
    assert kept.months()
    kept.check(before)
    assert verified(kept.url) == []


@pytest.mark.random
def test_verify_is_content_while_workers_bring_late_rows_and_buckets_become_wider(
    kept: Kept,
) -> None:
    """Three workers, retention without a pause, and verify, all at once; nothing is lost."""
    kept.keep_minutes("minute=1h,quarter=1d,hour=2d")
    now = now_minute()
    wrong: list[str] = []
    passes: list[int] = []

    def work(slot: int) -> None:
        chance = random.Random(slot)
        with closing(Applier(kept.url, slot)) as applier:
            for _ in range(TURNS):
                at = [now - chance.randrange(3 * 1440) for _ in range(40)]
                applier.apply([entry([(n, "v", f"{m % 5}", m, 1) for n, m in enumerate(at)])])

    with again_and_again(
        lambda: passes.append(rolled_up(kept.url, rows=30).rolled_up),
        lambda: wrong.extend(verified(kept.url)),
    ):
        together(*(partial(work, slot) for slot in (1, 2, 3)))
    assert wrong == []
    assert sum(passes) > 0
    rolled_up(kept.url)
    assert sum(kept.totals().values()) == 3 * TURNS * 40
    kept.check_ledger()
    assert verified(kept.url) == []


def test_keys_that_moved_are_known_to_whoever_remembers_nothing(kept: Kept) -> None:
    kept.keep_minutes("minute=1h", time_zone="America/New_York", max_keys=3)
    noon = begins("day", "America/New_York", now_minute() - 5 * 1440) + 720

    def apply(*names: str) -> int:
        return kept.apply([(n, "v", name, noon + n, 1) for n, name in enumerate(names)], 7)

    assert apply("a", "b") == 0
    rolled_up(kept.url)
    assert apply("a", "b", "c", "d") == 1
    rolled_up(kept.url)
    kept.store.counters.set("other", time_zone="UTC")  # another version
    assert apply("e", "c", "a") == 1
    kept.check_ledger()


def test_a_counter_in_an_unknown_zone_stops_no_other_one(kept: Kept) -> None:
    for name in ("a", "b"):
        kept.store.counters.set(name, resolution="minute", keep="minute=2h")
        kept.count({("k", now_minute() - 3 * 1440): 3}, name)
    kept.run("UPDATE counter SET time_zone = 'Mars/Olympus' WHERE name = 'a'")
    with pytest.raises(Refused, match="Mars/Olympus"):
        rolled_up(kept.url)
    assert rolled_to(kept, "a") == {}
    assert list(rolled_to(kept, "b")) == ["day"]
    assert kept.run("SELECT width FROM counter_slot WHERE counter = 'b'") == [(4,)]
