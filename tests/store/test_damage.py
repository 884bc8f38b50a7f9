"""Damage of every kind, planted by hand: verify finds it, before and after the jobs have run, and
says where, as far as that can be told. What cannot be proved is named in docs/operations.md.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from countersink.backfill.run import backfill
from countersink.backfill.undo import undo
from countersink.cli.servers import MySQLServer, RedisServer
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session, connect
from countersink.store.migrate import migrate
from countersink.store.verify import Difference, open_session, verify
from tests.backfill.helpers import add, line, log, options, write
from tests.store.app import open_app
from tests.store.helpers import entry, keep, minute, restore, row
from tests.support.databases import dropped, new_name

pytestmark = pytest.mark.servers("mariadb", "mysql")

DAY = "2026-11-21"
"""The day of `minute()`."""
NEXT = "2026-11-22"
MONTH = datetime(2026, 3, 14, 12, tzinfo=UTC)


class Damage(NamedTuple):
    """What is done to the tables, and what verify is to say of it: (problem, counter, day, key)."""

    statement: str
    said: tuple[str, str | None, str | None, str | None]


def slots(change: str, where: str = "counter_key = '/a'", counter: str = "views") -> str:
    """A change of rows of the first day."""
    return (
        f"UPDATE counter_slot SET {change} WHERE counter = '{counter}' AND bucket = '{DAY}'"
        f" AND {where}"
    )


ROWS = {
    "an amount raised": Damage(slots("amount = amount + 1000"), ("sum", "views", DAY, "/a")),
    "an amount lowered": Damage(slots("amount = amount - 1"), ("sum", "views", DAY, "/a")),
    "a row deleted": Damage(
        f"DELETE FROM counter_slot WHERE bucket = '{DAY}' AND counter_key = '/a'",
        ("sum", "views", DAY, "/a"),
    ),
    "a row invented": Damage(
        f"INSERT INTO counter_slot VALUES ('views', '{DAY}', '/new', 3, 4)",
        ("sum", "views", DAY, "/new"),
    ),
    "a day invented": Damage(
        "INSERT INTO counter_slot VALUES ('views', '2026-11-19', '/a', 3, 4)",
        ("sum", "views", "2026-11-19", "/a"),
    ),
    "a counter's rows gone": Damage(
        "DELETE FROM counter_slot WHERE counter = 'views'", ("sum", "views", None, None)
    ),
    "a key renamed": Damage(
        slots("counter_key = '/A'"),
        ("checksum", "views", DAY, "/A"),
    ),
    "a blank added to a key": Damage(
        slots("counter_key = '/a '"), ("checksum", "views", DAY, "/a ")
    ),
    "a key of other bytes": Damage(
        slots("counter_key = X'FFFE'"), ("checksum", "views", DAY, "\udcff\udcfe")
    ),
    "two amounts of a day exchanged": Damage(
        slots("amount = 16 - amount", "counter_key IN ('/a', '/b')"),
        ("checksum", "views", DAY, "/a"),
    ),
    "one moved from key to key": Damage(
        slots("amount = amount + IF(counter_key = '/a', 1, -1)", "counter_key IN ('/a', '/b')"),
        ("checksum", "views", DAY, None),
    ),
    "a row on another day": Damage(
        slots("bucket = '2026-11-20'"), ("checksum", "views", "2026-11-20", "/a")
    ),
    "a row on a day there is": Damage(
        f"UPDATE counter_slot SET bucket = '{NEXT}', slot = 9 WHERE counter = 'views'"
        f" AND bucket = '{DAY}' AND counter_key = '/c'",
        ("checksum", "views", NEXT, "/c"),
    ),
    "amounts of two days exchanged": Damage(
        "UPDATE counter_slot SET amount = 13 - amount WHERE counter = 'views'"
        " AND counter_key = '/d'",
        ("checksum", "views", None, None),
    ),
    "four corners exchanged": Damage(
        "UPDATE counter_slot SET amount = amount + IF(counter_key = '/a', 1, -1)"
        f" * IF(bucket = '{DAY}', 1, -1) WHERE counter = 'views' AND counter_key IN ('/a', '/b')",
        ("checksum", "views", None, None),
    ),
    "days a week later": Damage(
        "UPDATE counter_slot SET bucket = bucket + INTERVAL 7 DAY WHERE counter = 'views'",
        ("checksum", "views", None, None),
    ),
    "a time of day": Damage(slots(f"bucket = '{DAY} 12:00:00'"), ("no_bucket", "views", DAY, None)),
    "minutes that are no quarter": Damage(
        slots(f"bucket = '{DAY} 00:07:00'"), ("no_bucket", "views", DAY, None)
    ),
    "a policy that never was": Damage(
        slots(f"bucket = '{DAY} 00:00:07'"), ("no_policy", "views", None, None)
    ),
    "a counter renamed": Damage(
        "UPDATE counter_slot SET counter = 'visits' WHERE counter = 'views'",
        ("no_ledger", "visits", None, None),
    ),
    "an hour that is a quarter": Damage(
        "UPDATE counter_slot SET bucket = bucket + INTERVAL 15 MINUTE WHERE counter = 'hours'",
        ("no_bucket", "hours", DAY, None),
    ),
    "an hour later": Damage(
        "UPDATE counter_slot SET bucket = bucket + INTERVAL 1 HOUR WHERE counter = 'hours'",
        ("checksum", "hours", None, None),
    ),
    "an application's amount raised": Damage(
        slots("amount = amount + 1000", "counter_key = 'paid'", "orders"),
        ("sum", "orders", DAY, "paid"),
    ),
    "an application's row deleted": Damage(
        "DELETE FROM counter_slot WHERE counter = 'orders' AND counter_key = 'paid'",
        ("sum", "orders", DAY, None),
    ),
    "an application's row renamed": Damage(
        slots("counter_key = 'open'", "counter_key = 'paid'", "orders"),
        ("checksum", "orders", DAY, None),
    ),
    "an application's row moved": Damage(
        slots(f"bucket = '{NEXT}'", "counter_key = 'paid'", "orders"),
        ("checksum", "orders", NEXT, "paid"),
    ),
    "an application's posting gone": Damage(
        "DELETE FROM app_ledger", ("no_ledger", "orders", None, None)
    ),
    "an application's posting changed": Damage(
        "UPDATE app_ledger SET amount = amount + 1", ("sum", "orders", None, None)
    ),
    "a month's amount": Damage(
        "UPDATE counter_month SET amount = amount + 1 WHERE counter_key = '/m'",
        ("sum", "old", "2026-03-01", "/m"),
    ),
    "a month deleted": Damage("DELETE FROM counter_month", ("sum", "old", "2026-03-01", None)),
    "a month renamed": Damage(
        "UPDATE counter_month SET bucket = '2026-02-01'",
        ("checksum", "old", "2026-02-01", "/m"),
    ),
    "a month that begins later": Damage(
        "UPDATE counter_month SET bucket = '2026-03-02'", ("no_bucket", "old", "2026-03-02", None)
    ),
    "a month not rolled up": Damage(
        "UPDATE counter_month SET bucket = '2027-03-01'", ("no_rollup", "old", "2027-03-01", None)
    ),
    "a month's key renamed": Damage(
        "UPDATE counter_month SET counter_key = '/M'", ("checksum", "old", "2026-03-01", None)
    ),
    "a month that is a day again": Damage(
        "INSERT INTO counter_slot SELECT counter, bucket, counter_key, 0, amount"
        " FROM counter_month; DELETE FROM counter_month",
        ("checksum", "old", "2026-03-01", "/m"),
    ),
    "a ledger's amount": Damage(
        "UPDATE counter_ledger SET amount = amount + 1 WHERE counter = 'views'",
        ("sum", "views", None, None),
    ),
    "a ledger's checksum": Damage(
        "UPDATE counter_ledger SET checksum = checksum + 1 WHERE counter = 'views'",
        ("checksum", "views", None, None),
    ),
    "a ledger gone": Damage(
        "DELETE FROM counter_ledger WHERE counter = 'views'", ("no_ledger", "views", None, None)
    ),
}
SETTINGS = {
    "a time zone": Damage(
        "UPDATE counter_policy SET time_zone = 'Asia/Tokyo'", ("settings", "hours", None, None)
    ),
    "a resolution": Damage(
        "UPDATE counter_policy SET resolution = 'quarter'", ("settings", "hours", None, None)
    ),
    "the beginning of a policy": Damage(
        "UPDATE counter_policy SET valid_from = '2026-11-20'", ("settings", "hours", None, None)
    ),
    "a policy deleted": Damage("DELETE FROM counter_policy", ("settings", "hours", None, None)),
    "a policy invented": Damage(
        "INSERT INTO counter_policy (counter, number, valid_from, time_zone, resolution)"
        " VALUES ('views', 0, '1970-01-01', 'Asia/Tokyo', 'day')",
        ("settings", "views", None, None),
    ),
    "another policy": Damage(
        "INSERT INTO counter_policy (counter, number, valid_from, time_zone, resolution)"
        " VALUES ('hours', 1, '2026-12-01', 'UTC', 'day')",
        ("settings", "hours", None, None),
    ),
    "days that are kept": Damage(
        "UPDATE counter SET keep_days = 3650 WHERE name = 'old'", ("settings", "old", None, None)
    ),
    "a sequence set back": Damage(
        "UPDATE sequence SET value = 7", ("sequence", "invoice", None, None)
    ),
    "a sequence set on": Damage(
        "UPDATE sequence SET value = value + 1", ("sequence", "invoice", None, None)
    ),
    "the watermark of guards": Damage(
        "UPDATE control SET pruned_before = 5", ("control", "control", None, None)
    ),
    "the version of policies": Damage(
        "UPDATE control SET policy_version = 0", ("control", "control", None, None)
    ),
}
BACKFILLS = {
    "a run's state": "UPDATE backfill_run SET state = 'fine'",
    "a chunk's state": "UPDATE backfill_chunk SET state = 'fine'",
    "a chunk's amount": "UPDATE backfill_chunk SET amount = amount + 1",
    "a chunk elsewhere": "UPDATE backfill_chunk SET end_at = end_at - 1",
    "a chunk gone": "DELETE FROM backfill_chunk",
    "a source elsewhere": "UPDATE backfill_source SET read_to = read_to + 1",
    "a source gone": "DELETE FROM backfill_source",
    "a journal gone": "DELETE FROM backfill_journal",
    "a run gone": "DELETE FROM backfill_run",
    "a piece of a journal more": "INSERT INTO backfill_journal"
    " SELECT source, start_at, piece + 1, cells, seal FROM backfill_journal",
}
ALL = ROWS | SETTINGS
ALL |= {name: Damage(sql, ("backfill", "logs", None, None)) for name, sql in BACKFILLS.items()}
KEPT = (
    *("counter_slot", "counter_month", "counter_ledger", "app_ledger", "counter"),
    *("counter_policy", "sequence", "sequence_option", "control"),
    *("backfill_run", "backfill_source", "backfill_chunk", "backfill_journal"),
    *("backfill_lines", "backfill_left_out", "backfill_drift"),
)
UNSEALED = {
    *("id", "seen", "seal"),
    # As rows that are deleted: there need not be any.
    *("backfill_lines.source", "backfill_left_out.source"),
}
"""Columns of backfills that may be changed by hand without being noticed."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of two logs that are counted."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def url(mysql_server: MySQLServer, redis_server: RedisServer, logs: Path) -> Iterator[str]:
    """A database with something of everything, and a copy of each of its tables."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()  # of our own private server
    with dropped(mysql_server, new_name()) as mysql_url:
        migrate(mysql_url)
        _fill(mysql_url, redis_server.url, logs)
        yield mysql_url


def _fill(mysql_url: str, redis_url: str, directory: Path) -> None:
    with Store(mysql_url) as store:
        store.counters.set("hours", resolution="hour")
        store.counters.set("old", keep_days=30)
        store.sequences.set("invoice", 41)
        store.sequences.next("invoice")
        applier = Applier(mysql_url, 7)
        keys = {"/a": 7, "/b": 9, "/c": 0, "/d": 5}
        at = minute()
        applier.apply(
            [
                entry(
                    [
                        (
                            10 * day + place,
                            "views",
                            key,
                            at + 1440 * day,
                            amount + day + (key > "/b"),
                        )
                        for day in (0, 1)
                        for place, (key, amount) in enumerate(keys.items())
                    ]
                ),
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
    roll_up(partial(open_tables, mysql_url))
    hits = log(*(f"/{number}" for number in range(60)))
    file = write(directory / "a.log", hits)
    add(mysql_url, file, counter="logs")
    add(mysql_url, write(directory / "b.log", line("/y", minutes=-9) + hits), counter="logs")
    asked = options(file, mode="reconcile", counter="corrected")
    assert backfill(mysql_url, asked, redis_url=redis_url).corrections == 60
    with connect(mysql_url) as session:
        session.execute("UPDATE control SET pruned_before = 100, pruned_seal = 100")
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


def said(one: Difference) -> tuple[str, str | None, str | None, str | None]:
    return one.problem, one.counter, None if one.day is None else str(one.day), one.key


def test_every_damage_of_rows_is_found_and_located(site: Session, url: str) -> None:
    missed = {}
    with open_session(url) as verifying:
        assert verify(verifying).differences == []
        for name, damage in ALL.items():
            with damaged(site, damage):
                found = [said(one) for one in verify(verifying).differences]
                if damage.said not in found:
                    missed[name] = found
                if damage.said[0] in ("sequence", "control"):
                    continue
                alone = [said(one) for one in verify(verifying, damage.said[1]).differences]
                assert damage.said in alone or name in missed, name
        assert verify(verifying).differences == []
    assert missed == {}


def another_value(column: str, kind: str) -> str:
    if column in ("options", "sources", "policies"):
        return "'[7]'"
    if kind == "datetime":
        return f"COALESCE({column}, '2026-01-01') + INTERVAL 1 SECOND"
    if kind in ("bigint", "decimal", "int", "smallint", "tinyint"):
        return f"COALESCE({column}, 0) + {1000 if kind == 'bigint' else 1}"
    return "'z'"


def test_every_column_of_what_backfills_wrote_down_is_sealed(site: Session, url: str) -> None:
    columns = site.query(
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND table_name LIKE 'backfill\\_%%'"
    )
    missed, tried = [], set[str]()
    with open_session(url) as verifying:
        assert verify(verifying).differences == []
        for table, column, kind in columns:
            if table not in KEPT or {column, f"{table}.{column}"} & UNSEALED:
                continue
            change = f"UPDATE {table} SET {column} = {another_value(column, kind)} LIMIT 1"
            with damaged(site, Damage(change, ("backfill", None, None, None))):
                if "backfill" not in {one.problem for one in verify(verifying).differences}:
                    missed.append(f"{table}.{column}")
            tried.add(table)
        assert verify(verifying).differences == []
    assert (missed, len(tried)) == ([], 7)


def test_what_goes_on_does_not_seal_what_was_changed_by_hand(
    site: Session, url: str, logs: Path
) -> None:
    def details() -> str:
        return "; ".join(one.detail for one in verify(verifying, "logs").differences)

    ((source, run),) = site.query("SELECT MIN(source), MIN(run) FROM backfill_chunk")
    with open_session(url) as verifying:
        site.execute("UPDATE backfill_source SET lines_to = lines_to + 1 WHERE id > %s", (source,))
        site.execute("UPDATE backfill_run SET sources = '[7]' WHERE id > %s", (run,))
        said = f"run {run + 1} was changed by hand; source {source + 1} was changed by hand"
        assert details() == said
        grown = (logs / "b.log").read_bytes() + line("/z", minutes=10)
        add(url, write(logs / "b.log", grown), counter="logs")
        assert details() == said
        site.execute("UPDATE backfill_source SET lines_to = lines_to - 1 WHERE id > %s", (source,))
        for number in (run + 3, run + 1):
            undo(url, number)
        assert details() == f"run {run + 1} was changed by hand"
        site.execute("UPDATE backfill_run SET seal = NULL")  # as before there were seals
        assert details() == ""


def test_what_compaction_and_retention_find_damaged_stays_found(site: Session, url: str) -> None:
    opened = partial(open_tables, url)
    moved = ("counter_slot", "counter_month", "counter_ledger", "app_ledger", "counter")
    missed = []
    with open_session(url) as verifying:
        for name, damage in ROWS.items():
            with damaged(site, damage, moved):
                site.execute("UPDATE counter SET keep_days = 1")
                counter = damage.said[1]
                compact(opened, CompactOptions(before=date(2027, 1, 1), counter=counter))
                roll_up(opened)
                compact(opened, CompactOptions(before=date(2027, 1, 1), counter=counter))
                if counter not in {one.counter for one in verify(verifying, counter).differences}:
                    missed.append(name)
    assert missed == []


def test_legal_changes_do_not_cover_up_what_was_changed_by_hand(site: Session, url: str) -> None:
    def problems() -> list[str]:
        return [one.problem for one in verify(verifying).differences]

    with Store(url) as store, open_session(url) as verifying:
        site.execute("UPDATE sequence SET value = value - 3")
        site.execute("UPDATE counter_policy SET time_zone = 'Asia/Tokyo'")
        site.execute("UPDATE control SET policy_version = policy_version - 1")
        store.sequences.next("invoice")
        store.counters.set("hours", keep_days=90)
        assert problems() == ["settings", "sequence", "control"]
        store.sequences.set("invoice", 100)
        store.sequences.next("invoice")
        assert problems() == ["settings", "control"]
        # What an older program does: it knows of no second column.
        site.execute("UPDATE sequence SET value = value + 1, updated_at = UTC_TIMESTAMP(3)")
        assert problems() == ["settings", "control"]
        store.sequences.next("invoice")
        assert problems() == ["settings", "control"]
        site.execute("UPDATE sequence SET value = value - 1")
        assert problems() == ["settings", "sequence", "control"]
