"""The private servers of a run, and a fresh database for every measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import redis

from benchmarks.database import connect, server_version
from countersink.cli.errors import ServerMissing
from countersink.cli.servers import mariadbd
from tests.support.servers import Kind, MySQLServer, RedisServer, mysqld
from tests.support.trees import why_missing

MYSQL_OPTIONS: Final = (
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-buffer-pool-size=1G",
    "--max-connections=200",
)
"""Durable commits, and a buffer pool that holds the benchmarks' tables; the rest is as shipped."""
APPENDFSYNC: Final = "everysec"
RESTART_SECONDS: Final = 600.0
"""How long a database server with a large buffer pool may take to stop, and to start."""


class Site:
    """One Redis and one MySQL or MariaDB, used by all rows that are measured on it.

    Attributes:
        redis_url: the Redis.
        kind: which of the two database servers it is.
        directory: for files that are gone with the servers.
    """

    def __init__(
        self, redis_server: RedisServer, mysql_server: MySQLServer, directory: Path
    ) -> None:
        self.directory = directory
        self.redis_url = redis_server.url
        self.kind: Kind = mysql_server.kind
        self._mysql = mysql_server
        self._numbers = count(1)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, dropped afterwards; Redis is emptied before and after."""
        name = f"benchmark_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        self._empty_redis()
        try:
            yield self._mysql.url_for(name)
        finally:
            self._execute(f"DROP DATABASE {name}")
            self._empty_redis()

    def restart_database(self) -> None:
        """Restart the database server, which writes all changed pages before it stops."""
        self._mysql.stop_timeout = self._mysql.start_timeout = RESTART_SECONDS
        self._mysql.restart()

    @contextlib.contextmanager
    def redis_client(self) -> Iterator[redis.Redis]:
        """A client of the private Redis."""
        client = redis.Redis.from_url(self.redis_url)
        try:
            yield client
        finally:
            client.close()

    def redis_version(self) -> str:
        """As the server says it."""
        with self.redis_client() as client:
            return str(client.info("server")["redis_version"])

    def mysql_version(self) -> str:
        """As the server says it."""
        connection = connect(self._mysql.url)
        try:
            return server_version(connection)
        finally:
            connection.close()

    def _empty_redis(self) -> None:
        with self.redis_client() as client:
            client.flushall()

    def _execute(self, statement: str) -> None:
        connection = connect(self._mysql.url, autocommit=True)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        finally:
            connection.close()


def why_unavailable(kind: Kind) -> str | None:
    """Why a server cannot be started here; None if it can. Gets MySQL where it can be had."""
    program = mysqld if kind == "mysql" else mariadbd
    if kind == "mysql" and (why := why_missing("mysql-tree.sh")) is not None:
        return why
    try:
        program()
    except ServerMissing as error:
        return str(error)
    return None


@contextlib.contextmanager
def open_site(
    directory: Path, kind: Kind, options: Sequence[str] = MYSQL_OPTIONS
) -> Iterator[Site]:
    """Start the servers in ``directory``, and stop them at the end; ``options`` are those of the
    database server.

    Raises ServerMissing, ServerFailed.
    """
    with (
        RedisServer(directory / "redis", appendfsync=APPENDFSYNC) as redis_server,
        MySQLServer(directory / kind, kind=kind, extra=options) as mysql_server,
    ):
        yield Site(redis_server, mysql_server, directory)
