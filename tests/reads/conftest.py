"""What most tests of reads use."""

from collections.abc import Iterator

import pytest

from countersink.store import Store
from tests.cli.command import Servers


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The store; rows that tests plant are not verified."""
    with Store(mysql_url) as opened:
        yield opened


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    """The command's servers."""
    return Servers(redis_url, mysql_url)
