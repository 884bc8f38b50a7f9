"""Migrations: safe to run twice, at once, and after a crash midway."""

import re
from functools import partial

import pytest

from countersink.counting.apply.applier import Applier
from countersink.database import migrate as module
from countersink.database import sessions
from countersink.database.connection import connect
from countersink.database.errors import SchemaMismatch
from countersink.database.migrate import migrate, migrations, split_statements
from countersink.database.session import Session
from countersink.database.sessions import VERSION, require_schema, schema_version
from countersink.store import Store
from countersink.store.verify import open_session
from tests.support.entries import entry, rows, together

pytestmark = pytest.mark.servers("mariadb", "mysql")

ALL = ["0001_schema"]
_TABLES = """
    SELECT table_name, table_type FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name <> 'schema_version' ORDER BY table_name
"""


class Crash(Exception):
    """The process is gone."""


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


def test_migrate_creates_the_database_and_says_what_it_did(empty_mysql_url: str) -> None:
    assert migrate(empty_mysql_url) == ALL
    assert migrate(empty_mysql_url) == []
    with connect(empty_mysql_url) as session:
        require_schema(session)
        assert schema_version(session) == VERSION


def test_a_strange_name_of_a_database(empty_mysql_url: str) -> None:
    name = empty_mysql_url.rpartition("/")[2]
    url = f"{empty_mysql_url}%60%3B%20-x"
    assert migrate(url) == ALL
    with connect(url) as session:
        session.execute(f"DROP DATABASE `{name}``; -x`")


def test_several_migrate_at_once(empty_mysql_url: str) -> None:
    results = together(*(lambda: migrate(empty_mysql_url) for _ in range(5)))
    assert sorted(results) == [[], [], [], [], ALL]
    with connect(empty_mysql_url) as session:
        require_schema(session)
        versions = session.query("SELECT version FROM schema_version ORDER BY version")
        assert versions == [(version,) for version in range(len(ALL) + 1)]
        assert session.query("SELECT COUNT(*) FROM control") == [(1,)]


def test_a_crash_after_any_statement_is_made_good(
    session: Session, empty_mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = _schema(session)
    assert len(wanted) == 31
    # With the server's character set and collation, which its tables do not take over.
    session.execute(f"CREATE DATABASE {empty_mysql_url.rpartition('/')[2]}")
    (schema,) = migrations()
    run, left = module._run, list(schema.statements)

    def crash_after(session: Session, statement: str) -> None:
        run(session, statement)
        if statement == left[0]:
            raise Crash

    with monkeypatch.context() as crashing:
        crashing.setattr(module, "_run", crash_after)
        while left:  # each goes on with what the ones before have left
            with pytest.raises(Crash):
                migrate(empty_mysql_url, resolution="day")
            left.pop(0)
    assert migrate(empty_mysql_url, resolution="hour") == ALL
    with connect(empty_mysql_url) as made:
        require_schema(made)
        assert _schema(made) == wanted
        control = made.query("SELECT id, pruned_before, resolution FROM control")
        assert control == [(1, 0, "hour")]
        assert migrate(empty_mysql_url, resolution="minute") == []  # they are not new
        assert control == made.query("SELECT id, pruned_before, resolution FROM control")


def test_a_later_version_is_applied_to_tables_that_have_rows(
    mysql_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = module.Migration(
        2,
        "later",
        (
            "ALTER TABLE control ADD COLUMN later INT NOT NULL DEFAULT 7",
            "UPDATE control SET later = 8",
        ),
    )
    monkeypatch.setattr(module, "migrations", lambda: (*migrations(), later))
    for each in (module, sessions):
        monkeypatch.setattr(each, "VERSION", later.version)
    with pytest.raises(SchemaMismatch, match="have version 1, this countersink needs version 2"):
        require_schema(session)
    session.execute(later.statements[0])  # a run that was killed got as far as this
    assert migrate(mysql_url) == ["0002_later"]
    assert migrate(mysql_url) == []
    require_schema(session)
    assert session.query("SELECT later FROM control") == [(8,)]


def test_newer_tables_are_left_alone(mysql_url: str, session: Session, applier: Applier) -> None:
    session.execute("INSERT INTO schema_version VALUES (999, 'later', UTC_TIMESTAMP(3))")
    with pytest.raises(SchemaMismatch, match="upgrade countersink") as caught:
        require_schema(session)
    assert caught.value.newer
    with Store(mysql_url) as store:
        for use in (
            partial(migrate, mysql_url),
            partial(open_session, mysql_url),
            partial(applier.apply, [entry(rows(("/a", 1)))]),
            store.totals.counters,
        ):
            with pytest.raises(SchemaMismatch, match="upgrade countersink"):
                use()


def test_older_and_missing_tables_ask_for_migrate(session: Session) -> None:
    session.execute("DELETE FROM schema_version WHERE version > 0")
    with pytest.raises(SchemaMismatch, match="run `countersink migrate`") as caught:
        require_schema(session)
    assert not caught.value.newer
    session.execute("DROP TABLE schema_version")
    with pytest.raises(SchemaMismatch, match="no tables yet"):
        require_schema(session)


def test_statements_are_split_at_the_ends_of_lines() -> None:
    text = "-- a; b\nSELECT 1;\n\nSELECT ';' AS x,\n  -- no;\n  2;  \n"
    assert split_statements(text) == ("SELECT 1", "SELECT ';' AS x,\n  2")


def test_the_views_are_for_people(session: Session) -> None:
    key, both = "/é".encode(), "/é\0DE".encode()
    session.execute(
        "INSERT INTO counter (name, breakdown_of, dimensions) VALUES ('v#1', 'v', 'page,country')"
    )
    session.execute(
        "INSERT INTO counter_slot (counter, bucket, counter_key, width, slot, amount) VALUES"
        " ('v', '2026-11-21', %s, 4, 0, 1), ('v', '2026-11-21', %s, 4, 9, 2),"
        " ('v', '2026-11-20', %s, 4, 9, 4), ('v', '2026-10-01', %s, 5, 0, 50),"
        " ('v', '2026-11-20 12:45', %s, 2, 0, 7), ('v', '2026-11-20 12:01', %s, 1, 0, 9),"
        " ('v#1', '2026-11-21', %s, 4, 0, 3)",
        (key,) * 6 + (both,),
    )

    def shown(view: str, of_time: str, text: str = "/é") -> list[tuple[str, int]]:
        found = session.query(
            f"SELECT counter, CAST({of_time} AS CHAR), key_text, total FROM {view}"
            " ORDER BY counter, 2"
        )
        assert {(name, shown) for name, _, shown, _ in found} == {("v", text)}
        return [(at, int(total)) for _, at, _, total in found]

    assert shown("counter_daily", "day") == [("2026-11-20", 20), ("2026-11-21", 3)]
    assert shown("counter_hourly", "hour") == [("2026-11-20 12:00:00", 16)]
    assert shown("breakdown_daily", "day", "/é, DE") == [("2026-11-21", 3)]
    assert session.query("SELECT dimensions, counter_key FROM breakdown_daily") == [
        ("page,country", both)
    ]
    assert session.query("SELECT total FROM counter_daily WHERE counter_key = %s", (b"/E",)) == []
