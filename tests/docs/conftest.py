"""Servers on which the commands of a page are run."""

import pytest

from tests.cli.command import Servers


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    """Redis and a freshly migrated database."""
    return Servers(redis_url, mysql_url)
