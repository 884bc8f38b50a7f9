"""Totals by dimensions with what is pending: each event once, wherever it is."""

import random
from collections import Counter as Bag
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import redis

from countersink.reads import Reads
from countersink.reads.formats import parquet_writer
from countersink.reads.frames import frame
from countersink.reads.rows import DIMENSIONS, columns, rows
from countersink.runtime.dimensions import check_dimensions
from countersink.store import Store
from countersink.store.totals.selection import Selection
from countersink.stream.connection import connect
from countersink.stream.entry import Row, Sealed, encode_rows, new_entry_id
from tests.reads.support import apply_all, minute_of
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


@pytest.mark.parametrize("seed", range(2))
def test_each_event_is_there_once(
    client: redis.Redis, store: Store, mysql_url: str, seed: int
) -> None:
    draw = random.Random(seed)
    reads = Reads(store, client)
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
        assert reads.names(include_pending=True).value == ["views"]


def test_as_a_frame_and_as_parquet(
    client: redis.Redis, store: Store, mysql_url: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    expected = queue(client, random.Random(5))
    apply_all(client, mysql_url, acknowledge=True)
    made = frame(store, "views", by="country,page", where={"country": "DE"})
    assert list(made.columns) == ["country", "page", "total"]
    found = {(row.country, row.page): row.total for row in made.itertuples()}
    assert found == {cell: total for cell, total in expected.items() if cell[0] == "DE"}
    names = ("country", "page")
    with store.reading() as session, (tmp_path / "views.parquet").open("wb") as file:
        of_all = rows(session, DIMENSIONS, Selection("views"), names)
        assert parquet_writer()(file, columns(DIMENSIONS, names), of_all) == len(expected)
