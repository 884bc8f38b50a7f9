"""An empty queue of one test."""

import pytest
import redis

from tests.producers.helpers import Queue


@pytest.fixture
def queue(redis_url: str, redis_client: redis.Redis) -> Queue:
    """An empty Redis, and a client of it."""
    return Queue(redis_url, redis_client)
