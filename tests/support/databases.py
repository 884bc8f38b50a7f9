"""Databases for tests: a migrated one is made once per test process and emptied between tests.

Migrating takes longer than most tests. What a test leaves behind in the tables is deleted; a
database whose schema a test has changed, or that it has filled, is dropped and made anew.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from countersink.database.connection import connect
from countersink.database.errors import StoreError
from countersink.database.migrate import migrate
from countersink.database.session import Session
from tests.support.servers import FAST, Kind, MySQLServer
from tests.support.templates import SMALL, template

PLAIN: Final[dict[Kind, tuple[str, ...]]] = {"mariadb": (), "mysql": ("--tls-version=",)}
"""Without TLS, which takes half the time of a connection: tests connect ten times each. Servers
that a test makes for itself have it."""

MANY_ROWS: Final = 2000
"""Above so many rows the statistics of a table may change the plans of the next test."""
_SCHEMA: Final = """
    SELECT 'column', table_name, column_name, CONCAT(column_type, is_nullable), column_default
    FROM information_schema.columns WHERE table_schema = DATABASE()
    UNION ALL
    SELECT 'index', table_name, index_name, column_name, CONCAT(seq_in_index, '')
    FROM information_schema.statistics WHERE table_schema = DATABASE()
    UNION ALL
    SELECT 'trigger', event_object_table, trigger_name, action_timing, event_manipulation
    FROM information_schema.triggers WHERE trigger_schema = DATABASE()
    UNION ALL
    SELECT 'table', table_name, table_type, engine, table_collation
    FROM information_schema.tables WHERE table_schema = DATABASE()
"""
_VERSIONS: Final = "SELECT version, name FROM schema_version ORDER BY version"


def new_name() -> str:
    """A name that no database has."""
    return f"test_{uuid.uuid4().hex[:12]}"


@contextmanager
def dropped(server: MySQLServer, name: str) -> Iterator[str]:
    """The URL of a database that may or may not come to be, and is gone afterwards."""
    try:
        yield server.url_for(name)
    finally:
        with connect(server.url, database=False) as session:
            session.execute(f"DROP DATABASE IF EXISTS {name}")


class KeptDatabase:
    """One migrated database, handed out empty again and again.

    Args:
        server: where it is.
    """

    def __init__(self, server: MySQLServer) -> None:
        self.server = server
        self._name: str | None = None
        self._schema: list[tuple[str, ...]] = []
        self._control: list[tuple[object, ...]] = []
        self._versions: list[tuple[object, ...]] = []
        self._definitions = 0
        self._count_rows = ""
        self._cleaner: Session | None = None

    def url(self) -> str:
        """The URL of the database, which is as if just migrated."""
        if self._name is None:
            name = new_name()
            migrate(self.server.url_for(name))
            with connect(self.server.url_for(name)) as session:
                self._schema = _schema(session)
                self._control = session.query("SELECT * FROM control")
                self._versions = session.query(_VERSIONS)
                self._definitions = _definitions(session)
            self._count_rows = " UNION ALL ".join(
                f"SELECT '{table}', COUNT(*)"
                f" FROM (SELECT 1 FROM {table} LIMIT {MANY_ROWS + 1}) AS some"
                for what, table, kind, *_ in self._schema
                if what == "table" and kind == "BASE TABLE" and table != "schema_version"
            )
            self._name = name
        return self.server.url_for(self._name)

    def clean(self) -> None:
        """Make it as if just migrated, or else drop it."""
        if self._name is None:
            return
        try:
            fit = self._emptied(self._session(self._name))
        except StoreError:
            fit = False
        if not fit:
            self.drop()

    def drop(self) -> None:
        """Drop it; the next :meth:`url` makes another one."""
        self._end()
        if self._name is not None:
            with dropped(self.server, self._name):
                self._name = None

    def _session(self, name: str) -> Session:
        """The session that cleans, kept: to make one takes longer than to clean."""
        if self._cleaner is None or self._cleaner.closed:
            url = self.server.url_for(name)
            self._cleaner = connect(url, lock_wait=1, idle_seconds=3600)
        return self._cleaner

    def _end(self) -> None:
        if self._cleaner is not None:
            self._cleaner.close()
            self._cleaner = None

    def _emptied(self, session: Session) -> bool:
        definitions = _definitions(session)
        if definitions != self._definitions and _schema(session) != self._schema:
            return False
        if session.query(_VERSIONS) != self._versions:
            return False
        self._definitions = definitions
        filled = [(table, rows) for table, rows in session.query(self._count_rows) if rows]
        if any(rows > MANY_ROWS for _, rows in filled):
            return False
        for table, _ in filled:
            if table != "control":
                session.execute(f"DELETE FROM {table}")
        if session.query("SELECT * FROM control") != self._control:
            session.execute("DELETE FROM control")
            marks = ", ".join(["%s"] * len(self._control[0]))
            session.execute(f"INSERT INTO control VALUES ({marks})", self._control[0])
        return True


class SharedServers:
    """One server of each kind, and its kept database: started when first asked for.

    Args:
        directory: where their data goes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[Kind, KeptDatabase] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for kept in self._made.values():
            kept.server.kill()  # the data is not wanted any more

    def of(self, kind: Kind) -> KeptDatabase:
        """The database that tests use one after another, on the started server of this kind."""
        if kind not in self._made:
            server = MySQLServer(
                self._directory / kind,
                kind=kind,
                template=template(kind),
                extra=(*FAST, *SMALL[kind], *PLAIN[kind]),
            ).start()
            self._made[kind] = KeptDatabase(server)
        return self._made[kind]


def _definitions(session: Session) -> int:
    """Number of statements that define something, run on the server since its start: where it has
    not moved, no schema has changed.
    """
    counts = session.query(
        "SHOW GLOBAL STATUS WHERE Variable_name RLIKE '^Com_(alter|create|drop|rename)_'"
        " AND Variable_name NOT RLIKE '_(db|user|role|temporary_table)$'"
    )
    return sum(int(count) for _, count in counts)


def _schema(session: Session) -> list[tuple[str, ...]]:
    """Columns, indexes, triggers and tables, as a migration leaves them."""
    return sorted(tuple(str(column) for column in row) for row in session.query(_SCHEMA))
