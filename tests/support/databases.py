"""Databases for tests: a migrated one is made once per test process and emptied between tests.

Migrating takes longer than most tests. What a test leaves behind in the tables is deleted; a
database whose schema a test has changed, or that it has filled, is dropped and made anew.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from countersink.cli.servers import MySQLServer
from countersink.store.connection import Session, connect
from countersink.store.errors import StoreError
from countersink.store.migrate import migrate

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
    UNION ALL
    SELECT 'version', CONCAT(version, ''), name, '', '' FROM schema_version
"""


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
        self._server = server
        self._name: str | None = None
        self._schema: list[tuple[str, ...]] = []
        self._control: list[tuple[object, ...]] = []
        self._tables: list[str] = []

    def url(self) -> str:
        """The URL of the database, which is as if just migrated."""
        if self._name is None:
            name = new_name()
            migrate(self._server.url_for(name))
            with connect(self._server.url_for(name)) as session:
                self._schema = _schema(session)
                self._control = session.query("SELECT * FROM control")
            self._tables = [
                row[1]
                for row in self._schema
                if row[0] == "table" and row[2] == "BASE TABLE" and row[1] != "schema_version"
            ]
            self._name = name
        return self._server.url_for(self._name)

    def clean(self) -> None:
        """Make it as if just migrated, or else drop it."""
        if self._name is None:
            return
        try:
            with connect(self._server.url_for(self._name), lock_wait=1) as session:
                fit = self._emptied(session)
        except StoreError:
            fit = False
        if not fit:
            self.drop()

    def drop(self) -> None:
        """Drop it; the next :meth:`url` makes another one."""
        if self._name is not None:
            with dropped(self._server, self._name):
                self._name = None

    def _emptied(self, session: Session) -> bool:
        if _schema(session) != self._schema:
            return False
        for table in self._tables:
            rows = session.query(f"SELECT COUNT(*) FROM (SELECT 1 FROM {table} LIMIT 5000) AS some")
            if rows[0][0] > MANY_ROWS:
                return False
            if rows[0][0] and table != "control":
                session.execute(f"DELETE FROM {table}")
        if session.query("SELECT * FROM control") != self._control:
            session.execute("DELETE FROM control")
            marks = ", ".join(["%s"] * len(self._control[0]))
            session.execute(f"INSERT INTO control VALUES ({marks})", self._control[0])
        return True


def _schema(session: Session) -> list[tuple[str, ...]]:
    """Everything that has to be as a migration leaves it, the versions it wrote down included."""
    return sorted(tuple(str(column) for column in row) for row in session.query(_SCHEMA))
