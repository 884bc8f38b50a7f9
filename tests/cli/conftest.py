"""Fixtures of the tests of the command line."""

from collections.abc import Iterator

import pytest
import redis

from countersink.cli.servers import MySQLServer, RedisServer
from countersink.store.migrate import migrate
from tests.cli.command import Servers, Start
from tests.support.databases import dropped, new_name
from tests.support.processes import Child, Children


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    """An empty Redis and a migrated database, for the real command."""
    return Servers(redis_url, mysql_url)


@pytest.fixture(scope="module")
def module_servers(redis_server: RedisServer, mysql_server: MySQLServer) -> Iterator[Servers]:
    """Redis and a migrated database, for what the tests of a module only ask of."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    with dropped(mysql_server, new_name()) as url:
        migrate(url)
        yield Servers(redis_server.url, url)


@pytest.fixture
def children() -> Iterator[Children]:
    """Processes that are gone after the test."""
    with Children() as started:
        yield started


@pytest.fixture
def start(servers: Servers, children: Children) -> Start:
    """Starts `countersink ARGUMENTS` on the servers."""

    def start(*arguments: str, **variables: str) -> Child:
        return children.countersink(*arguments, environment=servers.variables(**variables))

    return start
