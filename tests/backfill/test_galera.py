"""Reconciling on Galera, where applications count through other nodes than the writer."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pymysql
import pytest

from countersink.backfill.reconcile.correction import GREATEST_KEY, Correction, DayKeys, connect_for
from countersink.counting.apply.applier import Applier
from countersink.database.migrate import migrate
from countersink.store import Store
from countersink.store.verify import open_session, verify
from countersink.transactions import delete_rows
from tests.backfill.truths import DAY, Scene, on_days
from tests.support.app_connection import Connection
from tests.support.galera import GaleraCluster, installed, lagging
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(not installed(), reason="galera-4 or rsync is not installed"),
]

AT = datetime(DAY.year, DAY.month, DAY.day, 12, tzinfo=UTC)
ALL = DayKeys(DAY, None, GREATEST_KEY)


@pytest.fixture(scope="module")
def cluster(servers_directory: Path) -> Iterator[GaleraCluster]:
    """Two nodes, with the tables; the first one is the writer."""
    with GaleraCluster(servers_directory, size=2) as started:
        migrate(started.url())
        started.level()
        yield started


@pytest.fixture
def store(cluster: GaleraCluster) -> Iterator[Store]:
    with Store(cluster.url()) as opened:
        yield opened


@pytest.fixture
def app(cluster: GaleraCluster, store: Store) -> Iterator[Connection]:
    """An application's connection to the second node, which has counted ``/`` once."""
    port = cluster.nodes[1].port
    with closing(
        pymysql.connect(
            host="127.0.0.1", port=port, user="app", password="geheim", database="counts"
        )
    ) as opened:
        store.increment(opened, "views", "/", at=AT)
        opened.commit()
        cluster.level()
        yield opened
        store.delete(opened, "views", "/")
        opened.commit()
        cluster.level()


@pytest.fixture
def scene(cluster: GaleraCluster, store: Store) -> Iterator[Scene]:
    """With a session as reconciling has it."""
    with connect_for(cluster.url())() as session:
        yield Scene(cluster.url(), store, session, Applier(cluster.url(), 17))


@pytest.mark.parametrize("deletes", [False, True])
def test_a_correction_waits_for_what_its_node_has_not_applied(
    cluster: GaleraCluster, store: Store, app: Connection, scene: Scene, deletes: bool
) -> None:
    """Counts that another node commits before it begins are corrected; later ones are on top."""
    first, second = cluster.nodes
    run, session = scene.said_by({(DAY, "/"): 3}), scene.session
    correct = partial(Correction(run, "views", "day", False).correct, session, ALL)
    with lagging(cluster, first, through=second) as root:
        if deletes:  # without the settings, as a read of them would wait for the first node
            assert delete_rows(app, "`counts`", "views", b"/", session.dialect)
        else:
            store.increment(app, "views", "/", 2, at=AT)
        app.commit()
        thread = threading.Thread(target=correct)
        thread.start()
        # Before it has summed up, or in its COMMIT.
        eventually(lambda: time.monotonic() - (session.waiting_since or time.monotonic()) > 1.0)
        root.execute("UNLOCK TABLES")
        thread.join(60.0)
    assert scene.totals() == on_days({(DAY, "/"): 3})
    with open_session(cluster.url()) as verifying:
        assert verify(verifying).differences == []
