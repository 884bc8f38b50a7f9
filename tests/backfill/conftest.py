"""Fixtures of the tests of backfills."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from countersink.counting.apply.applier import Applier
from countersink.database.session import Session
from countersink.store import Store
from tests.backfill.helpers import Logs
from tests.backfill.truths import Scene
from tests.support.proxies import MySQLProxy


@pytest.fixture
def logs(mysql_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logs:
    """A directory for logs, and a new database that they are added to."""
    return Logs(mysql_url, redis_url, tmp_path, monkeypatch)


@pytest.fixture
def scene(mysql_url: str, store: Store, session: Session, applier: Applier) -> Scene:
    """Where runs reconcile; afterwards verify finds nothing."""
    return Scene(mysql_url, store, session, applier)


@pytest.fixture
def proxy(mysql_url: str) -> Iterator[MySQLProxy]:
    """Before the server of the database."""
    with MySQLProxy.to(mysql_url) as opened:
        yield opened
