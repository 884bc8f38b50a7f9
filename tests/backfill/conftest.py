"""Sessions and appliers of the tests of backfill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from countersink.store.apply import Applier
from countersink.store.connection import Session, connect


@pytest.fixture
def session(mysql_url: str) -> Iterator[Session]:
    with connect(mysql_url) as opened:
        yield opened


@pytest.fixture
def applier(mysql_url: str) -> Iterator[Applier]:
    made = Applier(mysql_url, 17)
    yield made
    made.close()
