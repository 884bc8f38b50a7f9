"""The application's connection to a fresh database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.app import Connection, open_app


@pytest.fixture
def app(mysql_url: str) -> Iterator[Connection]:
    """The application's connection."""
    connection = open_app(mysql_url)
    yield connection
    if connection.open:
        connection.close()
