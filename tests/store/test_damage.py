"""Damage of every kind, planted by hand: verify finds it, before and after the jobs have run."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from countersink.backfill.run import backfill
from countersink.counting.apply.applier import Applier
from countersink.counting.ledger import Difference
from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.database.session import Session
from countersink.store import Store
from countersink.store.verify import open_session, verify
from tests.backfill.helpers import add, line, log, options, write
from tests.support.app_connection import open_app
from tests.support.databases import dropped, new_name
from tests.support.entries import compacted, entry, keep, minute, restore, rolled_up, row
from tests.support.examples import MANY
from tests.support.servers import MySQLServer, RedisServer

DAY = "2026-11-21"
"""The day of `minute()`."""
NEXT = "2026-11-22"
MONTH = datetime(2026, 3, 14, 12, tzinfo=UTC)

Said = tuple[str, str | None, str | None]
"""Of a difference: (problem, counter, day)."""


class Damage(NamedTuple):
    """Statement that damages the tables, and what verify is to say of it."""

    statement: str
    said: Said


def damages(table: dict[Said, list[str]]) -> list[Damage]:
    """Of statements by what is said of them."""
    return [Damage(statement, said) for said, each in table.items() for statement in each]


def slots(change: str, where: str = "counter_key = '/a'", counter: str = "views") -> str:
    """A change of rows of the first day."""
    return (
        f"UPDATE counter_slot SET {change} WHERE counter = '{counter}' AND bucket = '{DAY}'"
        f" AND {where}"
    )


def months(change: str) -> str:
    """A change of rows of months."""
    return f"UPDATE counter_slot SET {change} WHERE width = 5"


ROWS = damages(
    {
        ("sum", "views", None): [
            # an amount raised
            slots("amount = amount + 1000"),
            # an amount lowered
            slots("amount = amount - 1"),
            # a row deleted
            f"DELETE FROM counter_slot WHERE bucket = '{DAY}' AND counter_key = '/a'",
            # a row invented
            (
                "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
                f" VALUES ('views', '{DAY}', '/new', 3, 4)"
            ),
            # a counter's rows gone
            "DELETE FROM counter_slot WHERE counter = 'views'",
            # a ledger's amount
            "UPDATE counter_ledger SET amount = amount + 1 WHERE counter = 'views'",
        ],
        ("checksum", "views", None): [
            # a key renamed
            slots("counter_key = '/A'"),
            # a key of other bytes
            slots("counter_key = X'FFFE'"),
            # two amounts of a day exchanged
            slots("amount = 16 - amount", "counter_key IN ('/a', '/b')"),
            # one moved from key to key
            slots("amount = amount + IF(counter_key = '/a', 1, -1)", "counter_key IN ('/a', '/b')"),
            # a row on another day
            slots("bucket = '2026-11-20'"),
            # a row on a day there is
            slots(f"bucket = '{NEXT}', slot = 9", "counter_key = '/c'"),
            # amounts of two days exchanged
            (
                "UPDATE counter_slot SET amount = 13 - amount WHERE counter = 'views'"
                " AND counter_key = '/d'"
            ),
            # four corners exchanged
            (
                "UPDATE counter_slot SET amount = amount + IF(counter_key = '/a', 1, -1)"
                f" * IF(bucket = '{DAY}', 1, -1) WHERE counter = 'views'"
                " AND counter_key IN ('/a', '/b')"
            ),
            # days a week later
            "UPDATE counter_slot SET bucket = bucket + INTERVAL 7 DAY WHERE counter = 'views'",
            # a time of day
            slots(f"bucket = '{DAY} 12:00:00'"),
            # minutes that are no quarter
            slots(f"bucket = '{DAY} 00:07:00'"),
            # a width that there is not
            slots("width = 7"),
            # a day that is a month
            slots("width = 5"),
            # a day that is an hour
            slots("width = 3"),
            # a ledger's amounts of two days exchanged
            (
                f"UPDATE counter_ledger SET amount = amount + IF(bucket = '{DAY}', 1, -1)"
                " WHERE counter = 'views'"
            ),
            # a ledger's day a week later
            "UPDATE counter_ledger SET bucket = bucket + INTERVAL 7 DAY WHERE counter = 'views'",
            # a ledger's checksum
            "UPDATE counter_ledger SET checksum = checksum + 1 WHERE counter = 'views'",
        ],
        # a counter renamed
        ("no_ledger", "visits", None): [
            "UPDATE counter_slot SET counter = 'visits' WHERE counter = 'views'"
        ],
        ("checksum", "hours", None): [
            # an hour that is a quarter
            "UPDATE counter_slot SET bucket = bucket + INTERVAL 15 MINUTE WHERE counter = 'hours'",
            # an hour later
            "UPDATE counter_slot SET bucket = bucket + INTERVAL 1 HOUR WHERE counter = 'hours'",
        ],
        ("sum", "orders", None): [
            # an application's amount raised
            slots("amount = amount + 1000", "counter_key = 'paid'", "orders"),
            # an application's row deleted
            "DELETE FROM counter_slot WHERE counter = 'orders' AND counter_key = 'paid'",
            # an application's posting changed
            "UPDATE counter_ledger SET amount = amount + 1 WHERE counter = 'orders'",
        ],
        ("checksum", "orders", None): [
            # an application's row renamed
            slots("counter_key = 'open'", "counter_key = 'paid'", "orders"),
        ],
        # an application's posting gone
        ("no_ledger", "orders", None): ["DELETE FROM counter_ledger WHERE counter = 'orders'"],
        ("sum", "old", None): [
            # a month's amount
            months("amount = amount + 1"),
            # a month deleted
            "DELETE FROM counter_slot WHERE width = 5",
        ],
        ("checksum", "old", None): [
            # a month renamed
            months("bucket = '2026-02-01'"),
            # a month that is a day again
            months("width = 4"),
            # a month that begins later
            months("bucket = '2026-03-02'"),
            # a month not rolled up
            months("bucket = '2027-03-01'"),
        ],
        # a ledger gone
        ("no_ledger", "views", None): ["DELETE FROM counter_ledger WHERE counter = 'views'"],
    }
)
BACKFILLS = damages(
    {
        ("backfill", "logs", None): [
            "UPDATE backfill_chunk SET amount = amount + 1",
            "UPDATE backfill_chunk SET end_at = end_at - 1",
            "DELETE FROM backfill_chunk",
            # a gap, a part that is there twice, and a beginning that is missing
            "UPDATE backfill_chunk SET start_at = start_at + 1 ORDER BY start_at DESC LIMIT 1",
            "UPDATE backfill_chunk SET end_at = end_at + 1 WHERE start_at = 0",
            "UPDATE backfill_chunk SET start_at = 1 WHERE start_at = 0",
            "UPDATE counter_ledger SET slot = slot - 512 WHERE counter = 'logs'",
            "UPDATE backfill_source SET read_to = read_to + 1",
            "DELETE FROM backfill_source",
            "UPDATE backfill_source SET counter = 'other' WHERE counter = 'logs'",
        ],
        ("backfill", "corrected", None): [
            "UPDATE backfill_run SET state = 'undone'",
            "UPDATE backfill_correction SET had = had + 1 LIMIT 1",
            "DELETE FROM backfill_correction LIMIT 1",
            "DELETE FROM backfill_run",
        ],
    }
)
KEPT = (
    *("counter_slot", "counter_ledger", "counter"),
    *("backfill_run", "backfill_source", "backfill_chunk", "backfill_correction"),
)


@pytest.fixture(scope="module")
def url(
    mysql_server: MySQLServer,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A database with something of everything, and a copy of each of its tables."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()  # of our own private server
    with dropped(mysql_server, new_name()) as mysql_url:
        migrate(mysql_url)
        _fill(mysql_url, redis_server.url, tmp_path_factory.mktemp("logs"))
        yield mysql_url


def _fill(mysql_url: str, redis_url: str, directory: Path) -> None:
    with Store(mysql_url) as store:
        store.counters.set("hours", resolution="hour")
        store.counters.set("old", keep="day=30d")
        applier = Applier(mysql_url, 7)
        amounts = {"/a": (7, 8), "/b": (9, 10), "/c": (1, 2), "/d": (6, 7)}
        views = [
            (number, "views", key, minute() + 1440 * day, amounts[key][day])
            for number, (key, day) in enumerate(product(amounts, (0, 1)))
        ]
        applier.apply(
            [
                entry(views),
                entry([row("/h", 3, counter="hours"), row("/i", 4, counter="hours", position=1)]),
                entry([(0, "old", "/m", int(MONTH.timestamp()) // 60, 6)]),
            ]
        )
        applier.close()
        with open_app(mysql_url) as app:
            store.increment_many(
                app, "orders", {"paid": 5, "sent": 8}, at=datetime(2026, 11, 21, tzinfo=UTC)
            )
            app.commit()
    rolled_up(mysql_url)
    hits = log(*(f"/{number}" for number in range(60)))
    file = write(directory / "a.log", hits)
    add(mysql_url, file, counter="logs")
    add(mysql_url, write(directory / "b.log", line("/y", minutes=-9)), counter="logs")
    asked = options(file, mode="reconcile", counter="corrected")
    assert backfill(mysql_url, asked, redis_url=redis_url).corrections == 60
    with connect(mysql_url) as session:
        keep(session, KEPT)


@pytest.fixture
def site(url: str) -> Iterator[Session]:
    """A session on these tables, which are afterwards as they were."""
    with connect(url) as session:
        yield session
        restore(session, KEPT)


@contextmanager
def damaged(session: Session, damage: Damage, also: Iterable[str] = ()) -> Iterator[None]:
    """The tables that are damaged, and ``also`` these, are afterwards as they were."""
    for statement in damage.statement.split(";"):
        session.execute(statement)
    try:
        yield
    finally:
        restore(session, {*re.findall(r"\w+", damage.statement), *also} & {*KEPT})


def said(one: Difference) -> Said:
    return one.problem, one.counter, None if one.day is None else str(one.day)


@pytest.mark.servers("mariadb", "mysql")
def test_every_damage_of_rows_is_found_and_located(site: Session, url: str) -> None:
    missed = {}
    with open_session(url) as verifying:
        assert verify(verifying).differences == []
        for damage in (*ROWS, *BACKFILLS):
            with damaged(site, damage):
                found = [said(one) for one in verify(verifying).differences]
                if damage.said not in found:
                    missed[damage.statement] = found
                alone = [said(one) for one in verify(verifying, damage.said[1]).differences]
                assert damage.said in alone or damage.statement in missed, damage
        assert verify(verifying).differences == []
    assert missed == {}


@pytest.mark.random
def test_what_compaction_and_retention_find_damaged_stays_found(site: Session, url: str) -> None:
    moved = ("counter_slot", "counter_ledger", "counter")
    missed = []
    with open_session(url) as verifying:
        for damage in ROWS:
            with damaged(site, damage, moved):
                site.execute("UPDATE counter SET keep_steps = 'day=1d'")
                counter = damage.said[1]
                asked = None if MANY else counter
                compacted(url, date(2027, 1, 1), counter=asked)
                rolled_up(url)
                compacted(url, date(2027, 1, 1), counter=asked)
                done = verify(verifying, asked)
                if counter not in {one.counter for one in done.differences}:
                    missed.append(damage.statement)
    assert missed == []
