"""Real servers for the tests: each test process has its own, on free ports, in its own directory.

`redis_server` and `mysql_server` live for the session and are shared by the tests of one process:
never stop, kill, freeze or reconfigure those. A test that does so makes its own with
`own_redis_server` and `own_mysql_server`.
"""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import coverage
import pytest
import redis
from hypothesis import HealthCheck, settings

from countersink.counting.apply.applier import Applier
from countersink.counting.totals import Totals
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.store import Store
from countersink.store.verify import open_session, verify
from countersink.stream.connection import connect as connect_redis
from tests.support.app_connection import Connection, open_app
from tests.support.databases import KeptDatabase, SharedServers, dropped, new_name
from tests.support.entries import Database, entry
from tests.support.factories import MySQLFactory, RedisFactory
from tests.support.forked import ForkedChildren
from tests.support.processes import Children
from tests.support.servers import Kind, MySQLServer, RedisServer
from tests.support.width_rows import Put, put_scheme

settings.register_profile(
    "countersink",
    deadline=None,  # a shared machine is slow at times: no test may depend on its speed
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("countersink")

# Until all tests are collected: what is made there stays, and looking through it again and again
# for garbage took a fifth of the time of each process.
gc.disable()

# Ignored where a shell has started the tests in the background; all children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # by nohup

ASKED: Final = os.environ.get("COUNTERSINK_TEST_SERVER") or "mariadb"
"""Database servers of this run: "mariadb", "mysql", or "both"; with "both" each test runs on the
kinds that its marker ``servers`` names, on MariaDB where it has none."""
KINDS: Final[dict[str, Kind]] = {"mariadb": "mariadb", "mysql": "mysql"}


def pytest_configure() -> None:
    """Refuse an unknown kind of server once, rather than in each test."""
    if ASKED not in (*KINDS, "both"):
        raise pytest.UsageError(f"COUNTERSINK_TEST_SERVER={ASKED}: mariadb, mysql or both")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the kind of server a parameter of the tests that use the database."""
    if ASKED == "both" and "server_kind" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("servers")
        kinds = marker.args if marker is not None else ("mariadb",)
        metafunc.parametrize("server_kind", kinds, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about another kind of server than the one that was asked for."""
    if ASKED == "both":
        return
    others = {
        item
        for item in items
        if (marker := item.get_closest_marker("servers")) is not None and ASKED not in marker.args
    }
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]


def pytest_collection_finish() -> None:
    """What is there before the first test stays: looking through it again and again for garbage
    took an eighth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def state_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Names of directories, for what processes note for later; none of them is made."""
    base = tmp_path_factory.mktemp("state")
    return (str(base / str(number)) for number in count())


@pytest.fixture(autouse=True)
def state_directory(state_directories: Iterator[str]) -> None:
    """What processes note for later is the test's, and not the user's."""
    os.environ["XDG_STATE_HOME"] = next(state_directories)


@pytest.fixture(scope="session")
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """The kind of the test's database server."""
    return KINDS[getattr(request, "param", "mariadb" if ASKED == "both" else ASKED)]


@pytest.fixture(scope="session")
def servers_directory() -> Iterator[Path]:
    """For the servers' data: short, since the paths of unix sockets are, and gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="csk-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server(servers_directory: Path) -> Iterator[RedisServer]:
    """One Redis for all tests of this process."""
    with RedisServer(servers_directory / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def mysql_servers(servers_directory: Path) -> Iterator[SharedServers]:
    """The MySQL and the MariaDB of this process, each started when a test first needs it."""
    with SharedServers(servers_directory) as servers:
        yield servers


@pytest.fixture(scope="session")
def mysql_server(mysql_servers: SharedServers, server_kind: Kind) -> MySQLServer:
    """One MySQL or MariaDB for all tests of this process; a crash of it would lose data."""
    return mysql_servers.of(server_kind).server


@pytest.fixture
def children() -> Iterator[Children]:
    """Processes that are gone after the test."""
    with ForkedChildren() as started:
        yield started


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of an empty Redis."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()  # of our own private server
    return redis_server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the Redis at `redis_url`, made as countersink makes its own: bytes, no retry."""
    client = connect_redis(redis_url)
    yield client
    client.close()


@pytest.fixture
def empty_mysql_url(mysql_server: MySQLServer) -> Iterator[str]:
    """The URL of a database that does not exist yet; dropped afterwards."""
    with dropped(mysql_server, new_name()) as url:
        yield url


@pytest.fixture(scope="session")
def kept_database(mysql_servers: SharedServers, server_kind: Kind) -> KeptDatabase:
    """The migrated database that the tests of this process use one after another."""
    return mysql_servers.of(server_kind)


@pytest.fixture(scope="session")
def modules_database(mysql_server: MySQLServer) -> Iterator[KeptDatabase]:
    """A migrated database that modules use one after another, beside that of single tests."""
    kept = KeptDatabase(mysql_server)
    yield kept
    kept.drop()


@pytest.fixture
def mysql_url(kept_database: KeptDatabase) -> Iterator[str]:
    """The URL of a freshly migrated database, or one that is like it; the test may do anything."""
    yield kept_database.url()
    kept_database.clean()


@pytest.fixture
def session(mysql_url: str) -> Iterator[Session]:
    """A session of ours on a freshly migrated database, which also a busy machine keeps."""
    with connect(mysql_url, idle_seconds=3600) as opened:
        yield opened


@pytest.fixture
def applier(mysql_url: str) -> Iterator[Applier]:
    """An applier into slot 17 of the same database."""
    made = Applier(mysql_url, 17)
    yield made
    made.close()


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The store; whatever a test does, verify finds nothing afterwards."""
    with Store(mysql_url) as opened:
        yield opened
    with open_session(mysql_url) as session:
        assert verify(session).differences == []


@pytest.fixture
def app_database_url(mysql_server: MySQLServer) -> Iterator[str]:
    """The URL of an empty database on the same server, for an application's own tables."""
    with dropped(mysql_server, new_name()) as url:
        with connect(url, database=False) as session:
            session.execute(f"CREATE DATABASE {Settings.parse(url).database}")
        yield url


@pytest.fixture
def own_redis_server(servers_directory: Path) -> Iterator[RedisFactory]:
    """Makes started Redis servers that the test may stop, kill and freeze."""
    with RedisFactory(servers_directory) as factory:
        yield factory


@pytest.fixture
def own_mysql_server(servers_directory: Path, server_kind: Kind) -> Iterator[MySQLFactory]:
    """Makes started MySQL or MariaDB servers that the test may stop, kill and freeze."""
    with MySQLFactory(servers_directory, server_kind) as factory:
        yield factory


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Save what `make coverage` has seen here: a process that takes long to end may be killed."""
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.save()


@pytest.fixture
def db(request: pytest.FixtureRequest, mysql_url: str) -> Database:
    """The database of a test that looks at it from several sides."""
    return Database(request)


@pytest.fixture
def app(mysql_url: str) -> Iterator[Connection]:
    """The application's connection."""
    connection = open_app(mysql_url)
    yield connection
    if connection.open:
        connection.close()


@pytest.fixture
def totals(mysql_url: str) -> Iterator[Totals]:
    """The totals of the same database."""
    with Store(mysql_url) as store:
        yield store.totals


@pytest.fixture
def put(session: Session, applier: Applier) -> Put:
    """See :data:`tests.support.width_rows.Put`."""

    def put(
        minutes: Sequence[int], time_zone: str = "UTC", resolution: str = "day", **times: int
    ) -> None:
        put_scheme(session, "c", time_zone, resolution, **times)
        applier.apply([entry([(n, "c", "k", at, 10**n) for n, at in enumerate(minutes)])])

    return put


@pytest.fixture
def store_of_nowhere() -> Iterator[Store]:
    """The store of a server that is not there: what is refused is refused before it is asked."""
    with Store("mysql://nobody@127.0.0.1:1/nothing") as opened:
        yield opened


@pytest.fixture
def verifying(mysql_url: str) -> Iterator[Session]:
    """A session to verify on."""
    with open_session(mysql_url) as opened:
        yield opened
