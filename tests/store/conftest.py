"""The application's connection to a fresh database, and who reads it."""

from collections.abc import Iterator, Sequence

import pytest

from countersink.store import Store
from countersink.counting.apply.apply import Applier
from countersink.database.session import Session
from countersink.counting.totals import Totals
from countersink.store.verify import open_session
from tests.support.app_connection import Connection, open_app
from tests.support.entries import Database, entry
from tests.support.width_rows import Put, put_scheme


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
