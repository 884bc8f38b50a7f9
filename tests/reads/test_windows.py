"""Windows and ranges of times against an oracle of single minutes: exact, or refused.

The oracle knows what was sent as (key, minute) -> amount, and finds buckets without a line of the
product's own code.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from countersink.counting.errors import InexactZone, RolledUp, SeriesTooLong
from countersink.counting.totals.query import Query
from countersink.counting.totals.selection import Last, Selection
from countersink.database.sql import unix_seconds
from countersink.schedules.jobs.move import open_tables
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.reads.support import Ground
from tests.support.asking import Asking, exported
from tests.support.examples import examples
from tests.support.roll_up import roll_up
from tests.support.traffic import now_minute, now_ms, send

KEYS = ("", "a", "a ", "ä", "/page")
WIDTH = {"minute": 1, "quarter": 15, "hour": 60, "day": 1440, "month": 31 * 1440}
"""Minutes, at most."""
HOURLY = ("UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati")
ODD = ("Asia/Kolkata", "Asia/Kathmandu")
BACK = 6 * 1440
"""Minutes that the events lie back at most."""
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""An example takes seconds: making a failing one smaller would take longer than a test may."""
Event = tuple[str, int]
Span = tuple[int, int]
"""Unix minutes, from the one to before the other."""
Bucket = tuple[str, int]
"""(width, Unix minute at which it begins)."""


def moment(minute: int, zone: str = "UTC") -> datetime:
    return datetime.fromtimestamp(minute * 60, ZoneInfo(zone))


def date_of(minute: int, zone: str) -> date:
    return moment(minute, zone).date()


def midnight(day: date, zone: str) -> int:
    """The Unix minute at which a day begins in a zone whose clocks do not change at midnight."""
    return int(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp()) // 60


def monday_of(day: date) -> date:
    """The day on which its ISO week begins."""
    return date.fromisocalendar(*day.isocalendar()[:2], 1)


@dataclass
class Oracle:
    """What was sent, and in which bucket each event is.

    Attributes:
        zone: the counter's.
        resolution: in which events are counted now.
        until: before which Unix minute all is that is in buckets of other widths.
        rolled: up to which Unix minute finer buckets are rolled up to such.
        events: all that was sent.
        waiting: the minutes of those that are in the queue.
        placed: (minute, bucket) of those that are counted.
    """

    zone: str
    resolution: str
    until: dict[str, int] = field(default_factory=dict)
    rolled: dict[str, int] = field(default_factory=dict)
    events: Counter[Event] = field(default_factory=Counter)
    waiting: list[int] = field(default_factory=list)
    placed: list[tuple[int, Bucket]] = field(default_factory=list)

    def bucket(self, width: str, minute: int) -> Bucket:
        if WIDTH[width] < 1440:
            return width, minute // WIDTH[width] * WIDTH[width]
        day = date_of(minute, self.zone)
        return width, midnight(day.replace(day=1) if width == "month" else day, self.zone)

    def ends(self, bucket: Bucket) -> int:
        width, begins = bucket
        if WIDTH[width] < 1440:
            return begins + WIDTH[width]
        day = date_of(begins, self.zone)
        following = (day + timedelta(days=31 if width == "month" else 1)).replace(
            **({"day": 1} if width == "month" else {})
        )
        return midnight(following, self.zone)

    def send(self, events: dict[Event, int]) -> None:
        self.events.update(events)
        self.waiting += [minute for _, minute in events]

    def apply(self) -> None:
        self.placed += [(each, self.bucket(self.resolution, each)) for each in self.waiting]
        self.waiting = []

    def roll_up(self) -> None:
        for place, (minute, bucket) in enumerate(self.placed):
            for wider, until in self.rolled.items():
                if WIDTH[wider] > WIDTH[bucket[0]] and self.ends(bucket) <= until:
                    bucket = self.bucket(wider, minute)
            self.placed[place] = minute, bucket

    def held(self, *, waiting: bool) -> set[Bucket]:
        """The buckets that have rows, or will have."""
        found = {bucket for _, bucket in self.placed}
        return found | {self.bucket(self.resolution, each) for each in self.waiting if waiting}

    def within(self, span: Span, *, waiting: bool) -> set[str]:
        """The widths of buckets that have something of a range."""
        held = self.held(waiting=waiting)
        return {one[0] for one in held if one[1] < span[1] and self.ends(one) > span[0]}

    def alone(self, minute: int) -> bool:
        """Whether all from the bucket of a minute on is in buckets of the resolution."""
        _, begins = self.bucket(self.resolution, minute)
        finer = (each for each in WIDTH if WIDTH[each] < WIDTH[self.resolution])
        return all(self.until.get(each, 0) <= begins for each in finer)

    def cut(self, *edges: int, waiting: bool = False) -> bool:
        """Whether a bucket goes on at one of these minutes."""
        held = self.held(waiting=waiting)
        return any(one[1] < edge < self.ends(one) for one in held for edge in edges) or any(
            self.bucket(self.resolution, edge)[1] < edge and self.alone(edge) for edge in edges
        )

    def parts(self, width: int, span: Span, zone: str) -> list[int]:
        """When the hours or minutes of a zone begin of which a range has something."""
        ahead = moment(span[0], zone).utcoffset()
        assert ahead is not None
        shift = int(ahead.total_seconds()) // 60
        return list(range((span[0] + shift) // width * width - shift, span[1], width))

    def rolled_wider(self, width: int, span: Span) -> bool:
        """Whether something of a range is rolled up beyond a width."""
        wider = {each for each in self.rolled if WIDTH[each] > width} - {self.resolution}
        return bool(wider & self.within(span, waiting=False))

    def may_lack(self, width: int, span: Span, zone: str) -> bool:
        """Whether buckets do not make up the hours or minutes of a range."""
        within = self.within(span, waiting=True)
        wide = {each for each in WIDTH if WIDTH[each] > width}
        return (
            bool(wide & within)
            or (self.resolution in wide and (self.alone(span[0]) or within <= wide))
            or self.cut(*span, *self.parts(width, span, zone)[1:], waiting=True)
        )

    def by_key(self, span: Span) -> dict[str, int]:
        found = Counter[str]()
        for (key, minute), amount in self.events.items():
            if span[0] <= minute < span[1]:
                found[key] += amount
        return {key: amount for key, amount in found.items() if amount}

    def total(self, span: Span) -> int:
        return sum(self.by_key(span).values())

    def last(self, window: str, zone: str | None, now: int) -> list[Span]:
        """What a window may be at a minute, the narrowest buckets first; empty: it is none of the
        counter's buckets.
        """
        number, unit = int(window[:-1]), window[-1]
        if unit == "d":
            zone = zone or self.zone
            today = date_of(now, zone)
            first, after = today - timedelta(days=number - 1), today + timedelta(days=1)
            return [(midnight(first, zone), midnight(after, zone))]
        if unit == "w":
            zone = zone or self.zone
            monday = monday_of(date_of(now, zone))
            ends = monday - timedelta(weeks=number - 1), monday + timedelta(weeks=1)
            return [(midnight(ends[0], zone), midnight(ends[1], zone))]
        width, minutes = WIDTH[self.resolution], number * (60 if unit == "h" else 1)
        if self.resolution == "day" or minutes % width:
            return []
        widths = [each for each in (1, 15, 60) if each >= width and minutes % each == 0]
        return [(end - minutes, end) for end in ((now // each + 1) * each for each in widths)]

    def window(
        self, window: str, zone: str | None, now: int, *, again: bool = False
    ) -> Span | None:
        """Which of these it is: the first that no bucket goes beyond, nor, if it is asked for
        again, beyond the one before, if there is such a one.
        """
        spans = self.last(window, zone, now)
        told = [span for span in spans if not self.cut(*span)]
        if again:
            told = [each for each in told if not self.cut(2 * each[0] - each[1])] + told
        return next(iter([*told, *spans]), None)


def answered(question: Callable[[], Any]) -> tuple[Any, InexactZone | RolledUp | None]:
    """What a question finds, or why it is refused."""
    try:
        return question(), None
    except (InexactZone, RolledUp) as error:
        return None, error


@st.composite
def counters(draw: Any) -> tuple[str, list[str], str | None]:
    """Time zone, resolutions one after another, and the steps to keep buckets in."""
    steps = draw(
        st.sampled_from(
            (None, "minute=30m,quarter=5h,hour=2d", "minute=3h,hour=3d", "quarter=26h", "hour=1d")
        )
    )
    zone = draw(st.sampled_from(HOURLY if "hour" in (steps or "") else HOURLY + ODD))
    resolution = st.sampled_from(
        [each for each in ("minute", "quarter", "hour", "day") if each != "hour" or zone in HOURLY]
    )
    first = draw(resolution) if steps is None else steps.partition("=")[0]
    return zone, [first, *draw(st.lists(resolution, max_size=2))], steps


class Played:
    """A counter ``v`` that counts so, what was sent to it, and who answers."""

    def __init__(self, ground: Ground, made: Any) -> None:
        session, client = ground.session, ground.client
        # An example before may have failed with entries in the queue.
        for name in client.scan_iter("*events*"):
            client.delete(name)
        zone, (resolution, *_), steps = made
        for table in ("counter_slot", "counter_ledger", "counter"):
            session.execute(f"DELETE FROM {table}")
        ground.store.counters.set("v", time_zone=zone, resolution=resolution, keep=steps)
        self._client, self._servers = client, ground.servers
        self.store, self.reads = ground.store, Asking(ground.store, client)
        self.oracle = Oracle(zone, resolution)

    def send(self, events: dict[Event, int]) -> None:
        """One entry for the queue."""
        at = now_ms(self._client)
        content = [("v", key, minute, amount) for (key, minute), amount in events.items()]
        send(self._client, Sealed(new_entry_id(at), at, encode_rows(content)))
        self.oracle.send(events)

    def apply(self) -> None:
        """The worker takes all that is in the queue."""
        self._servers.apply()
        self.oracle.apply()

    def turn(self, resolution: Any) -> None:
        """What is counted from now on is in such buckets."""
        self.store.counters.set("v", resolution=resolution)
        self.oracle.resolution = resolution
        self._note()

    def retain(self) -> None:
        """Retention rolls up what is due."""
        roll_up(partial(open_tables, self._servers.mysql_url), rows=100)
        self._note()
        self.oracle.roll_up()

    def _note(self) -> None:
        """Up to when which buckets can be."""
        counted = {width: f"counted_{width}" for width in ("minute", "quarter", "hour", "day")}
        rolled = {width: f"rolled_{width}" for width in ("quarter", "hour", "day", "month")}
        with self.store.reading() as session:  # the other one may have been idle for too long
            (times,) = session.query(
                f"SELECT {', '.join([*counted.values(), *rolled.values()])} FROM counter"
            )
        minutes = [0 if time is None else unix_seconds(time) // 60 for time in times]
        self.oracle.until = dict(zip(counted, minutes, strict=False))
        self.oracle.rolled = dict(zip(rolled, minutes[len(counted) :], strict=True))
        for width, minute in self.oracle.rolled.items():
            self.oracle.until[width] = max(minute, self.oracle.until.get(width, 0))

    def check(self, asked: dict[str, Any], span: Span | None, *, pending: bool) -> bool:
        """What is answered is exact, and refused is what the buckets do not tell, and only that."""
        refused = span is None or self.oracle.cut(*span, waiting=pending)
        sums: dict[str, Callable[[], Any]] = {
            "total": lambda: self.reads.total("v", include_pending=pending, **asked).value,
            "keys": lambda: self.reads.top("v", n=9, include_pending=pending, **asked).value,
        }
        if not pending:
            sums["stored total"] = lambda: self.store.totals.total("v", **asked)
            sums["stored keys"] = lambda: self.store.totals.by_key("v", **asked)
            sums["exported keys"] = lambda: self._exported("key", asked)
            sums["exported total"] = lambda: self._exported("total", asked)
        for name, question in sums.items():
            found, error = answered(question)
            if error is not None:
                assert refused, (name, asked, str(error))
                assert isinstance(error, InexactZone)
                assert "ask for" in str(error), error
                continue
            assert span is not None, (name, asked)
            assert not refused, (name, asked, found)
            if name.endswith("total"):
                one = found if isinstance(found, int) else found[0][0]
                assert one == self.oracle.total(span), (name, asked)
            else:
                expected = self.oracle.by_key(span)
                assert {key: amount for key, amount in found if amount} == expected, (name, asked)
            if name == "keys":
                ordered = sorted(found, key=lambda pair: (-pair[1], pair[0].encode()))
                assert found == ordered
        return refused

    def _exported(self, by: str, asked: dict[str, Any]) -> list[tuple[Any, ...]]:
        given = {**asked, "last": Last.of(asked["last"])} if "last" in asked else asked
        with self.store.reading() as session:
            return exported(session, by, Selection("v", **given))

    def check_series(self, asked: dict[str, Any], span: Span, zone: str) -> None:
        """Series of a range are exact in each of their parts and have all of them, or are refused.

        They are of one zone, so each part is the same long but where the range cuts it.
        """
        start, end = span
        for width, method in ((60, self.reads.hourly), (1, self.reads.minutely)):
            found, error = answered(
                partial(method, "v", time_zone=zone, include_pending=True, **asked)
            )
            if isinstance(error, RolledUp):
                assert self.oracle.rolled_wider(width, span), (asked, width)
                continue
            if error is not None:
                assert self.oracle.may_lack(width, span, zone), (asked, width, str(error))
                continue
            begins = [int(begin.timestamp()) // 60 for begin, _ in found.value]
            assert begins == self.oracle.parts(width, span, zone), asked
            for begin, (_, amount) in zip(begins, found.value, strict=True):
                part = max(begin, start), min(begin + width, end)
                assert amount == self.oracle.total(part), (asked, moment(begin))
        days, error = answered(
            partial(self.reads.daily, "v", time_zone=zone, include_pending=True, **asked)
        )
        there = sorted({date_of(each, zone) for each in range(*span)})
        if error is not None:
            edges = (start, end, *(midnight(day, zone) for day in there[1:]))
            assert self.oracle.cut(*edges, waiting=True), (asked, str(error))
            return
        assert [day for day, _ in days.value] == there
        weeks = self.reads.weekly("v", time_zone=zone, include_pending=True, **asked)
        assert [day for day, _ in weeks.value] == sorted({monday_of(day) for day in there})
        for length, series in ((1, days), (7, weeks)):
            for day, amount in series.value:
                begin, stop = midnight(day, zone), midnight(day + timedelta(days=length), zone)
                part = max(begin, start), min(stop, end)
                assert amount == self.oracle.total(part), (asked, day)
        self.check_days_before(asked, zone)

    def check_days_before(self, asked: dict[str, Any], zone: str) -> None:
        """Beside a whole day or week that is over stands the whole one before, or null."""
        given = {**asked, "last": Last.of(asked["last"])} if "last" in asked else asked
        today = date_of(now_minute(), zone)
        for length, by in ((1, "day"), (7, "week")):
            selection = Selection("v", time_zone=zone, **given)
            query = Query(selection, by=by, against_previous=True, include_pending=True)
            for place, amount, previous in self.reads.ask(query).rows:
                edges = [midnight(place + timedelta(days=n * length), zone) for n in (-1, 0, 1)]
                before, whole = (self.oracle.total(span) for span in pairwise(edges))
                over = place + timedelta(days=length) <= today
                told = over and amount == whole and not self.oracle.cut(*edges, waiting=True)
                assert previous == (before if told else None), (asked, by, place)

    def check_previous(self, asked: dict[str, Any], span: Span, before: Span) -> None:
        """Beside each key stands what it had in the window before, or null."""
        if self.oracle.cut(*span, waiting=True):
            return
        for by in ("key", "total"):
            query = Query(
                Selection("v", **asked), by=by, against_previous=True, include_pending=True
            )
            for row in self.reads.ask(query).rows:
                total, previous = self.oracle.total(span), self.oracle.total(before)
                if by == "key":
                    key = row[0]
                    total = self.oracle.by_key(span).get(key, 0)
                    previous = self.oracle.by_key(before).get(key, 0)
                told = None if self.oracle.cut(*before, waiting=True) else previous
                assert row[-2:] == (total, told), asked


def some(chance: random.Random) -> dict[Event, int]:
    now = now_minute()
    at = [now - chance.randrange(BACK) for _ in range(60)]
    at += [now - chance.randrange(200) for _ in range(40)]
    return {(chance.choice(KEYS), one): chance.choice((-1, 1, 2, 3, 9)) for one in at}


def play(played: Played, resolutions: list[str], chance: random.Random) -> None:
    """Count some events in each of these resolutions, and roll up what is due."""
    for resolution in resolutions:
        played.turn(resolution)
        played.send(some(chance))
        played.apply()
        if chance.random() < 0.5:
            played.retain()
    played.retain()


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.timeout(1200)
@examples(few=2, many=8, phases=UNSHRUNK)
@given(made=counters(), seed=st.integers(0, 2**32))
def test_ranges_of_times_and_days_are_exact_or_refused(
    ground: Ground, made: Any, seed: int
) -> None:
    chance = random.Random(seed)
    played = Played(ground, made)
    oracle = played.oracle
    play(played, made[1], chance)
    for waiting in (False, True):
        if waiting:
            played.send(some(chance))
        for _ in range(8):
            now, width = now_minute(), chance.choice((1, 15, 60))
            first = (now - chance.randrange(BACK)) // width * width
            end = first + chance.choice((1, 2, 3, 7, 24)) * chance.choice((width, 60))
            zone = chance.choice(HOURLY + ODD)
            asked: dict[str, Any] = {"start": moment(first, zone), "end": moment(end)}
            played.check(asked, (first, end), pending=waiting)
            if waiting:
                played.check_series(asked, (first, end), zone)
                length = end - first
                played.check_previous(asked, (first, end), (first - length, first))
            day = date_of(first, zone)
            last = day + timedelta(days=chance.randrange(3))
            span = midnight(day, zone), midnight(last + timedelta(days=1), zone)
            days = {"start": day, "end": last, "time_zone": zone}
            played.check(days, span, pending=waiting)
            # A day that begins it, and a time that ends it.
            mixed = {"start": day, "end": moment(end), "time_zone": zone}
            played.check(mixed, (span[0], end), pending=waiting)
    played.apply()
    assert ground.store.totals.total("v") == sum(oracle.events.values())


@examples(few=1, many=8, phases=UNSHRUNK)
@given(made=counters(), seed=st.integers(0, 2**32))
def test_the_last_so_many_are_whole_buckets_up_to_now_or_refused(
    ground: Ground, made: Any, seed: int
) -> None:
    chance = random.Random(seed)
    played = Played(ground, made)
    play(played, made[1], chance)
    played.send(some(chance))
    for window in ("24h", "90m", "7d", "1d", "1w", "3w", "1h", "30m", "45m", "7m", "47h", "2d"):
        # Of days it is those of a zone that is named, or of the counter's own.
        zone = chance.choice((*HOURLY, *ODD)) if chance.random() < 0.7 else None
        asked: dict[str, Any] = {"last": window}
        if zone is not None:
            asked["time_zone"] = zone
        same_minute(partial(check_last, played, asked, window, zone))


def check_last(
    played: Played, asked: dict[str, Any], window: str, zone: str | None, now: int
) -> None:
    span = played.oracle.window(window, zone, now)
    played.check(asked, span, pending=True)
    if span is None:
        with pytest.raises(InexactZone) as caught:
            played.store.totals.total("v", **asked)
        check_advice(played.oracle, str(caught.value), window, now)
        return
    zone = zone or played.oracle.zone
    if window[-1] in "dw":
        return
    if not played.oracle.cut(*span):
        played.check_series({"last": window}, span, zone)
    span = played.oracle.window(window, zone, now, again=True)
    assert span is not None
    query = Query(Selection("v", last=Last.of(window)), by="total", against_previous=True)
    answer, error = answered(partial(played.reads.ask, query))
    assert (error is not None) == played.oracle.cut(*span)
    if error is None:
        found = (int(each.timestamp()) // 60 for each in (answer.window.start, answer.window.end))
        assert tuple(found) == span
    before = 2 * span[0] - span[1], span[0]
    played.check_previous({"last": Last.of(window)}, span, before)


def check_advice(oracle: Oracle, text: str, window: str, now: int) -> None:
    """The error names a resolution that has such windows, and a window that there is."""
    named = text.partition("--resolution ")[2].partition("`")[0]
    minutes = int(window[:-1]) * (60 if window[-1] == "h" else 1)
    assert minutes % WIDTH[named] == 0
    assert WIDTH[named] < WIDTH[oracle.resolution]
    other = text.partition("ask for the last ")[2].partition(";")[0]
    assert oracle.last(other, None, now), text


def same_minute(check: Callable[[int], None]) -> None:
    """Check something that moves with the minute: in one that does not end meanwhile."""
    while True:
        before = now_minute()
        try:
            check(before)
        except (AssertionError, InexactZone):
            if now_minute() == before:
                raise
            continue
        return


def test_a_date_that_comes_back_is_counted_once(ground: Ground) -> None:
    """St. John's, 2010-11-07: at a minute past midnight clocks went back to 23:01."""
    zone = "America/St_Johns"
    played = Played(ground, (zone, ["minute"], None))
    first = int(datetime(2010, 11, 7, 2, 30, tzinfo=UTC).timestamp()) // 60
    played.send({("a", first + 10): 1, ("a", first + 90): 2})
    played.apply()
    days = ground.store.totals.daily("v", start=moment(first), end=moment(first + 120))
    assert days == [(date(2010, 11, 6), 1), (date(2010, 11, 7), 2)]
    wanted = Selection("v", start=moment(first), end=moment(first + 120))
    with ground.store.reading() as reading:
        by_day = exported(reading, "key-day", wanted)
        by_month = exported(reading, "key-month", wanted)
    assert by_day == [(day, "a", total) for day, total in days]
    assert by_month == [(date(2010, 11, 1), "a", 3)]


def test_a_window_that_is_too_long_for_a_series_is_refused(ground: Ground) -> None:
    played = Played(ground, ("UTC", ["minute"], None))
    played.send({("a", now_minute() - 100): 1})
    played.apply()
    with pytest.raises(SeriesTooLong):
        played.reads.ask(Query(Selection("v", last=Last.of("3000h")), by="minute"))


def test_an_unrolled_series_says_from_when_on_there_are_single_minutes(ground: Ground) -> None:
    ground.store.counters.set("v", resolution="minute", keep="minute=2d,hour=90d")
    now = now_minute()
    for back in (4 * 1440, 0):
        sent = encode_rows([("v", "", now - back, 1)])
        send(ground.client, Sealed(new_entry_id(back), now_ms(ground.client), sent))
    ground.servers.apply()
    reads = Asking(ground.store, None)
    assert reads.minutely("v", unrolled=True).told_from is None
    roll_up(partial(open_tables, ground.servers.mysql_url), rows=100)
    found = reads.minutely("v", unrolled=True)
    assert sum(total for _, total in found.value) == 1
    assert found.told_from == found.value[0][0]
    assert reads.minutely("v", start=found.told_from, unrolled=True).told_from is None
    assert reads.hourly("v", unrolled=True).told_from is None
