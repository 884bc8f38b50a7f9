"""A session on a fresh database, and an applier beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from countersink.store.apply import Applier
from countersink.store.connection import Session, connect
from tests.store.app import Connection, open_app


@pytest.fixture
def session(mysql_url: str) -> Iterator[Session]:
    """A session of ours on a freshly migrated database."""
    with connect(mysql_url) as opened:
        yield opened


@pytest.fixture
def applier(mysql_url: str) -> Iterator[Applier]:
    """An applier into slot 17 of the same database."""
    made = Applier(mysql_url, 17)
    yield made
    made.close()


@pytest.fixture
def app(mysql_url: str) -> Iterator[Connection]:
    """The application's connection."""
    connection = open_app(mysql_url)
    yield connection
    if connection.open:
        connection.close()
