"""Windows and ranges of times against an oracle of single minutes: exact, or refused.

The oracle knows what was sent as (key, minute) -> amount, and finds buckets without a line of the
product's own code.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, example, given
from hypothesis import strategies as st

from countersink.reads import Reads
from countersink.reads.query import Query, ask
from countersink.reads.rows import rows
from countersink.schedules.jobs.move import open_tables
from countersink.schedules.jobs.retention import roll_up
from countersink.store.errors import InexactZone, RolledUp, SeriesTooLong
from countersink.store.sql import label_of
from countersink.store.totals.selection import Last, Selection
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.reads.support import Ground
from tests.store.policy_rows import Change, brute_policy, put_policies
from tests.support.examples import examples
from tests.support.traffic import now_minute, now_ms, send

KEYS = ("", "a", "a ", "ä", "/page")
WIDTH = {"minute": 1, "quarter": 15, "hour": 60, "day": 1440}
HOURLY = ("UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati")
ODD = ("Asia/Kolkata", "Asia/Kathmandu")
BACK = 6 * 1440
"""Minutes that the events lie back at most."""
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""An example takes seconds: making a failing one smaller would take longer than a test may."""
Event = tuple[str, int]
Span = tuple[int, int]
"""Unix minutes, from the one to before the other."""
Bucket = tuple[int, str, int]


def moment(minute: int, zone: str = "UTC") -> datetime:
    return datetime.fromtimestamp(minute * 60, ZoneInfo(zone))


def date_of(minute: int, zone: str) -> date:
    return moment(minute, zone).date()


def midnight(day: date, zone: str) -> int:
    """The Unix minute at which a day begins in a zone whose clocks do not change at midnight."""
    return int(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp()) // 60


@dataclass
class Oracle:
    """What was sent, and in which bucket each minute is.

    Attributes:
        changes: the counter's policies.
        rolled: (policy, resolution) that buckets were rolled up to, and before which minute.
        events: all that was sent.
    """

    changes: list[Change]
    rolled: dict[tuple[int, str], int]
    events: Counter[Event]

    def bucket(self, minute: int) -> Bucket:
        change = brute_policy(self.changes, minute)
        counting = self.changes.index(change)
        _, zone, own = change
        resolution: str = own
        for wider in WIDTH:
            if minute < self.rolled.get((counting, wider), 0):
                resolution = wider
        if resolution == "day":
            return counting, resolution, midnight(date_of(minute, zone), zone)
        width = WIDTH[resolution]
        return counting, resolution, minute // width * width

    def cut(self, *edges: int) -> bool:
        """Whether a bucket goes on at one of these minutes."""
        return any(self.bucket(edge - 1) == self.bucket(edge) for edge in edges)

    def whole(self, minute: int) -> Span:
        """The bucket of a minute, from its beginning to its end, whatever its policy has of it."""
        counting, resolution, begin = self.bucket(minute)
        if resolution != "day":
            return begin, begin + WIDTH[resolution]
        zone = self.changes[counting][1]
        return begin, midnight(date_of(begin, zone) + timedelta(days=1), zone)

    def doubtful(self, *edges: int) -> bool:
        """Whether one lies in the bucket in which a policy ended: that may be refused too."""
        ended = [self.whole(change[0] - 1) for change in self.changes[1:]]
        return any(begin < edge < end for begin, end in ended for edge in edges)

    def begun(self, *edges: int) -> bool:
        """Whether one lies in the bucket in which a policy began: of a series that may be, too."""
        began = [self.whole(change[0]) for change in self.changes[1:]]
        return any(begin < edge < end for begin, end in began for edge in edges)

    def parts(self, width: int, span: Span, zone: str) -> list[int]:
        """When the hours or minutes of a zone begin of which a range has something."""
        ahead = moment(span[0], zone).utcoffset()
        assert ahead is not None
        shift = int(ahead.total_seconds()) // 60
        return list(range((span[0] + shift) // width * width - shift, span[1], width))

    def rolled_wider(self, width: int, minute: int) -> bool:
        """Whether buckets from this minute on, or those of its policy, are rolled up beyond it."""
        return any(
            WIDTH[resolution] > width and until > minute
            for (_, resolution), until in self.rolled.items()
        )

    def may_lack(self, width: int, span: Span, zone: str) -> bool:
        """Whether buckets do not make up the hours or minutes of a range."""
        edges = (*span, *self.parts(width, span, zone)[1:])
        return (
            any(WIDTH[self.bucket(minute)[1]] > width for minute in range(*span))
            or self.cut(*edges)
            or self.doubtful(*edges)
            or self.begun(*edges)
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
        """What a window may be at a minute, the narrowest buckets first; see :meth:`candidates`.
        Empty: it is none of the counter's buckets.
        """
        number, unit = int(window[:-1]), window[-1]
        _, own, resolution = brute_policy(self.changes, now)
        if unit == "d":
            today = date_of(now, zone or own)
            first, after = today - timedelta(days=number - 1), today + timedelta(days=1)
            return [(midnight(first, zone or own), midnight(after, zone or own))]
        width, minutes = WIDTH[resolution], number * (60 if unit == "h" else 1)
        if resolution == "day" or minutes % width:
            return []
        ends = [(now // each + 1) * each for each in (1, 15, 60) if each >= width]
        wholes = [
            end
            for end, each in zip(ends, (1, 15, 60)[-len(ends) :], strict=True)
            if minutes % each == 0
        ]
        return [(end - minutes, end) for end in wholes]

    def candidates(
        self, window: str, zone: str | None, now: int, *, again: bool = False
    ) -> list[Span]:
        """The ranges of :meth:`last` that a window may be: those that no bucket goes beyond, up to
        and with the first that must be answered. Where none must, the last one is for a refusal.

        Args:
            again: the window before it is asked for, too.
        """
        spans, found = self.last(window, zone, now), []
        for begin, end in spans:
            edges = (begin, end, 2 * begin - end) if again else (begin, end)
            if self.cut(*edges):
                continue
            found.append((begin, end))
            if not self.doubtful(*edges):
                return found
        if again:  # What cannot be told of the window before is null.
            return [*found, *self.candidates(window, zone, now)]
        return [*(span for span in found if span != spans[0]), *spans[:1]]


def answered(question: Callable[[], Any]) -> tuple[Any, InexactZone | RolledUp | None]:
    """What a question finds, or why it is refused."""
    try:
        return question(), None
    except (InexactZone, RolledUp) as error:
        return None, error


@st.composite
def counters(draw: Any) -> tuple[list[tuple[int, str, str]], str | None]:
    """(minutes ago, time zone, resolution) of the policies, and the steps to keep them in."""
    steps = draw(
        st.sampled_from(
            (None, "minute=30m,quarter=5h,hour=2d", "minute=3h,hour=3d", "quarter=26h", "hour=1d")
        )
    )
    widest_hour = steps is not None and "hour" in steps
    zones = st.sampled_from(HOURLY if widest_hour else HOURLY + ODD)
    made = []
    for ago in (0, *draw(st.lists(st.integers(1, BACK), max_size=2, unique=True))):
        zone = draw(zones)
        finer = [each for each in WIDTH if each != "hour" or zone in HOURLY]
        if ago == 0 and steps is not None:
            finer = [steps.partition("=")[0]]
        made.append((ago, zone, draw(st.sampled_from(finer))))
    return made, steps


class Played:
    """A counter ``v`` of these policies, what was sent to it, and who answers."""

    def __init__(self, ground: Ground, made: Any) -> None:
        session, client = ground.session, ground.client
        # An example before may have failed with entries in the queue.
        for name in client.scan_iter("*events*"):
            client.delete(name)
        policies, steps = made
        first, *others = policies
        now = now_minute()
        changes: list[Change] = [
            (0, *first[1:]),
            *sorted((now - ago, zone, resolution) for ago, zone, resolution in others),
        ]
        for table in (
            "counter_slot",
            "counter_month",
            "counter_ledger",
            "counter_policy",
            "counter",
        ):
            session.execute(f"DELETE FROM {table}")
        put_policies(session, "v", changes)
        if steps is not None:
            ground.store.counters.set("v", keep=steps)
        self._client, self._servers = client, ground.servers
        self.store, self.reads = ground.store, Reads(ground.store, client)
        self.oracle = Oracle(changes, {}, Counter())

    def send(self, events: dict[Event, int]) -> None:
        """One entry for the queue."""
        at = now_ms(self._client)
        content = [("v", key, minute, amount) for (key, minute), amount in events.items()]
        send(self._client, Sealed(new_entry_id(at), at, encode_rows(content)))
        self.oracle.events.update(events)

    def apply(self) -> None:
        """The worker takes all that is in the queue."""
        self._servers.apply()

    def retain(self) -> None:
        """Retention rolls up what is due."""
        roll_up(partial(open_tables, self._servers.mysql_url), rows=100)
        with self.store.reading() as session:  # the other one may have been idle for too long
            found = session.query(
                "SELECT rolls, resolution, rolled_to FROM counter_policy"
                " WHERE counter = 'v' AND rolled_to IS NOT NULL"
            )
        self.oracle.rolled = {
            (rolls, resolution): label_of(until) // 60 for rolls, resolution, until in found
        }

    def settled(self, window: str, candidates: list[Span], *, again: bool = False) -> Span | None:
        """Which of these ranges the answer says that it is of; the last where it is refused."""
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        wanted = Selection("v", last=Last.of(window))
        query = Query(wanted, by="total", against_previous=again, include_pending=True)
        answer, error = answered(partial(ask, self.reads, query))
        if error is not None:
            return candidates[-1]
        start, end = (
            int(each.timestamp()) // 60 for each in (answer.window.start, answer.window.end)
        )
        assert (start, end) in candidates, (window, start, end)
        return start, end

    def check(self, asked: dict[str, Any], span: Span | None, *, pending: bool) -> bool:
        """What is answered is exact, and refused is only what the buckets do not tell."""
        refused = span is None or self.oracle.cut(*span)
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
                may = refused or (span is not None and self.oracle.doubtful(*span))
                assert may, (name, asked, str(error))
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
            return [row[1:] for row in rows(session, by, Selection("v", **given))]

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
                assert self.oracle.rolled_wider(width, start), (asked, width)
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
            assert self.oracle.cut(*edges) or self.oracle.doubtful(*edges), (asked, str(error))
            return
        assert [day for day, _ in days.value] == there
        for day, amount in days.value:
            begin, stop = midnight(day, zone), midnight(day + timedelta(days=1), zone)
            assert amount == self.oracle.total((max(begin, start), min(stop, end))), (asked, day)

    def check_previous(self, asked: dict[str, Any], span: Span, before: Span) -> None:
        """Beside each key stands what it had in the window before, or null."""
        if self.oracle.cut(*span) or self.oracle.doubtful(*span):
            return
        for by in ("key", "total"):
            query = Query(
                Selection("v", **asked), by=by, against_previous=True, include_pending=True
            )
            for row in ask(self.reads, query).rows:
                total, previous = self.oracle.total(span), self.oracle.total(before)
                if by == "key":
                    key = row["key"]
                    total = self.oracle.by_key(span).get(key, 0)
                    previous = self.oracle.by_key(before).get(key, 0)
                assert row["total"] == total
                doubtful = self.oracle.doubtful(*before)
                told = None if self.oracle.cut(*before) else previous
                assert row["previous"] == told or (doubtful and row["previous"] is None), asked


def some(chance: random.Random, edges: list[int]) -> dict[Event, int]:
    now = now_minute()
    at = [now - chance.randrange(BACK) for _ in range(60)]
    at += [now - chance.randrange(200) for _ in range(40)]
    at += [edge + chance.choice((-61, -16, -1, 0, 1, 14, 61)) for edge in edges]
    amounts = (-1, 1, 2, 3, 9)
    return {(chance.choice(KEYS), min(one, now)): chance.choice(amounts) for one in at}


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
    edges = [since for since, _, _ in oracle.changes[1:]]
    played.send(some(chance, edges))
    played.apply()
    played.retain()
    for waiting in (False, True):
        if waiting:
            played.send(some(chance, edges))
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
# From 00:00 to 04:00 UTC the last 47 hours begin on the day of UTC in which counting by days ended.
@example(
    made=(
        [
            (0, "Pacific/Kiritimati", "minute"),
            (1686, "Pacific/Kiritimati", "minute"),
            (2737, "UTC", "day"),
        ],
        "minute=30m,quarter=5h,hour=2d",
    ),
    seed=71,
)
@given(made=counters(), seed=st.integers(0, 2**32))
def test_the_last_so_many_are_whole_buckets_up_to_now_or_refused(
    ground: Ground, made: Any, seed: int
) -> None:
    chance = random.Random(seed)
    played = Played(ground, made)
    played.send(some(chance, []))
    played.apply()
    played.retain()
    played.send(some(chance, []))
    for window in ("24h", "90m", "7d", "1d", "1h", "30m", "45m", "7m", "47h", "2d"):
        # Of days it is those of a zone that is named, or of the counter's own.
        zone = chance.choice((*HOURLY, *ODD)) if chance.random() < 0.7 else None
        if zone is None and len({each for _, each, _ in played.oracle.changes}) > 1:
            continue
        asked: dict[str, Any] = {"last": window}
        if zone is not None:
            asked["time_zone"] = zone
        same_minute(partial(check_last, played, asked, window, zone))


def check_last(
    played: Played, asked: dict[str, Any], window: str, zone: str | None, now: int
) -> None:
    span = played.settled(window, played.oracle.candidates(window, zone, now))
    played.check(asked, span, pending=True)
    if span is None:
        with pytest.raises(InexactZone) as caught:
            played.store.totals.total("v", **asked)
        check_advice(played.oracle, str(caught.value), window, now)
        return
    zone = zone or played.oracle.changes[-1][1]
    if window[-1] == "d":
        return
    if not played.oracle.cut(*span) and not played.oracle.doubtful(*span):
        played.check_series({"last": window}, span, zone)
    candidates = played.oracle.candidates(window, zone, now, again=True)
    span = played.settled(window, candidates, again=True)
    assert span is not None
    before = 2 * span[0] - span[1], span[0]
    played.check_previous({"last": Last.of(window)}, span, before)


def check_advice(oracle: Oracle, text: str, window: str, now: int) -> None:
    """The error names a resolution that has such windows, and a window that there is."""
    _, _, resolution = brute_policy(oracle.changes, now)
    named = text.partition("--resolution ")[2].partition(" ")[0]
    minutes = int(window[:-1]) * (60 if window[-1] == "h" else 1)
    assert minutes % WIDTH[named] == 0
    assert WIDTH[named] < WIDTH[resolution]
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


def test_a_window_is_told_where_the_one_before_cannot_be(ground: Ground) -> None:
    """By days until this hour began, which is the first of its day, and by minutes since."""

    def check(now: int) -> None:
        hour, of_day = now // 60 * 60, now // 60 % 24
        zone = f"Etc/GMT+{of_day}" if of_day <= 12 else f"Etc/GMT-{24 - of_day}"
        made = ([(0, zone, "day"), (now - hour, zone, "minute")], None)
        played = Played(ground, made)
        played.send({("a", hour): 2, ("a", hour - 1): 4})
        played.apply()
        query = Query(Selection("v", last=Last.of("1h")), by="key", against_previous=True)
        answer = ask(played.reads, query)
        assert answer.rows == [{"key": "a", "total": 2, "previous": None}]
        assert answer.window is not None
        assert answer.window.start == moment(hour)

    same_minute(check)


def test_times_beside_a_change_of_zones_have_the_days_of_both(ground: Ground) -> None:
    """In New York it is still the day before, when it takes over from Kolkata."""
    change = int(datetime(2026, 11, 20, 23, tzinfo=UTC).timestamp()) // 60
    made = ([(0, "Asia/Kolkata", "minute")], None)
    played = Played(ground, made)
    put_policies(
        ground.session, "v", [(0, "Asia/Kolkata", "minute"), (change, "America/New_York", "minute")]
    )
    played.send({("a", change - 30): 2, ("a", change + 30): 4, ("a", change + 600): 8})
    played.apply()
    kolkata, new_york = date(2026, 11, 21), date(2026, 11, 20)
    start, end = moment(change - 60), moment(change + 60)
    days = ground.store.totals.daily("v", start=start, end=end)
    assert days == [(new_york, 4), (kolkata, 2)]
    assert ground.store.totals.daily("v", end=end) == days
    assert sum(total for _, total in ground.store.totals.daily("v", start=start)) == 14
    cases: list[tuple[dict[str, Any], list[tuple[date, str, int]]]] = [
        ({"start": start, "end": end}, [(new_york, "a", 4), (kolkata, "a", 2)]),
        ({"start": moment(change)}, [(new_york, "a", 4), (kolkata, "a", 8)]),
    ]
    for asked, expected in cases:
        with ground.store.reading() as reading:
            found = [row[1:] for row in rows(reading, "key-day", Selection("v", **asked))]
            months = [row[1:] for row in rows(reading, "key-month", Selection("v", **asked))]
        assert found == expected
        assert months == [(date(2026, 11, 1), "a", sum(total for *_, total in expected))]


def test_a_date_that_comes_back_is_counted_once(ground: Ground) -> None:
    """St. John's, 2010-11-07: at a minute past midnight clocks went back to 23:01."""
    zone = "America/St_Johns"
    made = ([(0, zone, "minute")], None)
    played = Played(ground, made)
    first = int(datetime(2010, 11, 7, 2, 30, tzinfo=UTC).timestamp()) // 60
    played.send({("a", first + 10): 1, ("a", first + 90): 2})
    played.apply()
    days = ground.store.totals.daily("v", start=moment(first), end=moment(first + 120))
    assert days == [(date(2010, 11, 6), 1), (date(2010, 11, 7), 2)]


def test_a_window_that_is_too_long_for_a_series_is_refused(ground: Ground) -> None:
    played = Played(ground, ([(0, "UTC", "minute")], None))
    played.send({("a", now_minute() - 100): 1})
    played.apply()
    with pytest.raises(SeriesTooLong):
        ask(played.reads, Query(Selection("v", last=Last.of("3000h")), by="minute"))


def test_an_unrolled_series_says_from_when_on_there_are_single_minutes(ground: Ground) -> None:
    ground.store.counters.set("v", resolution="minute", keep="minute=2d,hour=90d")
    now = now_minute()
    for back in (4 * 1440, 0):
        sent = encode_rows([("v", "", now - back, 1)])
        send(ground.client, Sealed(new_entry_id(back), now_ms(ground.client), sent))
    ground.servers.apply()
    reads = Reads(ground.store, None)
    assert reads.minutely("v", unrolled=True).told_from is None
    roll_up(partial(open_tables, ground.servers.mysql_url), rows=100)
    found = reads.minutely("v", unrolled=True)
    assert sum(total for _, total in found.value) == 1
    assert found.told_from == found.value[0][0]
    assert reads.minutely("v", start=found.told_from, unrolled=True).told_from is None
    assert reads.hourly("v", unrolled=True).told_from is None


def test_a_series_of_minutes_is_whole_where_retention_has_rolled_up_none(ground: Ground) -> None:
    ground.store.counters.set("v", resolution="minute", keep="minute=2d,hour=90d")
    reads, now, far = Reads(ground.store, None), now_minute(), 100 * 1440

    def count(*back: int) -> None:
        for each in back:
            sent = encode_rows([("v", "", now - each, 1)])
            send(ground.client, Sealed(new_entry_id(each), now_ms(ground.client), sent))
        ground.servers.apply()
        roll_up(partial(open_tables, ground.servers.mysql_url), rows=100)

    def minutes(start: int | None, end: int | None = None) -> list[tuple[datetime, int]]:
        """Those that have counts, of some minutes before now."""
        begin, stop = (None if edge is None else moment(now - edge) for edge in (start, end))
        found = reads.minutely("v", start=begin, end=stop, unrolled=True)
        assert found.told_from is None
        if start is not None:
            assert len(found.value) == start - (end or 0) + (end is None)
        return [(at, total) for at, total in found.value if total]

    count(0)
    today = [(moment(now), 1)]
    assert minutes(None) == minutes(5 * 1440) == minutes(10 * 1440) == today
    assert minutes(5 * 1440, 4 * 1440) == []
    count(4 * 1440)  # an hour has it
    assert minutes(5 * 1440, 4 * 1440 + 60) == minutes(10 * 1440, 5 * 1440) == []
    assert minutes(4 * 1440 - 60) == today  # behind it
    hour = (now - 4 * 1440) // 60 * 60
    for start, end in ((5 * 1440, 0), (now - hour - 1, 3 * 1440), (5 * 1440, now - hour - 1)):
        with pytest.raises(RolledUp):
            reads.minutely("v", start=moment(now - start), end=moment(now - end))
    assert reads.minutely("v", unrolled=True).told_from is not None
    assert reads.hourly("v").value[0] == (moment(hour), 1)
    count(far)  # a day has it
    assert reads.hourly("v", start=moment(hour - 10 * 1440)).value[-1][1] == 1
    with pytest.raises(RolledUp):
        reads.hourly("v")
