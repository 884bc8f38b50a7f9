"""One migrated database for all tests of runs and plans: making one takes longer than each test."""

import uuid
from collections.abc import Iterator

import pytest

from countersink.store.connection import Session, connect
from countersink.store.migrate import migrate
from tests.schedules.tables import Kept, Tables
from tests.support.forked import ForkedChildren
from tests.support.processes import Children
from tests.support.servers import MySQLServer


@pytest.fixture(scope="session")
def runs_database(mysql_server: MySQLServer) -> Iterator[str]:
    """The URL of a migrated database for this process."""
    name = f"runs_{uuid.uuid4().hex[:12]}"
    url = mysql_server.url_for(name)
    migrate(url)
    yield url
    with connect(mysql_server.url, database=False) as session:
        session.execute(f"DROP DATABASE {name}")


@pytest.fixture
def runs_url(runs_database: str) -> str:
    """The same, without jobs and runs."""
    with connect(runs_database) as session:
        for table in ("job", "job_run"):
            session.execute(f"DELETE FROM {table}")
    return runs_database


@pytest.fixture
def session(runs_url: str) -> Iterator[Session]:
    """A session on it."""
    with connect(runs_url) as opened:
        yield opened


@pytest.fixture
def tables(mysql_url: str) -> Iterator[Tables]:
    """What a test plants in the tables of a freshly migrated database, and looks at."""
    made = Tables(mysql_url)
    yield made
    made.close()


@pytest.fixture
def kept(mysql_url: str) -> Iterator[Kept]:
    """The same, with what counts and sets."""
    made = Kept(mysql_url)
    yield made
    made.close()


@pytest.fixture
def children() -> Iterator[Children]:
    """Processes that are gone after the test."""
    with ForkedChildren() as started:
        yield started
