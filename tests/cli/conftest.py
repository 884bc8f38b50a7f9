"""Fixtures of the tests of the command line."""

from collections.abc import Iterator

import pytest

from tests.cli.command import Servers, Start
from tests.support.processes import Child, Children


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    """An empty Redis and a migrated database, for the real command."""
    return Servers(redis_url, mysql_url)


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
