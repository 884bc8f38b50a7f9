"""Stages for the fault scenarios: on the shared servers, or on servers that may be killed."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from countersink.database.migrate import migrate
from tests.faults.stage import Stage
from tests.support.examples import MANY
from tests.support.factories import MySQLFactory, RedisFactory
from tests.support.failover_load import Load
from tests.support.processes import Children
from tests.support.servers import MySQLServer, RedisServer

Start = Callable[[str], Load]
"""Has everything count at a URL of the database."""


@pytest.fixture
def seed() -> int:
    """What everything random in a test is drawn from; printed when the test fails."""
    asked = os.environ.get("COUNTERSINK_SEED")
    chosen = int(asked) if asked else random.SystemRandom().getrandbits(32)
    print(f"replay with COUNTERSINK_SEED={chosen}")
    return chosen


@pytest.fixture
def stage(
    redis_server: RedisServer,
    redis_url: str,
    mysql_server: MySQLServer,
    mysql_url: str,
    seed: int,
    tmp_path: Path,
) -> Iterator[Stage]:
    """A stage on the servers that all tests share: their processes are not to be touched."""
    assert redis_url
    with Stage(redis_server, mysql_server, mysql_url, seed, tmp_path) as made:
        if not MANY:
            made.chunk_lines = 2_000  # a short log has several chunks
        yield made


@pytest.fixture
def own_stage(
    own_redis_server: RedisFactory, own_mysql_server: MySQLFactory, seed: int, tmp_path: Path
) -> Iterator[Callable[[], Stage]]:
    """Makes a stage on servers of its own that lose nothing when killed."""
    with ExitStack() as stack:

        def make() -> Stage:
            redis_server = own_redis_server(appendfsync="always")
            mysql_server = own_mysql_server()
            mysql_url = mysql_server.url_for("countersink")
            migrate(mysql_url)
            return stack.enter_context(Stage(redis_server, mysql_server, mysql_url, seed, tmp_path))

        yield make


@pytest.fixture
def start(
    children: Children, redis_client: redis.Redis, redis_url: str, tmp_path: Path
) -> Iterator[Start]:
    """Has everything count at a URL, until the test is over."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(
            Load(children, redis_client, redis_url, url, tmp_path)
        )
