"""Breakdowns are counted with their counter, in the same transactions, and hold the same events."""

import json
import random
from collections import Counter as Bag
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from countersink.counting.apply import dead
from countersink.counting.apply.amounts import Row
from countersink.counting.apply.applier import Applied, Applier
from countersink.counting.apply.key_caps import OVERFLOW, overflown_by_counter
from countersink.counting.counters.deletion import delete_counter, removed_breakdowns
from countersink.counting.errors import TrackedCounter, UnknownCounter, UnknownDimension
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.runtime.dimensions import RowKey, check_dimensions, composite, values_of
from countersink.store import Store
from countersink.store.verify import verify
from tests.support.entries import Database, entry, keys, ledger, minute
from tests.support.entries import applier as new_applier
from tests.support.ledger import post_planted


@pytest.fixture
def views(store: Store) -> str:
    """A counter with three dimensions and three breakdowns."""
    store.counters.set(
        "views",
        dimensions=["page", "country", "device"],
        breakdowns=["page", "country", "page,country"],
    )
    return "views"


def increments(*amounts: tuple[RowKey | dict[str, str], int], counter: str = "views") -> list[Row]:
    """Rows of (key or dimensions, amount), numbered."""
    return [
        (
            position,
            counter,
            check_dimensions(key) if isinstance(key, dict) else key,
            minute(),
            amount,
        )
        for position, (key, amount) in enumerate(amounts)
    ]


def count(
    applier: Applier, *amounts: tuple[RowKey | dict[str, str], int], counter: str = "views"
) -> Applied:
    """Apply an entry of these."""
    return applier.apply([entry(increments(*amounts, counter=counter))])


def cells(session: Session, counter: str) -> dict[tuple[str, ...], int]:
    """What a breakdown holds, by the values of its dimensions."""
    return {values_of(key.decode()): amount for key, amount in keys(session, counter).items()}


@pytest.mark.servers("mariadb", "mysql")
def test_an_increment_is_counted_in_its_counter_and_in_each_breakdown(
    db: Database, views: str
) -> None:
    done = count(
        db.applier,
        ({"page": "/home", "country": "DE", "device": "phone"}, 2),
        ({"page": "/home", "country": "AT"}, 3),
        ({"country": "DE"}, 5),
    )
    assert (done.rows, done.dead) == (3, 0)
    assert db.keys(views) == {b"": 10}
    assert cells(db.session, "views#1") == {("/home",): 5, ("",): 5}
    assert cells(db.session, "views#2") == {("DE",): 7, ("AT",): 3}
    assert cells(db.session, "views#3") == {("/home", "DE"): 2, ("/home", "AT"): 3, ("", "DE"): 5}
    assert ledger(db.session) == dict.fromkeys(("views", "views#1", "views#2", "views#3"), 10)


def test_events_without_dimensions_have_empty_values_and_keys_are_counted_in_the_counter_alone(
    db: Database, views: str
) -> None:
    count(db.applier, ("", 2), ("/home", 3), ({"page": "/home"}, 4))
    assert db.keys(views) == {b"": 6, b"/home": 3}
    assert cells(db.session, "views#3") == {("", ""): 2, ("/home", ""): 4}


def test_a_row_with_an_undeclared_dimension_is_a_dead_letter_that_is_counted_once_it_is_declared(
    db: Database, views: str
) -> None:
    count(db.applier, ({"page": "/a", "colour": "red"}, 2), ({"page": "/a"}, 3))
    (row,) = dead.list_rows(db.session)
    assert (row.reason, row.position) == ("unknown_dimension", 0)
    assert "--dimensions page,country,device,colour" in row.detail
    assert json.loads(row.payload) == ["views", {"colour": "red", "page": "/a"}, minute(), 2]
    assert cells(db.session, "views#1") == {("/a",): 3}
    db.store.counters.set(views, dimensions=["page", "country", "device", "colour"])
    count(db.applier, ({"page": "/a", "colour": "red"}, 4))
    assert cells(db.session, "views#1") == {("/a",): 7}


def test_each_breakdown_has_its_own_room_for_keys(db: Database, views: str) -> None:
    db.store.counters.set(views, max_keys=3)
    amounts: Sequence[tuple[dict[str, str], int]] = [
        ({"page": f"/{number}", "country": "DE" if number % 2 else "AT"}, 1) for number in range(10)
    ]
    done = count(db.applier, *amounts)
    assert done.overflown == 14
    count(db.applier, *amounts, ("", 4), ("k1", 1), ("k2", 1), ("k3", 1), ("k4", 1))
    found = Bag(cells(db.session, "views#1"))
    assert len(found) == 4
    assert found[(OVERFLOW,)] == 14 + 4
    assert cells(db.session, "views#2") == {("DE",): 10, ("AT",): 10, ("",): 4}
    assert sum(cells(db.session, "views#3").values()) == 24
    # The key that all of these are counted under takes no room of the counter's own.
    assert db.keys(views) == {b"": 24, b"k1": 1, b"k2": 1, b"k3": 1, OVERFLOW.encode(): 1}


def test_settings_of_the_counter_are_those_of_its_breakdowns(db: Database, views: str) -> None:
    db.store.counters.set(
        views,
        time_zone="Europe/Berlin",
        resolution="minute",
        keep="minute=2d,day=90d",
        max_keys=5,
        app_slots=3,
    )
    columns = "time_zone, resolution, max_keys, app_slots, keep_steps"
    settings = db.session.query(f"SELECT {columns} FROM counter")
    assert settings == [("Europe/Berlin", "minute", 5, 3, "minute=2d,day=90d")] * 4
    count(db.applier, ({"page": "/home"}, 2))
    db.store.counters.set(views, resolution="day")
    ends = db.session.query("SELECT counted_minute, resolution FROM counter")
    assert ends[0][0] is not None
    assert ends == [(ends[0][0], "day")] * 4


def test_breakdowns_are_in_no_list_of_counters(applier: Applier, store: Store, views: str) -> None:
    count(applier, ({"page": "/home"}, 2))
    (listed,) = store.counters.list()
    assert listed.name == views
    assert listed.dimensions == ("page", "country", "device")
    assert [each.text for each in listed.breakdowns] == ["page", "country", "page,country"]
    assert store.totals.counters() == {views: 2}


@pytest.mark.servers("mariadb", "mysql")
def test_a_breakdown_that_is_removed_is_deleted_and_its_number_not_used_again(
    db: Database, views: str
) -> None:
    count(db.applier, ({"page": "/home"}, 2))
    db.store.counters.set(views, breakdowns=["page"])
    assert ledger(db.session) == {views: 2, "views#1": 2}
    count(db.applier, ({"page": "/home", "country": "DE"}, 2))
    added = db.store.counters.set(views, breakdowns=["page", "country"]).breakdowns
    assert [each.name for each in added] == ["views#1", "views#4"]
    assert ledger(db.session) == {views: 4, "views#1": 4}
    db.store.counters.set(views, breakdowns=[], dimensions=[])
    assert db.store.counters.show(views).dimensions == ()
    assert ledger(db.session) == {views: 4}


def test_of_a_removed_breakdown_that_two_delete_at_once_nothing_is_left(
    db: Database, mysql_url: str, views: str
) -> None:
    db.store.counters.set(views, breakdowns=["page"])
    old = "UPDATE counter SET zone_fixed = zone_fixed - INTERVAL 11 MINUTE WHERE name = 'views#2'"
    db.session.execute(old)
    with connect(mysql_url, isolation="REPEATABLE READ") as deleting:
        assert removed_breakdowns(deleting) == ["views#2"]
        for _ in range(2):  # both have read the name before the first has deleted the row
            delete_counter(deleting, "views#2")
    rows = db.session.query("SELECT name FROM counter WHERE name LIKE 'views%%' ORDER BY name")
    assert [name for (name,) in rows] == ["views", "views#1", "views#3"]


@pytest.mark.servers("mariadb", "mysql")
def test_numbers_of_deleted_breakdowns_stay_used_when_a_table_was_tracked_in_between(
    db: Database,
) -> None:
    declared: dict[str, Any] = {"dimensions": ["page"], "breakdowns": ["page"]}
    db.store.counters.set("orders", time_zone="Asia/Tokyo", resolution="hour", **declared)
    count(db.applier, ({"page": "/"}, 1), counter="orders")
    db.store.counters.set("orders", resolution="day")
    db.store.counters.delete("orders")
    old = "UPDATE counter SET zone_fixed = zone_fixed - INTERVAL 11 MINUTE WHERE name = 'orders'"
    db.session.execute(old)
    db.session.execute("CREATE TABLE orders (id INT PRIMARY KEY) ENGINE = InnoDB")
    try:
        db.store.tracked.track("orders", counter="orders")
        shown = db.store.counters.show("orders")
        assert (shown.time_zone, shown.resolution, shown.breakdowns) == ("UTC", "day", ())
        counted = "SELECT counted_hour FROM counter WHERE name = 'orders'"
        assert db.session.query(counted) == [(None,)]
        db.store.tracked.untrack("orders")
    finally:
        db.session.execute("DROP TABLE orders")
    (added,) = db.store.counters.set("orders", **declared).breakdowns
    assert added.name == "orders#2"


def test_the_key_of_the_events_that_breakdowns_hold_is_not_deleted_alone(
    db: Database, views: str
) -> None:
    count(db.applier, ({"page": "/home"}, 2), ("/old", 1))
    with pytest.raises(ValueError, match="also counted in its breakdowns"):
        db.store.counters.delete(views, "")
    assert db.store.counters.delete(views, "/old").amount == 1


def test_what_cannot_be_declared(store: Store) -> None:
    wrong: list[tuple[list[str], list[str] | None, str]] = [
        (["page", "page"], None, "each once"),
        (["Page"], None, "a-z"),
        (["day"], None, "another name"),
        ([f"d{number}" for number in range(9)], None, "at most 8"),
        (["page"], ["country"], "needs the dimension country"),
        (["page"], ["page", "page"], "each once"),
        (["page"], ["page"] * 33, "at most 32"),
        (["page"], [[]], "at least one dimension"),  # type: ignore[list-item]
    ]
    for dimensions, breakdowns, message in wrong:
        with pytest.raises(ValueError, match=message):
            store.counters.set("views", dimensions=dimensions, breakdowns=breakdowns)
    with pytest.raises(ValueError, match="at most 61"):
        store.counters.set("x" * 62, dimensions=["page"])
    assert store.counters.list() == []
    store.counters.set("x" * 61, dimensions=["page"], breakdowns=["page"])


def test_a_dimension_that_a_breakdown_needs_stays(store: Store, views: str) -> None:
    with pytest.raises(ValueError, match="needs the dimension"):
        store.counters.set(views, dimensions=[])
    assert store.counters.show(views).dimensions == ("page", "country", "device")


def test_values_that_are_too_long_are_cut_and_odd_ones_kept_apart(db: Database, views: str) -> None:
    odd = ["a\0b", "a\1b", "a", "a\0", "\0", "é" * 100, "x" * 255, "x" * 254 + "y", "", "a\1\1b"]
    with_odd = [({"page": value, "country": "DE"}, 1) for value in odd]
    count(new_applier(db.mysql_url), *with_odd)
    found = db.keys("views#3")
    assert len(found) == len(odd)
    assert found == {composite([value, "DE"]).encode(): 1 for value in odd}
    assert len(db.keys("views#1")) == len(odd)


@pytest.mark.servers("mariadb", "mysql")
def test_verify_finds_a_breakdown_that_differs_from_its_counter(
    db: Database, verifying: Session, views: str
) -> None:
    count(db.applier, ({"page": "/home", "country": "DE"}, 10))
    # Rows and ledger alike, as a program that knows nothing of breakdowns would do it.
    db.session.execute("UPDATE counter_slot SET amount = amount + 1 WHERE counter = 'views#1'")
    post_planted(db.session)
    for found in verify(verifying).differences, verify(verifying, views).differences:
        (difference,) = found
        assert (difference.counter, difference.problem) == (views, "breakdown")
        assert (difference.in_tables, difference.in_ledger) == (11, 10)
        assert "page (views#1)" in difference.detail
    db.store.counters.delete(views)


def test_a_counter_says_how_much_of_its_breakdowns_had_no_room(db: Database, views: str) -> None:
    db.store.counters.set(views, max_keys=1)
    today = datetime.now(UTC)
    rows = [
        (position, views, check_dimensions({"page": f"/{position}"}), minute(today.date()), 1)
        for position in range(5)
    ]
    db.applier.apply([entry(rows)])
    # Four of them in page, and in page,country.
    assert overflown_by_counter(db.session) == {views: 8}
    assert db.store.counters.show(views).overflown == 8
    assert [each.overflown for each in db.store.counters.list()] == [8]


def test_a_breakdown_that_is_added_later_begins_behind_what_was_counted_for_times_to_come(
    db: Database, views: str
) -> None:
    ahead = datetime.now(UTC).date() + timedelta(days=1)
    rows: list[Row] = [(0, views, check_dimensions({"device": "phone"}), minute(ahead), 3)]
    db.applier.apply([entry(rows)])
    breakdowns = ["page", "country", "page,country", "device"]
    added = db.store.counters.set(views, breakdowns=breakdowns).breakdowns[-1]
    assert (added.name, added.dimensions) == ("views#4", ("device",))
    assert added.since == minute(ahead + timedelta(days=1), 0)
    for number, at in enumerate((minute(ahead), added.since - 1, added.since)):
        db.applier.apply([entry([(0, views, rows[0][2], at, 10**number)])])
    assert cells(db.session, added.name) == {("phone",): 100}
    assert sum(cells(db.session, "views#1").values()) == 114


def test_a_counter_has_dimensions_or_is_tracked(store: Store, session: Session, views: str) -> None:
    session.execute("CREATE TABLE orders (id INT PRIMARY KEY) ENGINE = InnoDB")
    try:
        store.counters.set("kept", keep="day=3d")
        for counter in views, "kept":
            with pytest.raises(ValueError, match="keep or dimensions, which"):
                store.tracked.track("orders", counter=counter)
        store.tracked.track("orders")
        with pytest.raises(TrackedCounter):
            store.counters.set("orders", dimensions=["page"])
    finally:
        session.execute("DROP TABLE orders")


def test_there_is_room_for_99_breakdowns_in_a_life(db: Database, views: str) -> None:
    db.session.execute("UPDATE counter SET last_breakdown = 97 WHERE name = 'views'")
    db.store.counters.set(views, breakdowns=[])
    made = db.store.counters.set(views, breakdowns=["page,device", "country,device"]).breakdowns
    assert [each.name for each in made] == ["views#98", "views#99"]
    with pytest.raises(ValueError, match="has had 99 breakdowns"):
        db.store.counters.set(views, breakdowns=["page"])
    db.store.counters.delete(views)


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
    db: Database, breakdowns: list[str], seed: int
) -> None:
    rng = random.Random(seed)
    oracle = Oracle()
    db.store.counters.set(
        "views",
        dimensions=NAMES,
        breakdowns=breakdowns,
        resolution=rng.choice(["day", "hour", "minute"]),
        time_zone=rng.choice(["UTC", "Europe/Berlin", "America/New_York"]),
    )
    zone = db.store.counters.show("views").time_zone
    minutes = [minute(date(2026, 10, 24)) + rng.randrange(4 * 1440) for _ in range(50)]
    for _ in range(4):
        db.applier.apply([entry(random_rows(rng, oracle, minutes, 60)) for _ in range(2)])
    day = date(2026, 10, 25)

    def on_day(at: int) -> bool:
        return datetime.fromtimestamp(at * 60, ZoneInfo(zone)).date() == day

    for by, where in questions(rng):
        expected = oracle.by(by, where)
        found = db.store.totals.by("views", by, where=where)
        assert dict(found) == expected
        assert found == sorted(
            found, key=lambda pair: (-pair[1], [each.encode() for each in pair[0]])
        )
        assert db.store.totals.by("views", by, where=where, n=3) == found[:3]
        within = db.store.totals.by("views", by, where=where, start=day, end=day)
        assert dict(within) == oracle.by(by, where, on_day)
        if where:
            assert db.store.totals.total("views", where=where) == sum(expected.values())
            daily = dict(db.store.totals.daily("views", where=where))
            assert {day: total for day, total in daily.items() if total} == {
                day: total for day, total in oracle.daily(where, zone).items() if total
            }
    assert db.store.totals.total("views") == sum(oracle.events.values())


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


def test_the_word_for_no_dimensions_is_the_name_of_none(store: Store) -> None:
    with pytest.raises(ValueError, match=r"'none'.* reserved"):
        store.counters.set("views", dimensions=["none"])
    assert store.counters.set("views", dimensions="none").dimensions == ()
