"""What most tests of reads use."""

from collections.abc import Iterator

import pytest
import redis

from countersink.database.session import Session
from countersink.store import Store
from tests.cli.command import Servers
from tests.reads.support import Ground


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The store; rows that tests plant are not verified."""
    with Store(mysql_url) as opened:
        yield opened


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    """The command's servers."""
    return Servers(redis_url, mysql_url)


@pytest.fixture
def ground(session: Session, store: Store, redis_client: redis.Redis, servers: Servers) -> Ground:
    """The servers, and what is connected to them."""
    return Ground(session, store, redis_client, servers)
