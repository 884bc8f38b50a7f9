"""Totals by dimensions stay those of the events, whatever is compacted, rolled up or declared."""

import random
from collections import Counter as Bag
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from countersink.runtime.dimensions import check_dimensions
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables as open_mover
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.apply.amounts import Row
from countersink.store.connection import Session
from countersink.store.verify import open_session, verify
from tests.store.helpers import applier as new_applier
from tests.store.helpers import entry
from tests.support.asking import Asking
from tests.support.examples import MANY
from tests.support.traffic import now_minute

NAMES = ("country", "device", "page")
VALUES: Mapping[str, Sequence[str]] = {
    "page": ["/", "/a", "/b", "a\0b", ""],
    "country": ["DE", "AT", ""],
    "device": ["phone", ""],
}
DAY = 1440


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The store of the same database."""
    with Store(mysql_url) as opened:
        yield opened


@dataclass
class Story:
    """A counter, what was counted of it, and since when each of its breakdowns holds events."""

    url: str
    store: Store
    rng: random.Random
    events: Bag[tuple[tuple[str, ...], int]] = field(default_factory=Bag)

    def count(self, number: int, minutes: Sequence[int]) -> None:
        """Count random events, in two entries, of which one comes twice."""
        rows: list[Row] = []
        for position in range(number):
            used = self.rng.sample(NAMES, self.rng.randrange(len(NAMES) + 1))
            values = {name: self.rng.choice(VALUES[name]) for name in used}
            at, amount = self.rng.choice(minutes), self.rng.randrange(-2, 9)
            self.events[tuple(values.get(name, "") for name in NAMES), at] += amount
            rows.append((position, "views", check_dimensions(values), at, amount))
        half = number // 2
        applier = new_applier(self.url, self.rng.randrange(1, 5))
        first = entry(rows[:half])
        applier.apply([first, entry(rows[half:])])
        applier.apply([first])
        applier.close()

    def expected(
        self, names: Sequence[str], since: int = 0, start: date | None = None, zone: str = "UTC"
    ) -> dict[tuple[str, ...], int]:
        """Totals by some dimensions of the events since a minute, or since a local day."""
        found: Bag[tuple[str, ...]] = Bag()
        for (values, at), amount in self.events.items():
            local = datetime.fromtimestamp(at * 60, ZoneInfo(zone)).date()
            if at >= since and (start is None or local >= start):
                found[tuple(values[NAMES.index(name)] for name in names)] += amount
        return {key: amount for key, amount in found.items() if amount}

    def check(self) -> None:
        """Every breakdown has the totals that its events have; verify finds nothing."""
        shown = self.store.counters.show("views")
        zone = shown.time_zone
        assert self.store.totals.total("views") == sum(self.events.values())
        for each in shown.breakdowns:
            # Of a later breakdown, too: Totals refuse what lacks events.
            found = dict(Asking(self.store, None).by("views", each.dimensions).value)
            assert {key: amount for key, amount in found.items() if amount} == self.expected(
                each.dimensions, each.since
            )
            told = self.store.totals.rolled_up_to("views")
            own = self.store.totals.rolled_up_to(each.name)
            start = max(filter(None, (told, own, date(1970, 1, 1))))
            if not each.since:
                found = dict(self.store.totals.by("views", each.dimensions, start=start))
                assert {key: amount for key, amount in found.items() if amount} == self.expected(
                    each.dimensions, 0, start, zone
                )
        with open_session(self.url) as session:
            assert verify(session).differences == []


@pytest.mark.random
@pytest.mark.parametrize("seed", range(4 if MANY else 1))
def test_totals_stay_whatever_jobs_do(mysql_url: str, store: Store, seed: int) -> None:
    rng = random.Random(seed)
    zone = rng.choice(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Auckland"])
    now = now_minute()
    store.counters.set(
        "views",
        dimensions=NAMES,
        breakdowns=["page", "country,page"],
        resolution="minute",
        time_zone=zone,
    )
    story = Story(mysql_url, store, rng)
    # Recent minutes, days and months.
    minutes = [
        now - rng.randrange(span)
        for span in (60, 3 * DAY, 30 * DAY, 200 * DAY) * (15 if MANY else 8)
    ]
    story.count(120, minutes)
    story.check()
    store.counters.set("views", keep="minute=1d,quarter=4d,hour=20d")
    roll_up(partial(open_mover, mysql_url))
    story.check()
    story.count(60, minutes)
    compact(partial(open_mover, mysql_url), CompactOptions(threshold=0, counter="views"))
    with open_session(mysql_url) as session:
        left = session.query("SELECT DISTINCT counter FROM counter_slot WHERE slot > 0")
    assert left == []  # its breakdowns' rows as well
    story.check()
    store.counters.set("views", keep="minute=1d,quarter=4d,hour=20d,day=40d")
    roll_up(partial(open_mover, mysql_url))
    story.check()
    later = store.counters.set("views", breakdowns=["page", "country,page", "device"])
    since = later.breakdowns[-1].since
    assert since > now
    story.count(60, [*minutes, *range(since - 1, since + 3)])
    story.check()
    # Another resolution, of events before the new breakdown begins and after.
    store.counters.set("views", resolution="hour")
    story.count(60, [*minutes, *range(since - 1, since + 5)])
    with open_session(mysql_url) as session:
        assert verify(session).differences == []
    roll_up(partial(open_mover, mysql_url))
    compact(partial(open_mover, mysql_url), CompactOptions(before=date(2099, 1, 1)))
    assert store.totals.total("views") == sum(story.events.values())
    found = dict(store.totals.by("views", ["page"]))
    assert {key: amount for key, amount in found.items() if amount} == story.expected(["page"])
    store.counters.set("views", breakdowns=["device"])
    with open_session(mysql_url) as session:
        assert verify(session).differences == []
        assert not_of(session, "views", "views#3") == 0


def not_of(session: Session, *names: str) -> int:
    """Rows of other counters than these."""
    listed = ", ".join(f"'{name}'" for name in names)
    ((number,),) = session.query(
        f"SELECT COUNT(*) FROM counter_slot WHERE counter NOT IN ({listed})"
    )
    return int(number)
