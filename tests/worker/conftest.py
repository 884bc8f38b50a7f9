"""A database server that tests of workers stop, kill and freeze, one after another."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.databases import KeptDatabase
from tests.support.factories import MySQLFactory
from tests.support.servers import Kind, MySQLServer
from tests.worker.running import Place


@pytest.fixture(scope="session")
def _mysql_to_stop(
    servers_directory: Path, server_kind: Kind
) -> Iterator[tuple[MySQLServer, KeptDatabase]]:
    with MySQLFactory(servers_directory, server_kind) as factory:
        server = factory()
        yield server, KeptDatabase(server)


@pytest.fixture
def mysql_to_stop(
    _mysql_to_stop: tuple[MySQLServer, KeptDatabase],
) -> Iterator[tuple[MySQLServer, str]]:
    """A started server, which loses no commit when killed, and the URL of a freshly migrated
    database there; the test need not start it again.
    """
    server, kept = _mysql_to_stop
    yield server, kept.url()
    server.thaw()
    server.start()
    kept.clean()


@pytest.fixture
def place(redis_url: str, redis_client: redis.Redis, mysql_url: str) -> Place:
    """The servers that workers run on."""
    return Place(redis_url, redis_client, mysql_url)
