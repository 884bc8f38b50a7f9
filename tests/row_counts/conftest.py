"""An application's tables in a database of their own."""

from collections.abc import Iterator

import pytest

from countersink.database.connection import connect
from countersink.store import Store
from tests.row_counts.application import App


@pytest.fixture
def app(mysql_url: str, app_database_url: str) -> Iterator[App]:
    """An application that has no tables yet."""
    with (
        connect(app_database_url) as session,
        connect(mysql_url) as own,
        Store(mysql_url) as store,
    ):
        yield App(mysql_url, app_database_url, session, own, store)
