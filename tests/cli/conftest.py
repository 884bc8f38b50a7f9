"""Fixtures of the tests of the command line."""

from __future__ import annotations

import pytest

from tests.cli.command import Servers


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    """An empty Redis and a migrated database, for the real command."""
    return Servers(redis_url, mysql_url)
