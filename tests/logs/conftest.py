"""A log, and what counts it."""

from pathlib import Path

import pytest
import redis

from tests.logs.tailing import Tailing


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def tailing(redis_client: redis.Redis, log: Path) -> Tailing:
    return Tailing(redis_client, log)
