"""Migrations of the tables to the version that this program needs. One process at a time applies
them.

The file ``database/schema.sql`` is version 1; each later version is a numbered file beside it. DDL
commits by itself, so a crash can leave a migration half done. Therefore every statement can be run
again, and the version is recorded last. If two processes migrate at the same time, the second waits
for a row lock. The first holds that lock on a separate connection, so that the lock ends with the
process.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from countersink.database.connection import connect
from countersink.database.errors import (
    UNKNOWN_DATABASE,
    Refused,
    SchemaMismatch,
)
from countersink.database.session import Session, rerun
from countersink.database.sessions import VERSION, require_schema, schema_version
from countersink.database.sql import quoted
from countersink.database.url import Settings

DDL_SECONDS: Final = 24 * 3600.0
"""Seconds that a statement of a migration may take, because it may rebuild a large table."""
DDL_LOCK_WAIT: Final = 2
"""Seconds that a statement waits for a table that a transaction uses. Meanwhile all other users of
the table wait behind the statement."""
_DDL_ATTEMPTS: Final = 100
TURN_SECONDS: Final = 50
"""Seconds that one attempt waits until another process has ended its migration."""
_TURN_ATTEMPTS: Final = 72

_VERSION_TABLE: Final = """
CREATE TABLE IF NOT EXISTS schema_version (
    version    SMALLINT UNSIGNED NOT NULL COMMENT '0: the row that migrating programs lock',
    name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    applied_at DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (version)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"""
_RECORD: Final = (
    "INSERT IGNORE INTO schema_version (version, name, applied_at)"
    " VALUES (%s, %s, UTC_TIMESTAMP(3))"
)

_ALREADY_DONE: Final = frozenset(
    {
        1050,  # Table already exists
        1060,  # Duplicate column name
        1061,  # Duplicate key name
        1091,  # Can't DROP; check that it exists
    }
)
"""Errors of a statement that was executed before, in a migration that did not end. They are needed
because MySQL has no ADD COLUMN IF NOT EXISTS."""

_FILE: Final = re.compile(r"(?:(\d{4})_)?(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration, read from an SQL file.

    Attributes:
        version: the version of the tables after it: NNNN for ``NNNN_name.sql``, 1 for
            ``schema.sql``.
        name: the file's name without the number and ``.sql``.
        statements: the file's statements, in order.
    """

    version: int
    name: str
    statements: tuple[str, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations of this program, sorted by version."""
    found = []
    for file in resources.files("countersink.database").iterdir():
        if named := _FILE.fullmatch(file.name):
            statements = split_statements(file.read_text("utf-8"))
            found.append(Migration(int(named[1] or 1), named[2], statements))
    return tuple(sorted(found, key=lambda migration: migration.version))


def split_statements(sql: str) -> tuple[str, ...]:
    """Return the statements of an SQL file's text, without their closing ``;`` and without
    comments. A statement ends with ``;`` at the end of a line; a comment is a line that begins with
    ``--``, perhaps after spaces.
    """
    code = "\n".join(line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return tuple(part.strip() for part in re.split(r";[ \t]*$", code, flags=re.M) if part.strip())


def identity(session: Session) -> str:
    """Return the identity of an installation's tables: a text with the time of their creation and
    the name of their database. It is the same on a replica, and under each host name of the server,
    so that callers recognize the tables by it.
    """
    made = session.query("SELECT MIN(applied_at), DATABASE() FROM schema_version")
    return " ".join(map(str, made[0]))


def migrate(where: Settings | str, *, resolution: str = "day") -> list[str]:
    """Create the database if need be, and bring its tables up to date. It is safe to run this
    again, or in two processes at once.

    Args:
        where: the URL or settings of the database.
        resolution: the default resolution of counters, if the tables are new.

    Returns:
        the names of the migrations that were applied, such as ``["0001_schema"]``; an empty list if
        the tables were up to date.

    Raises:
        SchemaMismatch: the tables are newer than this program.
        Misconfigured: the URL cannot be used, or names no database.
        Conflict: another process has been migrating for an hour, or transactions went on using a
            table.
        StoreError: as raised by :func:`countersink.database.connection.connect`, or a statement
            failed.
    """
    settings = Settings.parse(where) if isinstance(where, str) else where
    with _session(settings) as session, _turn(session.where):
        if schema_version(session) > VERSION:
            require_schema(session)
        done = {int(version) for (version,) in session.query("SELECT version FROM schema_version")}
        applied = []
        for migration in migrations():
            if migration.version in done:
                continue
            for statement in migration.statements:
                _run(session, statement)
            if migration.version == 1:  # before the record, as the tables are new until then
                session.execute("UPDATE control SET resolution = %s WHERE id = 1", (resolution,))
            session.execute(_RECORD, (migration.version, migration.name))
            applied.append(f"{migration.version:04d}_{migration.name}")
        return applied


def _session(settings: Settings) -> Session:
    """Return a session for DDL in the database that ``settings`` name. Create the database first
    if it does not exist.
    """
    try:
        return _connect(settings)
    except SchemaMismatch as error:
        if error.code != UNKNOWN_DATABASE or settings.database is None:
            raise
    with connect(settings, database=False) as session:
        session.execute(
            f"CREATE DATABASE IF NOT EXISTS {quoted(settings.database)}"
            " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        )
    return _connect(settings)


def _connect(settings: Settings, lock_wait: int = DDL_LOCK_WAIT) -> Session:
    """Open a session whose read timeout is a day, because a migration's statements may take long.

    Args:
        settings: the host, the login and the database.
        lock_wait: seconds that a statement waits for a lock before it raises Conflict.
    """
    return connect(
        settings, read_timeout=DDL_SECONDS, lock_wait=lock_wait, idle_seconds=int(DDL_SECONDS)
    )


@contextmanager
def _turn(settings: Settings) -> Iterator[None]:
    """Hold a lock on the row 0 of the table ``schema_version`` during the block, so that only one
    process migrates at a time. Create table and row first if they do not exist. Wait for the lock
    for up to an hour, then raise Conflict. A separate connection holds the lock, because DDL on the
    same connection would commit and so release it.
    """
    with _connect(settings, TURN_SECONDS) as holder:

        def take() -> None:
            holder.rollback()
            # An INSERT IGNORE waits for the holder of the row, too, so it is in no transaction.
            holder.execute(_VERSION_TABLE)
            holder.execute(_RECORD, (0, "lock"))
            holder.begin()
            holder.query("SELECT version FROM schema_version WHERE version = 0 FOR UPDATE")

        rerun(take, attempts=_TURN_ATTEMPTS)
        yield
        holder.rollback()


def _run(session: Session, statement: str) -> None:
    try:
        rerun(lambda: session.execute(statement), attempts=_DDL_ATTEMPTS)
    except Refused as error:
        if error.code not in _ALREADY_DONE:
            raise
