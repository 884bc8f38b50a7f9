"""Different members against an oracle of sets, over random events, zones, widths and salts:
exact, or refused, and of many the estimate of a sketch of all of them; through the real queue,
beside compaction and retention.
"""

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals import unions
from countersink.counting.totals.query import Query
from countersink.counting.totals.selection import Selection
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.visitors import SketchUnion, Visitors
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.store import NotUnique
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.reads.support import Ground
from tests.reads.test_windows import (
    BACK,
    HOURLY,
    KEYS,
    ODD,
    UNSHRUNK,
    Played,
    Span,
    counters,
    date_of,
    midnight,
    moment,
)
from tests.support.asking import Asking
from tests.support.examples import MANY, examples
from tests.support.sketches import registers, sketch_of
from tests.support.traffic import now_minute, now_ms, send

Event = tuple[str, int, str]
"""(key, minute, member)."""


def exactly(members: set[str]) -> Visitors:
    return Visitors(len(members), False, len(members), len(members))


class Sighted(Played):
    """A counter ``v`` that counts so, whose salts last so many days, and who was seen."""

    def __init__(self, ground: Ground, made: Any, days: int) -> None:
        session = ground.session
        for table in "visitor_slot", "visitor_salt":
            session.execute(f"DELETE FROM {table}")
        super().__init__(ground, made)
        ground.store.counters.set("v", salt_days=days)
        self.seen: set[Event] = set()
        self.salts: list[tuple[int, int, bytes]] = []  # (begins, number, salt)
        # As if they had been made day by day since long ago.
        session.execute("DELETE FROM visitor_salt")
        zone = self.oracle.zone
        first = date_of(now_minute() - BACK - 3 * 1440, zone)
        begins = -(2**31)
        for at in range(14):
            ends = midnight(first + timedelta(days=(at + 1) * days), zone) if days else None
            salt = os.urandom(16)
            session.execute(
                "INSERT INTO visitor_salt (counter, begins, ends, salt) VALUES ('v', %s, %s, %s)",
                (begins, ends, salt),
            )
            ((number,),) = session.query("SELECT MAX(number) FROM visitor_salt")
            self.salts.append((begins, int(number), salt))
            if ends is None:
                break
            begins = ends

    def salt(self, minute: int) -> tuple[int, int, bytes]:
        return max(one for one in self.salts if one[0] <= minute)

    def see(self, events: list[Event]) -> None:
        """One entry for the queue."""
        folded: dict[tuple[str, int], list[str]] = defaultdict(list)
        for key, minute, member in events:
            folded[key, minute].append(member)
        content: list[Any] = []
        for (key, minute), members in folded.items():
            _, number, salt = self.salt(minute)
            hashes = {blake2b(each.encode(), digest_size=8, key=salt).digest() for each in members}
            row = ("v", key, minute, len(members), number, b"".join(hashes))
            content.append(row)
        at = now_ms(self._client)
        send(self._client, Sealed(new_entry_id(at), at, encode_rows(content)))
        self.seen.update(events)
        self.oracle.waiting += [minute for _, minute, _ in events]

    def compact(self) -> None:
        compact(partial(open_tables, self._servers.mysql_url), CompactOptions(grace_s=0))

    def see_many(self, events: list[Event]) -> None:
        """Several entries of them."""
        for at in range(0, len(events), 1000):
            self.see(events[at : at + 1000])

    def hashes(self, events: Iterable[Event]) -> bytes:
        """Of the members of events, as their rows bring them."""
        return b"".join(
            blake2b(member.encode(), digest_size=8, key=self.salt(minute)[2]).digest()
            for _, minute, member in events
        )

    def require_told(self, found: Visitors, span: Span, key: str | None, asked: Any) -> None:
        """An answer is the number of members; or the estimate of a sketch of all of them."""
        members = self.members(span, key)
        if not found.estimate:
            assert found == exactly(members), (asked, key)
            return
        events = [one for one in self.seen if span[0] <= one[1] < span[1] and key in (None, one[0])]
        of_all = SketchUnion()
        of_all.add(sketch_of(self.hashes(events)))
        assert found == of_all.visitors(), (asked, key)
        assert found.low <= found.total <= found.high
        # Of several hundred answers one may lie three standard errors beside the truth.
        assert abs(found.total - len(members)) <= 5 * 0.0115 * len(members) + 1, (asked, key)

    def members(self, span: Span, key: str | None = None) -> set[str]:
        return {
            member
            for own, minute, member in self.seen
            if span[0] <= minute < span[1] and key in (None, own)
        }

    def several(self, span: Span) -> bool:
        """Whether buckets of a range hold events of times of several salts."""
        found = set()
        for minute, bucket in self.oracle.placed:
            if span[0] <= minute < span[1]:
                found |= {self.salt(bucket[1])[1], self.salt(self.oracle.ends(bucket) - 1)[1]}
        return len(found) > 1

    def truly_several(self, span: Span) -> bool:
        """Whether events of a range have several salts."""
        minutes = {minute for _, minute, _ in self.seen if span[0] <= minute < span[1]}
        return len({self.salt(minute)[1] for minute in minutes}) > 1

    def check_members(self, asked: dict[str, Any], span: Span) -> None:
        """A range is answered exactly, or refused for a reason."""
        doubtful = self.oracle.cut(*span)
        for key in (None, "a", "none"):
            try:
                found = self.store.totals.unique("v", key=key, **asked)
            except NotUnique:
                assert self.several(span), (asked, key)
            except (InexactZone, RolledUp):
                assert doubtful, (asked, key)
            else:
                self.require_told(found, span, key, asked)
                if key is None:
                    assert not self.truly_several(span), asked
        query = Query(Selection("v", **asked), by="key", unique=True)
        try:
            rows = list(self.reads.ask(query).documents())
        except (NotUnique, InexactZone, RolledUp):
            assert doubtful or self.several(span), asked
            return
        for row in rows:
            told = Visitors(row["total"], row["estimate"], row["low"], row["high"])
            self.require_told(told, span, row["key"], asked)
        assert {row["key"] for row in rows} == {key for key in KEYS if self.members(span, key)}
        ordered = sorted(rows, key=lambda row: (-row["total"], row["key"].encode()))
        assert rows == ordered

    def check_days(self, first: date, last: date, zone: str) -> None:
        """Each day of a range is told exactly, or the range is refused."""
        asked: Any = {"start": first, "end": last, "time_zone": zone}
        days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        spans = [(midnight(day, zone), midnight(day + timedelta(days=1), zone)) for day in days]
        try:
            found = self.store.totals.unique_by("v", "day", **asked)
        except NotUnique:
            assert any(map(self.several, spans))
        except (InexactZone, RolledUp):
            edges = {edge for span in spans for edge in span}
            assert self.oracle.cut(*edges)
        else:
            assert [day for day, _ in found] == days
            for (day, visitors), span in zip(found, spans, strict=True):
                self.require_told(visitors, span, None, day)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.timeout(1200)
@examples(few=1, many=40, phases=UNSHRUNK)
@given(made=counters(), days=st.sampled_from((0, 0, 1, 2)), seed=st.integers(0, 2**32))
def test_different_members_are_exact_or_refused(
    ground: Ground, made: Any, days: int, seed: int
) -> None:
    chance = random.Random(seed)
    played = Sighted(ground, made, days)
    members = [f"visitor {n}" for n in range(40)]
    for part in range(3):
        played.turn(made[1][part % len(made[1])])
        now = now_minute()
        at = [now - chance.randrange(BACK) for _ in range(60)]
        at += [now - chance.randrange(200) for _ in range(40)]
        played.see([(chance.choice(KEYS), one, chance.choice(members)) for one in at])
        played.apply()
        if part:
            chance.choice((played.compact, played.retain))()
    played.retain()
    for _ in range(10 if MANY else 6):
        now, width = now_minute(), chance.choice((1, 15, 60))
        first = (now - chance.randrange(BACK)) // width * width
        end = first + chance.choice((1, 2, 3, 7, 24)) * chance.choice((width, 60))
        played.check_members({"start": moment(first), "end": moment(end)}, (first, end))
        zone = chance.choice(HOURLY + ODD)
        day = date_of(first, zone)
        last = day + timedelta(days=chance.randrange(3))
        span = midnight(day, zone), midnight(last + timedelta(days=1), zone)
        played.check_members({"start": day, "end": last, "time_zone": zone}, span)
        played.check_days(day, last, zone)
    every = now_minute() - 2 * BACK, now_minute() + 1
    played.check_members({}, every)


@pytest.mark.random
@pytest.mark.parametrize(
    ("made", "days", "back"),
    [
        (("UTC", ["minute"], "minute=3h,hour=3d"), 0, BACK),
        (("Europe/Berlin", ["day", "hour", "minute"], None), 0, BACK),
        (("Asia/Kolkata", ["quarter"], "quarter=26h"), 1, BACK),
        (("Europe/Berlin", ["hour", "quarter"], "day=2d"), 0, 5 * BACK),
    ],
    ids=["steps", "changes", "salts", "months"],
)
def test_many_members_are_told_by_the_union_of_all_of_them(
    ground: Ground, made: Any, days: int, back: int
) -> None:
    chance = random.Random(7)
    apart, sizes = (20, (1200, 500, 30)) if MANY else (240, (1000, 200, 30))
    played = Sighted(ground, made, days)
    for part in range(3):
        played.turn(made[1][part % len(made[1])])
        now = now_minute()
        events: list[Event] = []
        for key, most in zip(("a", "/page", "ä"), sizes, strict=True):
            minutes = [now - chance.randrange(back // apart) * apart for _ in range(most)]
            minutes += [now - chance.randrange(back)] * (most // 3)
            events += [(key, minute, f"visitor {chance.randrange(most)}") for minute in minutes]
        played.see_many(events)
        played.apply()
        (played.compact, played.retain, played.compact)[part]()
    played.retain()
    for _ in range(5 if MANY else 3):
        now, width = now_minute(), chance.choice((1, 60, 1440))
        first = (now - chance.randrange(BACK)) // width * width
        end = first + chance.choice((1, 3, 24)) * width
        played.check_members({"start": moment(first), "end": moment(end)}, (first, end))
        day = date_of(first, made[0])
        last = day + timedelta(days=chance.randrange(3))
        played.check_days(day, last, made[0])
    if days:
        return
    every = now_minute() - 2 * back, now_minute() + 1
    played.check_members({}, every)
    assert ground.store.totals.unique("v", key="a").estimate
    with ground.store.reading() as reading:
        for chosen in (None, "a", "/page", "ä"):
            own = Selection("v", keys=None if chosen is None else (chosen,))
            union = unions._united(Snapshot(reading), own, lambda view, sketch: None)[None]
            events = [one for one in played.seen if chosen in (None, one[0])]
            assert registers(union.sketch()) == registers(sketch_of(played.hashes(events)))


def test_dimensions_tell_different_members_of_their_values(ground: Ground) -> None:
    ground.store.counters.set(
        "v", salt_days=0, dimensions=["page", "country"], breakdowns=["page,country"]
    )
    chance, now = random.Random(5), now_minute()
    ((number, salt),) = ground.session.query("SELECT number, salt FROM visitor_salt")
    seen: set[tuple[str, str, str]] = set()
    content: list[Any] = []
    for _ in range(300):
        page, country = chance.choice(("/", "/a", "")), chance.choice(("DE", "FR", ""))
        member = f"{chance.randrange(60)}"
        seen.add((page, country, member))
        hashed = blake2b(member.encode(), digest_size=8, key=bytes(salt)).digest()
        key = (("country", country), ("page", page))
        content.append(("v", key, now, 1, int(number), hashed))
    at = now_ms(ground.client)
    send(ground.client, Sealed(new_entry_id(at), at, encode_rows(content)))
    ground.servers.apply()
    for by in (("page",), ("country",), ("country", "page"), ("page", "country")):
        query = Query(Selection("v"), by="dimensions", dimensions=by, unique=True)
        groups: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for page, country, member in seen:
            named = {"page": page, "country": country}
            groups[tuple(named[name] for name in by)].add(member)
        found = Asking(ground.store, ground.client).ask(query).documents()
        assert {tuple(row[name] for name in by): row["total"] for row in found} == {
            values: len(own) for values, own in groups.items()
        }
    by_country = ground.store.totals.unique_by_dimensions(
        "v", ["country"], where={"page": "/a"}, n=2
    )
    wanted: dict[str, set[str]] = defaultdict(set)
    for page, country, member in seen:
        if page == "/a":
            wanted[country].add(member)
    largest = sorted(wanted.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:2]
    assert by_country == [((country,), exactly(own)) for country, own in largest]
    german = {member for _, country, member in seen if country == "DE"}
    assert ground.store.totals.unique("v", where={"country": "DE"}).total == len(german)
    assert ground.store.totals.unique("v").total == len({member for *_, member in seen})
    today = datetime.now(UTC).date()
    ((_, last),) = ground.store.totals.unique_by("v", "day", where={"country": "DE"}, start=today)
    assert last.total == len(german)
