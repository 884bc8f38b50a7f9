"""Totals by dimensions are those of the events."""

import random
from collections import Counter as Bag
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from zoneinfo import ZoneInfo

import pytest

from countersink.runtime.dimensions import check_dimensions
from countersink.store import Store
from countersink.store.apply.amounts import Row
from countersink.store.apply.apply import Applier
from countersink.store.apply.key_caps import OVERFLOW
from countersink.store.counters.catalog import load
from countersink.store.errors import UnknownCounter, UnknownDimension
from tests.store.helpers import entry, minute

NAMES = ("country", "device", "page")
VALUES: Mapping[str, Sequence[str]] = {
    "page": ["/", "/a", "/a/b", "/é", "a\0b", "a\1", ""],
    "country": ["DE", "AT", "", "de"],
    "device": ["phone", "tablet", ""],
}


@dataclass
class Oracle:
    """What was counted, event by event: (dimensions, minute) -> amount."""

    events: Bag[tuple[tuple[tuple[str, str], ...], int]] = field(default_factory=Bag)

    def add(self, dimensions: Mapping[str, str], at: int, amount: int) -> Row:
        """Note an event; the row that counts it."""
        self.events[tuple(sorted(dimensions.items())), at] += amount
        return 0, "views", check_dimensions(dimensions), at, amount

    def chosen(
        self, where: Mapping[str, str], wanted: Callable[[int], bool]
    ) -> Iterator[tuple[dict[str, str], int, int]]:
        """(values of all dimensions, minute, amount) of the events that are asked for."""
        for (dimensions, at), amount in self.events.items():
            values = {name: dict(dimensions).get(name, "") for name in NAMES}
            if wanted(at) and all(values[name] == value for name, value in where.items()):
                yield values, at, amount

    def by(
        self,
        names: Sequence[str],
        where: Mapping[str, str],
        wanted: Callable[[int], bool] = lambda at: True,
    ) -> dict[tuple[str, ...], int]:
        """Totals by some dimensions; those of 0 are there too."""
        found: Bag[tuple[str, ...]] = Bag()
        for values, _, amount in self.chosen(where, wanted):
            found[tuple(values[name] for name in names)] += amount
        return dict(found)

    def daily(self, where: Mapping[str, str], zone: str = "UTC") -> dict[date, int]:
        """Totals by local day."""
        found: Bag[date] = Bag()
        for _, at, amount in self.chosen(where, lambda at: True):
            found[datetime.fromtimestamp(at * 60, ZoneInfo(zone)).date()] += amount
        return dict(found)


def random_rows(
    random: random.Random, oracle: Oracle, minutes: Sequence[int], number: int
) -> list[Row]:
    """Rows of random events."""
    rows = []
    for position in range(number):
        names = random.sample(NAMES, random.randrange(len(NAMES) + 1))
        dimensions = {name: random.choice(VALUES[name]) for name in names}
        row = oracle.add(dimensions, random.choice(minutes), random.randrange(-3, 9))
        rows.append((position, *row[1:]))
    return rows


def questions(random: random.Random) -> Iterator[tuple[list[str], dict[str, str]]]:
    """(by, where) of all combinations of dimensions, with random values."""
    for size in range(1, len(NAMES) + 1):
        for used in combinations(NAMES, size):
            for filtered in range(len(used)):
                by = random.sample(used, len(used) - filtered)
                rest = [name for name in used if name not in by]
                yield by, {name: random.choice(VALUES[name]) for name in rest}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long("more random events")) for n in (1, 2))]
)
@pytest.mark.parametrize(
    "breakdowns",
    [
        ["page,country,device"],
        ["device,page,country", "country", "page", "page,country", "country,device"],
    ],
    ids=["one", "several"],
)
def test_every_question_is_answered_by_the_events(
    store: Store, applier: Applier, breakdowns: list[str], seed: int
) -> None:
    rng = random.Random(seed)
    oracle = Oracle()
    store.counters.set(
        "views",
        dimensions=NAMES,
        breakdowns=breakdowns,
        resolution=rng.choice(["day", "hour", "minute"]),
        time_zone=rng.choice(["UTC", "Europe/Berlin", "America/New_York"]),
    )
    zone = store.counters.show("views").time_zone
    minutes = [minute(date(2026, 10, 24)) + rng.randrange(4 * 1440) for _ in range(50)]
    for _ in range(4):
        applier.apply([entry(random_rows(rng, oracle, minutes, 60)) for _ in range(2)])
    day = date(2026, 10, 25)

    def on_day(at: int) -> bool:
        return datetime.fromtimestamp(at * 60, ZoneInfo(zone)).date() == day

    for by, where in questions(rng):
        expected = oracle.by(by, where)
        found = store.totals.by("views", by, where=where)
        assert dict(found) == expected
        assert found == sorted(
            found, key=lambda pair: (-pair[1], [each.encode() for each in pair[0]])
        )
        assert store.totals.by("views", by, where=where, n=3) == found[:3]
        within = store.totals.by("views", by, where=where, start=day, end=day)
        assert dict(within) == oracle.by(by, where, on_day)
        if where:
            assert store.totals.total("views", where=where) == sum(expected.values())
            daily = dict(store.totals.daily("views", where=where))
            assert {day: total for day, total in daily.items() if total} == {
                day: total for day, total in oracle.daily(where, zone).items() if total
            }
    assert store.totals.total("views") == sum(oracle.events.values())


def test_the_smallest_breakdown_answers_and_of_two_that_whose_keys_begin_with_the_filter(
    store: Store,
) -> None:
    store.counters.set(
        "views",
        dimensions=NAMES,
        breakdowns=["page,country,device", "page,country", "country,page"],
    )
    own = store.snapshot(lambda session: load(session).dimensioned["views"])
    assert own.answering(["page", "country"], ["country"])[0].text == "country,page"
    assert own.answering(["page", "country"], ["page"])[0].text == "page,country"
    assert own.answering(["device"])[0].text == "page,country,device"


def test_a_question_without_a_breakdown_names_the_one_to_declare(store: Store) -> None:
    store.counters.set("views", dimensions=NAMES, breakdowns=["page"])
    with pytest.raises(UnknownDimension, match="--breakdowns page country,page"):
        store.totals.by("views", ["page"], where={"country": "DE"})
    with pytest.raises(UnknownDimension, match="no dimension 'colour'"):
        store.totals.by("views", ["colour"])
    store.counters.set("plain")
    with pytest.raises(UnknownDimension, match="it has none"):
        store.totals.by("plain", ["page"])
    with pytest.raises(UnknownCounter):
        store.totals.by("nobody", ["page"])


def test_keys_and_dimensions_are_not_chosen_by_together(store: Store) -> None:
    store.counters.set("views", dimensions=NAMES, breakdowns=["page"])
    with pytest.raises(ValueError, match="not by both"):
        store.totals.total("views", where={"page": "/a"}, keys=["/a"])
    with pytest.raises(ValueError, match="not by both"):
        store.totals.total("views", where={"page": "/a"}, key="/a")


def test_what_had_no_room_has_that_value_in_each_dimension(store: Store, applier: Applier) -> None:
    store.counters.set("views", dimensions=NAMES, breakdowns=["page,country"], max_keys=2)
    oracle = Oracle()
    pages = [f"/{number}" for number in range(5)]
    rows = [oracle.add({"page": page, "country": "DE"}, minute(), 2) for page in pages]
    applier.apply([entry([(position, *row[1:]) for position, row in enumerate(rows)])])
    assert store.totals.by("views", ["page"]) == [((OVERFLOW,), 6), (("/0",), 2), (("/1",), 2)]
    assert store.totals.by("views", ["country", "page"])[0] == ((OVERFLOW, OVERFLOW), 6)
    assert store.totals.total("views", where={"page": OVERFLOW}) == 6
    assert store.totals.total("views", where={"country": OVERFLOW}) == 6
    assert store.totals.total("views", where={"country": "DE"}) == 4
    assert store.totals.total("views", where={"country": OVERFLOW, "page": OVERFLOW}) == 6
    assert store.totals.total("views", where={"country": "DE", "page": OVERFLOW}) == 0


def test_errors_name_the_counter_that_was_asked_about(store: Store, applier: Applier) -> None:
    store.counters.set("views", dimensions=NAMES, breakdowns=["page"])
    applier.apply([entry([Oracle().add({"page": "/a"}, minute(), 1)])])
    with pytest.raises(ValueError, match="'views' is counted by day") as raised:
        store.totals.hourly("views", where={"page": "/a"}, start=date(2026, 11, 21))
    assert "#" not in str(raised.value)
    moment = datetime(2026, 11, 21, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="'views' is counted by day"):
        store.totals.by("views", ["page"], start=moment, end=moment + timedelta(hours=1))
