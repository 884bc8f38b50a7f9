"""Migrations: equal to the schema file, safe to run twice, at once, and after a crash midway."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from importlib import resources

import pytest

from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store import migrate as module
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session, connect
from countersink.store.errors import Misconfigured, Refused, SchemaMismatch
from countersink.store.migrate import (
    known_version,
    migrate,
    migrations,
    require_schema,
    schema_version,
    split_statements,
)
from countersink.store.settings import Settings
from countersink.store.verify import verify
from tests.store.app import open_app
from tests.store.helpers import entry, minute, row, together
from tests.support.examples import MANY
from tests.support.ledger import held, posted
from tests.support.waiting import eventually

ALL = [
    "0001_initial",
    "0002_schedules",
    "0003_transactions",
    "0004_backfill",
    "0005_front_doors",
    "0006_own_slots",
    "0007_checksums",
    "0008_notes",
    "0009_backfill_lines",
    "0010_seals",
    "0011_backfill_seals",
    "0012_galera",
    "0013_windows",
    "0014_breakdowns",
    "0015_visitors",
    "0016_daily",
    "0017_sightings",
]
_TABLES = """
    SELECT table_name, table_type FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name <> 'schema_version' ORDER BY table_name
"""


def _schema(session: Session) -> dict[str, str]:
    """Every table and view as the server would create it."""
    found = {}
    ((database,),) = session.query("SELECT DATABASE()")
    for name, kind in session.query(_TABLES):
        what = "VIEW" if kind == "VIEW" else "TABLE"
        text = session.query(f"SHOW CREATE {what} `{name}`")[0][1]
        # The next number of a table that was used by a test before.
        text = re.sub(r" AUTO_INCREMENT=\d+", "", text)
        found[name] = text.replace(f"`{database}`.", "")
    return found


@pytest.mark.servers("mariadb", "mysql")
def test_the_migrated_schema_is_the_schema_file(mysql_url: str, session: Session) -> None:
    sql = (resources.files("countersink.store") / "migrations" / "schema.sql").read_text("utf-8")
    settings = Settings.parse(mysql_url)
    other = f"{settings.database}_file"
    session.execute(f"CREATE DATABASE {other} CHARACTER SET latin1")
    try:
        with connect(replace(settings, database=other)) as written:
            for statement in split_statements(sql):
                written.execute(statement)
            assert _schema(written) == _schema(session)
            assert written.query("SELECT * FROM control") == session.query("SELECT * FROM control")
    finally:
        session.execute(f"DROP DATABASE {other}")
    assert len(_schema(session)) == 39


def test_migrate_creates_the_database_and_says_what_it_did(empty_mysql_url: str) -> None:
    assert migrate(empty_mysql_url) == ALL
    assert migrate(empty_mysql_url) == []
    with connect(empty_mysql_url) as session:
        require_schema(session)
        assert schema_version(session) == known_version()


def test_a_strange_name_of_a_database(empty_mysql_url: str) -> None:
    name = empty_mysql_url.rpartition("/")[2]
    url = f"{empty_mysql_url}%60%3B%20-x"
    assert migrate(url) == ALL
    with connect(url) as session:
        session.execute(f"DROP DATABASE `{name}``; -x`")


@pytest.mark.servers("mariadb", "mysql")
def test_several_migrate_at_once(empty_mysql_url: str) -> None:
    results = together(*(lambda: migrate(empty_mysql_url) for _ in range(5)))
    assert sorted(results) == [[], [], [], [], ALL]
    with connect(empty_mysql_url) as session:
        require_schema(session)
        versions = session.query("SELECT version FROM schema_version ORDER BY version")
        assert versions == [(version,) for version in range(len(ALL) + 1)]
        assert session.query("SELECT COUNT(*) FROM control") == [(1,)]


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_a_turn_is_waited_for_however_long_another_has_it(
    mysql_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 1)
    before = _lock_waits(session)
    with ThreadPoolExecutor(1) as pool, connect(mysql_url, idle_seconds=600) as holder:
        holder.begin()
        holder.query("SELECT version FROM schema_version WHERE version = 0 FOR UPDATE")
        waiting = pool.submit(migrate, mysql_url)
        # The last of these has begun, and those before it were given up.
        waits = 4 if MANY else 3
        eventually(lambda: waiting.done() or _lock_waits(session) >= before + waits)
        assert not waiting.done()
        holder.rollback()
        assert waiting.result() == []


def _lock_waits(session: Session) -> int:
    ((_, waits),) = session.query("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'")
    return int(waits)


@pytest.mark.servers("mariadb", "mysql")
def test_a_crash_after_any_statement_is_made_good(
    empty_mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.parse(empty_mysql_url)
    first, *_ = migrations()
    wanted: dict[str, str] = {}
    with connect(settings, database=False) as server, monkeypatch.context() as alone:
        alone.setattr(module, "migrations", lambda: (first,))
        for done in range(len(first.statements) + 1):
            server.execute(f"DROP DATABASE IF EXISTS {settings.database}")
            server.execute(f"CREATE DATABASE {settings.database}")
            with connect(settings) as session:
                for statement in first.statements[:done]:
                    session.execute(statement)
                assert migrate(empty_mysql_url) == ALL[:1]
                wanted = wanted or _schema(session)
                assert _schema(session) == wanted, done
                assert session.query("SELECT id, pruned_before FROM control") == [(1, 0)]
    assert migrate(empty_mysql_url) == ALL[1:]
    with connect(settings) as session:
        require_schema(session)
        assert len(_schema(session)) == 39


@pytest.mark.servers("mariadb", "mysql")
def test_columns_and_keys_that_an_interrupted_run_made_are_no_error(session: Session) -> None:
    """MySQL knows no ADD COLUMN IF NOT EXISTS."""
    for statement in (
        "ALTER TABLE control ADD COLUMN policy_version INT NOT NULL DEFAULT 0",
        "CREATE INDEX by_holder ON lease (holder)",
        "ALTER TABLE control DROP COLUMN policy_version",
    ):
        module._run(session, statement)
        module._run(session, statement)
    with pytest.raises(Refused):
        module._run(session, "ALTER TABLE control ADD COLUMN x NONSENSE")


@pytest.mark.servers("mariadb", "mysql")
def test_rows_of_backfill_leave_the_slots_that_connections_have_now(
    mysql_url: str, session: Session
) -> None:
    session.execute("DELETE FROM schema_version WHERE version = 6")
    session.execute(
        "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
        " VALUES ('views', '2026-11-21', '/', 14202, 5), ('views', '2026-11-21', '/', 700, 1)"
    )
    session.execute(
        "INSERT INTO counter_ledger VALUES ('views', 14202, 5, 0, 0), ('views', 700, 1, 0, 0)"
    )
    assert migrate(mysql_url) == ["0006_own_slots"]
    assert session.query("SELECT slot, amount FROM counter_slot ORDER BY amount") == [
        (700, 1),
        (640 + 14202 % 384, 5),
    ]
    assert [found for found in verify(session).differences if found.problem == "sum"] == []


@pytest.mark.servers("mariadb", "mysql")
def test_checksums_begin_with_the_rows_there_are_and_go_on_from_them(
    empty_mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of workers, of compaction, of applications, and months; of bytes and of hours."""
    first = migrations()[:6]
    with monkeypatch.context() as older:
        older.setattr(module, "migrations", lambda: first)
        assert migrate(empty_mysql_url) == ALL[:6]
    with connect(empty_mysql_url, isolation="REPEATABLE READ") as session:
        session.execute(
            "INSERT INTO counter (name, keep_days, rolled_up_to, created)"
            " VALUES ('views', 30, '2026-04-01', '2026-01-01')"
        )
        session.execute(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES"
            " ('views', '2026-11-20', '/a', 0, 7), ('views', '2026-11-21', '/a', 3, -9),"
            " ('views', '2026-11-21', X'C3A4FF', 3, 9223372036854775807),"
            " ('views', '2026-11-21', '', 700, 5), ('views', '2026-11-21', '/a', 300, 2),"
            " ('orders', '2026-11-21', 'paid', 300, 4), ('orders', '2026-11-21', 'paid', 1030, 8),"
            " ('orders', '2026-11-20', 'sent', 1031, -3)"
        )
        session.execute(
            "INSERT INTO counter_month (counter, bucket, counter_key, amount) VALUES"
            " ('views', '2026-03-01', '/a', 60), ('views', '2026-02-01', '/b', -1)"
        )
        session.execute(
            "INSERT INTO counter_ledger (counter, slot, amount) VALUES ('views', 0, 66),"
            " ('views', 3, 9223372036854775798), ('views', 700, 5), ('gone', 4, 0)"
        )
        assert migrate(empty_mysql_url) == ALL[6:]

        def require_equal() -> None:
            rows = held(session)
            said = posted(session)
            assert {name: said.get(name) for name in rows} == rows
            assert {sums for name, sums in said.items() if name not in rows} <= {(0, 0, 0)}
            assert verify(session).differences == []

        require_equal()
        opened = partial(open_tables, empty_mysql_url)
        with Store(empty_mysql_url) as store, open_app(empty_mysql_url) as app:
            applier = Applier(empty_mysql_url, 3)
            applier.apply([entry([row("/a", 5), (1, "gone", "/c", minute(), 1)])])
            applier.close()
            require_equal()
            store.increment_many(
                app, "orders", {"paid": 2, "sent": 1}, at=datetime(2026, 11, 21, tzinfo=UTC)
            )
            app.commit()
            require_equal()
            for act in (
                lambda: compact(opened, CompactOptions(before=date(2027, 1, 1))),
                lambda: store.counters.set("orders", keep_days=1),
                lambda: roll_up(opened),
                lambda: store.counters.delete("views", "/a"),
                lambda: store.counters.delete("orders", "paid"),
            ):
                act()
                require_equal()


def test_newer_tables_are_left_alone(mysql_url: str, session: Session) -> None:
    session.execute("INSERT INTO schema_version VALUES (999, 'later', UTC_TIMESTAMP(3))")
    with pytest.raises(SchemaMismatch, match="upgrade countersink") as caught:
        require_schema(session)
    assert caught.value.newer
    with pytest.raises(SchemaMismatch, match="upgrade countersink"):
        migrate(mysql_url)


@pytest.mark.servers("mariadb", "mysql")
def test_older_and_missing_tables_ask_for_migrate(session: Session) -> None:
    session.execute("DELETE FROM schema_version WHERE version > 0")
    with pytest.raises(SchemaMismatch, match="run `countersink migrate`") as caught:
        require_schema(session)
    assert not caught.value.newer
    session.execute("DROP TABLE schema_version")
    with pytest.raises(SchemaMismatch, match="no tables yet"):
        require_schema(session)


@pytest.mark.servers("mariadb", "mysql")
def test_a_url_without_a_database() -> None:
    with pytest.raises(Misconfigured, match="names no database"):
        migrate("mysql://nobody@127.0.0.1:1")


@pytest.mark.servers("mariadb", "mysql")
def test_numbers_are_unique_and_without_gaps() -> None:
    assert [migration.version for migration in migrations()] == list(
        range(1, len(migrations()) + 1)
    )


@pytest.mark.servers("mariadb", "mysql")
def test_statements_are_split_at_the_ends_of_lines() -> None:
    text = "-- a; b\nSELECT 1;\n\nSELECT ';' AS x,\n  -- no;\n  2;  \n"
    assert split_statements(text) == ("SELECT 1", "SELECT ';' AS x,\n  2")


@pytest.mark.servers("mariadb", "mysql")
def test_the_view_is_for_people(session: Session) -> None:
    session.execute(
        "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
        " VALUES ('v', '2026-11-21', %s, 0, 1),"
        " ('v', '2026-11-21', %s, 9, 2), ('v', '2026-11-20', %s, 9, 4),"
        " ('v#1', '2026-11-21', %s, 0, 3)",  # of a breakdown, whose counter has them
        ("/é".encode(), "/é".encode(), "/é".encode(), "/é".encode()),
    )
    found = session.query("SELECT counter, day, counter_key, total FROM counter_daily ORDER BY day")
    assert [(c, day.isoformat(), key, int(total)) for c, day, key, total in found] == [
        ("v", "2026-11-20", "/é".encode(), 4),
        ("v", "2026-11-21", "/é".encode(), 3),
    ]
