"""What pages are played on."""

import pytest

from tests.cli.command import Servers


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    """Redis and a freshly migrated database."""
    return Servers(redis_url, mysql_url)
