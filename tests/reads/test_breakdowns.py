"""Totals by dimensions with what is pending: each event once, wherever it is."""

import random
from collections import Counter as Bag
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any

import pytest
import redis

from countersink.counting.apply.applier import Applier
from countersink.counting.counters.buckets import ONE_DAY
from countersink.counting.totals.query import DIMENSIONS, Query
from countersink.counting.totals.selection import Selection
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.reads.formats import frame
from countersink.runtime.dimensions import check_dimensions
from countersink.store import Store, UnknownCounter, UnknownDimension
from countersink.stream.connection import connect
from countersink.stream.entry import Row, Sealed, encode_rows, new_entry_id
from tests.reads.support import apply_all, minute_of
from tests.support.asking import Asking
from tests.support.entries import entry
from tests.support.traffic import now_ms, send

VALUES: Mapping[str, list[str]] = {"country": ["DE", "AT", ""], "page": ["/", "/a", "/b", ""]}


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """A store with a counter that has breakdowns."""
    with Store(mysql_url) as opened:
        opened.counters.set(
            "views", dimensions=list(VALUES), breakdowns=["page,country", "country"]
        )
        yield opened


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the queue."""
    with connect(redis_url) as opened:
        yield opened


def queue(client: redis.Redis, draw: random.Random) -> Bag[tuple[str, str]]:
    """Queue an entry of random events; what they add to each (country, page)."""
    made: list[Row] = []
    added: Bag[tuple[str, str]] = Bag()
    for _ in range(40):
        values = {name: draw.choice(own) for name, own in VALUES.items()}
        amount = draw.randrange(-2, 9)
        added[values["country"], values["page"]] += amount
        made.append(("views", check_dimensions(values), minute_of(draw.randrange(4)), amount))
    # The worker takes out what its counter does not have.
    made.append(("views", check_dimensions({"colour": "red"}), minute_of(0), 1000))
    at = now_ms(client)
    send(client, Sealed(new_entry_id(at), at, encode_rows(made), len(made)))
    return added


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("seed", range(2))
def test_each_event_is_there_once(
    client: redis.Redis, store: Store, mysql_url: str, seed: int
) -> None:
    draw = random.Random(seed)
    reads = Asking(store, client)
    expected = queue(client, draw)
    for acknowledge in (None, False, True):
        if acknowledge is not None:
            apply_all(client, mysql_url, acknowledge=acknowledge)
            expected.update(queue(client, draw))
        found = reads.by("views", ["country", "page"], include_pending=True).value
        assert dict(found) == dict(expected)
        by_country: Bag[str] = Bag()
        for (country, _), amount in expected.items():
            by_country[country] += amount
        of_country = reads.by("views", ["country"], include_pending=True).value
        assert {country: total for (country,), total in of_country} == dict(by_country)
        first = reads.by("views", ["page"], where={"country": "DE"}, n=2, include_pending=True)
        pages = {page: total for (country, page), total in expected.items() if country == "DE"}
        assert [total for _, total in first.value] == sorted(pages.values(), reverse=True)[:2]
        for country in VALUES["country"]:
            read = reads.total("views", where={"country": country}, include_pending=True)
            assert read.value == by_country[country]
            days = reads.daily("views", where={"country": country}, include_pending=True).value
            assert sum(total for _, total in days) == by_country[country]
        assert reads.total("views", include_pending=True).value == expected.total()
        assert reads.names(include_pending=True) == ["views"]


def test_a_key_of_a_counter_with_dimensions_is_told_from_a_value(
    client: redis.Redis, store: Store, mysql_url: str
) -> None:
    """A key that was counted before the counter had dimensions is still answered."""
    reads = Asking(store, client)
    queue(client, random.Random(0))
    with closing(Applier(mysql_url, 17)) as applier:
        applier.apply([entry([(0, "views", "/old", minute_of(0), 5)])])
    apply_all(client, mysql_url, acknowledge=True)
    assert store.totals.total("views", key="/old") == 5
    assert store.totals.total("views", key="/old", last="7d") == 0
    assert store.totals.many("views", ["/new", "/old"]) == {"/new": 0, "/old": 5}
    assert store.totals.total("views", key="") == store.totals.total("views") - 5
    expected = (
        r"has dimensions \(country, page\), .* key '/new': .* with where, such as country=/new"
    )
    for ask in (
        store.totals.total,
        store.totals.daily,
        partial(store.totals.unique_by, unit="day"),
    ):
        with pytest.raises(UnknownDimension, match=expected):
            ask("views", key="/new")
    assert frame(store, "views", keys=["/old"])["total"].sum() == 5
    with pytest.raises(UnknownDimension, match=expected):
        frame(store, "views", keys=["/new"])
    with pytest.raises(UnknownCounter):
        frame(store, "nothing", keys=["/new"])
    at = now_ms(client)
    rows = [("views", "/new", minute_of(0), 3)]
    send(client, Sealed(new_entry_id(at), at, encode_rows(rows), len(rows)))
    assert reads.total("views", key="/new", include_pending=True).value == 3


def test_the_window_before_a_breakdown_was_declared_is_not_told(
    client: redis.Redis, store: Store, mysql_url: str
) -> None:
    store.counters.set("late", resolution="minute", dimensions=["country"])
    now = now_ms(client) // 60_000
    with closing(Applier(mysql_url, 17)) as applier:
        applier.apply([entry([(0, "late", "", now - 100, 5)])])
    store.counters.set("late", breakdowns=["country"])
    since = store.counters.show("late").breakdowns[0].since
    reads = Asking(store, client)
    begin = datetime.fromtimestamp(since * 60, UTC)
    for by, where in ((DIMENSIONS, ()), ("total", (("country", ""),))):
        wanted = Selection("late", start=begin, end=begin + timedelta(hours=1), where=where)
        names = ("country",) if by == DIMENSIONS else ()
        with closing(Applier(mysql_url, 17)) as applier:
            applier.apply([entry([(0, "late", "", since, 2)])])
        query = Query(wanted, by=by, dimensions=names, against_previous=True)
        answer = reads.ask(query)
        assert [row[-1] for row in answer.rows] == [None]
        assert answer.since is None
        earlier = reads.ask(replace(query, selection=replace(wanted, start=begin - ONE_DAY)))
        assert earlier.since == begin
    day = begin.date() - 2 * ONE_DAY
    wanted = Selection("late", start=begin.date() + ONE_DAY)
    asked = Query(wanted, by=DIMENSIONS, dimensions=("country",), also=[(day, day)])
    with closing(Applier(mysql_url, 17)) as applier:
        applier.apply([entry([(0, "late", "", since + 2_880, 2)])])
    assert [row[-1] for row in reads.ask(asked).rows] == [[None]]


def test_a_day_before_a_breakdown_was_declared_stands_beside_none(
    client: redis.Redis, store: Store, mysql_url: str
) -> None:
    store.counters.set("late", dimensions=["country"], breakdowns=["country"])
    days = [date(2025, 3, number) for number in (3, 4, 5, 6)]
    values = check_dimensions({"country": "DE"})
    minutes = [int(datetime.combine(day, time(9), UTC).timestamp()) // 60 for day in days]
    with closing(Applier(mysql_url, 17)) as applier:
        rows = [(n, "late", values, minute, 10 + n) for n, minute in enumerate(minutes)]
        applier.apply([entry(rows)])
    with open_tables(mysql_url) as session:
        session.execute("UPDATE counter SET since = '2025-03-04' WHERE breakdown_of = 'late'")
        session.execute("UPDATE control SET catalog_version = catalog_version + 1")
    wanted = Selection("late", start=days[0], end=days[-1], where=(("country", "DE"),))
    found = Asking(store, client).ask(Query(wanted, by="day", against_previous=True))
    assert found.since == datetime(2025, 3, 4, tzinfo=UTC)
    assert [row[-1] for row in found.rows] == [None, None, 11, 12]
    rest = replace(wanted, start=days[2])
    found = Asking(store, client).ask(Query(rest, by="day", against_previous=True))
    assert [row[-1] for row in found.rows] == [11, 12]


@pytest.mark.servers("mariadb", "mysql")
def test_a_breakdown_that_is_removed_meanwhile_gives_no_half_answer(
    client: redis.Redis, store: Store, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = queue(client, random.Random(8))
    apply_all(client, mysql_url, acknowledge=True)
    reads = Asking(store, client)
    snapshot = store.snapshot

    def remove_after(work: Callable[[Session], Any]) -> Any:
        """The first snapshot, of the breakdowns by which the queue is read, and then others."""
        found = snapshot(work)
        monkeypatch.undo()
        store.counters.set("views", breakdowns=["page,country"])
        return found

    monkeypatch.setattr(store, "snapshot", remove_after)
    found = reads.by("views", ["country"], include_pending=True).value
    assert sum(total for _, total in found) == expected.total()


def test_by_counter_shows_the_counter_that_was_asked_about(
    client: redis.Redis, store: Store, mysql_url: str
) -> None:
    expected = queue(client, random.Random(9))
    apply_all(client, mysql_url, acknowledge=True)
    of_country = sum(total for cell, total in expected.items() if cell[0] == "DE")
    query = Query(Selection("views", where=(("country", "DE"),)), by="counter")
    assert Asking(store, client).ask(query).rows == [("views", of_country)]
