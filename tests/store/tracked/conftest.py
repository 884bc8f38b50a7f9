"""An application's tables in a database of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from countersink.store.connection import connect
from tests.store.tracked.application import App


@pytest.fixture(scope="package", autouse=True)
def no_authorities() -> Iterator[None]:
    """No certificates of authorities, of which no server here has any.

    PyMySQL reads all of the machine's for each connection, just in case: that took two thirds of
    the time of these tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", os.devnull)
        yield


@pytest.fixture
def app(mysql_url: str, app_database_url: str) -> Iterator[App]:
    """An application that has no tables yet."""
    with connect(app_database_url) as session, connect(mysql_url) as own:
        made = App(mysql_url, app_database_url, session, own)
        yield made
        made.store.close()
