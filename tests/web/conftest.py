"""Fixtures of the tests of the HTTP interface."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from countersink.database.migrate import migrate
from countersink.web.auth import register
from tests.support.databases import KeptDatabase, dropped, new_name
from tests.support.processes import Children
from tests.support.servers import MySQLServer, RedisServer
from tests.web.attacks.target import Target
from tests.web.routes import ROUTES
from tests.web.serving import Web, serving


@pytest.fixture(scope="module", autouse=True)
def hasty() -> Iterator[None]:
    """Nobody waits for the register to look again for a key that it does not know."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(register, "READ_PAUSE_S", 0.0)
        yield


@pytest.fixture
def web(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server that needs no keys, and an empty database."""
    with serving(redis_url, mysql_url) as served:
        yield served


@pytest.fixture
def keyed(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server that takes keys alone, and an empty database."""
    with serving(redis_url, mysql_url, without_keys=False) as served:
        yield served


@pytest.fixture(scope="session")
def shared_redis(servers_directory: Path) -> Iterator[RedisServer]:
    """The Redis of `shared_urls`: not that of `redis_url`, since a server that tests share may
    still have to send what one was answered for.
    """
    with RedisServer(servers_directory / "redis-shared") as server:
        yield server


@pytest.fixture(scope="module")
def shared_urls(
    shared_redis: RedisServer, modules_database: KeptDatabase
) -> Iterator[tuple[str, str]]:
    """URLs of a Redis and of a database that are empty where a file begins."""
    with redis.Redis.from_url(shared_redis.url) as client:
        client.flushall()  # of our own private server
    yield shared_redis.url, modules_database.url()
    modules_database.clean()


@pytest.fixture(scope="module")
def shared(shared_urls: tuple[str, str]) -> Iterator[Web]:
    """A server that the tests of a file share, and that needs no keys: each counts under names of
    its own.
    """
    with serving(*shared_urls) as served:
        yield served


@pytest.fixture(scope="session")
def opened(redis_server: RedisServer, mysql_server: MySQLServer) -> Iterator[Web]:
    """A server with the routes of tests that all tests share, and that needs no keys."""
    with dropped(mysql_server, new_name()) as url:
        migrate(url)
        with serving(redis_server.url, url, routes=ROUTES) as served:
            yield served


@pytest.fixture(scope="session")
def guarded(redis_server: RedisServer, mysql_server: MySQLServer) -> Iterator[Web]:
    """A server with the routes of tests that all tests share, and that takes keys alone."""
    with dropped(mysql_server, new_name()) as url:
        migrate(url)
        with serving(
            redis_server.url,
            url,
            routes=ROUTES,
            without_keys=False,
            failures_per_minute=100_000,
            trusted_proxies=("127.0.0.2",),
        ) as served:
            yield served


@pytest.fixture(scope="session")
def many_files() -> Iterator[None]:
    """Room for the sockets of a thousand clients, and of a server for them, in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 4_096), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="session")
def target(mysql_server: MySQLServer, servers_directory: Path) -> Iterator[Target]:
    """A server that tests attack; in the end all live traffic beside that is counted exactly."""
    with (
        dropped(mysql_server, new_name()) as mysql_url,
        RedisServer(servers_directory / "attacked") as redis_server,
        Children() as started,
    ):
        migrate(mysql_url)
        attacked = Target.start(started, redis_server.url, mysql_url)
        yield attacked
        attacked.end()


@pytest.fixture
def unharmed(target: Target) -> Iterator[None]:
    """What the test does is done beside live traffic, and harms nothing."""
    with target.unharmed():
        yield
