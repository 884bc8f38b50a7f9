"""Fixtures of the tests of the command line."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.cli.command import Servers, Start
from tests.support.databases import KeptDatabase
from tests.support.processes import Child, Children
from tests.support.servers import RedisServer


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    """An empty Redis and a migrated database, for the real command."""
    return Servers(redis_url, mysql_url)


@pytest.fixture(scope="module")
def module_servers(
    redis_server: RedisServer, modules_database: KeptDatabase, state_directories: Iterator[str]
) -> Iterator[Servers]:
    """Redis and an empty database, for the tests of a module that only ask, or that count in
    counters of their own."""
    os.environ["XDG_STATE_HOME"] = next(state_directories)  # before that of the first test
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    yield Servers(redis_server.url, modules_database.url())
    modules_database.clean()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a log may be written."""
    return tmp_path / "access.log"


@pytest.fixture
def start(servers: Servers, children: Children) -> Start:
    """Starts `countersink ARGUMENTS` on the servers."""

    def start(*arguments: str, **variables: str) -> Child:
        return children.countersink(*arguments, environment=servers.variables(**variables))

    return start
