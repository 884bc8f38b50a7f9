"""Plugin of pytest with fixtures for an application's tests: ``countersink_producer``, which counts
in memory, and ``countersink_store``, a ``Store`` on a database that exists for one test.

pytest imports this module whenever it starts, so the fixtures import what they need.
"""

import os
import uuid
import warnings
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from countersink.producers import Producer
    from countersink.store import Store

_INI: Final = "countersink_mysql_url"
_MYSQL: Final = "COUNTERSINK_MYSQL_URL"
_OPEN: Final = (
    "countersink_store: the test ended in a transaction that has used the store's database. Totals"
    " do not see what it counts: in Django, mark the test django_db(transaction=True). The database"
    " is dropped when pytest ends"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option ``countersink_mysql_url``: the URL of the MySQL server on which
    ``countersink_store`` creates databases. Without it, ``COUNTERSINK_MYSQL_URL`` is used.
    """
    parser.addini(_INI, f"URL of the MySQL server of countersink_store; default: {_MYSQL}")


@pytest.fixture
def countersink_producer(monkeypatch: pytest.MonkeyPatch) -> "Producer":
    """A producer that counts in memory, with the URL ``memory://``. The counts of this URL are
    cleared before the test. During the test, producers of ``Producer.from_env()`` count in the same
    memory, and so does every other producer with this URL, even if it was created before.
    """
    from countersink.producers import Producer

    monkeypatch.setenv("COUNTERSINK_REDIS_URL", "memory://")
    monkeypatch.delenv("COUNTERSINK_REDIS_URL_FILE", raising=False)
    producer = Producer("memory://")
    producer.clear()
    return producer


@pytest.fixture
def countersink_store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> "Iterator[Store]":
    """A store on a database that is created for the test, with all tables, and dropped after it.
    ``Store.from_env()`` uses the same database during the test. If a transaction that outlasts the
    fixture has used the database, pytest warns, and the database is dropped when pytest ends.

    The server is that of the ini option ``countersink_mysql_url``, else of
    ``COUNTERSINK_MYSQL_URL``. If neither is set, if the URL is ``off://``, or if a package that
    ``Store`` needs is missing, the test is skipped; if the server cannot be used, the test fails.
    """
    try:
        from countersink.database.connection import connect
        from countersink.database.errors import Conflict, StoreError
        from countersink.database.url import OFF, with_database
        from countersink.store import Store
    except ModuleNotFoundError as error:
        pytest.skip(f"countersink_store: {error}")
    server = request.config.getini(_INI) or os.environ.get(_MYSQL)
    if server in (None, "", OFF):
        pytest.skip(f"countersink_store needs a MySQL server: set {_MYSQL}, or -o {_INI}=URL")
    name = f"countersink_test_{uuid.uuid4().hex[:12]}"
    try:
        url = with_database(server, name)
        with connect(url, database=False) as session:
            session.execute(f"CREATE DATABASE {name}")  # fails if there is one: it would be dropped
    except StoreError as error:
        raise pytest.fail.Exception(f"countersink_store: {error}", pytrace=False) from None
    try:
        monkeypatch.setenv(_MYSQL, url)
        for variable in (f"{_MYSQL}_FILE", "COUNTERSINK_MYSQL_READ_URL"):
            monkeypatch.delenv(variable, raising=False)
        with Store(url) as store:
            store.migrate()
            yield store
    finally:
        drop = partial(_drop, url, name)
        try:
            drop()
        except Conflict:
            request.session.addfinalizer(drop)
            warnings.warn(_OPEN, pytest.PytestWarning, stacklevel=1)


def _drop(url: str, name: str) -> None:
    from countersink.database.connection import connect

    with connect(url, database=False, lock_wait=1) as session:
        session.execute(f"DROP DATABASE {name}")
