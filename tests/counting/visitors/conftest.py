"""The store of visitors."""

from collections.abc import Iterator

import pytest

from countersink.store import Store


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The store of the same database, with the counter ``visitors``; tests damage its sketches."""
    with Store(mysql_url) as opened:
        opened.counters.set("visitors", salt_days=0)
        yield opened
