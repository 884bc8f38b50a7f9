"""An empty queue, and processes of one test."""

from collections.abc import Iterator

import pytest
import redis

from tests.producers.helpers import Queue
from tests.support.processes import Children


@pytest.fixture
def children() -> Iterator[Children]:
    """Processes, ended at the end."""
    with Children() as started:
        yield started


@pytest.fixture
def queue(redis_url: str, redis_client: redis.Redis) -> Queue:
    """An empty Redis, and a client of it."""
    return Queue(redis_url, redis_client)
