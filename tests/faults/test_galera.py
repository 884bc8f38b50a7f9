"""The writer node of a Galera cluster is killed, frozen and cut off while everything is counted.

Workers and commands name the nodes in different orders. What the cluster has committed is not lost:
so not one increment may be missing or count twice, whatever part of the program it came by.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Self

import pymysql
import pytest
import redis

from countersink.store import Store
from countersink.store.connection import Session, connect
from countersink.store.errors import StoreError
from countersink.store.migrate import migrate
from tests.support.failover_load import Load
from tests.support.galera import GaleraCluster, GaleraNode, installed
from tests.support.processes import Children
from tests.support.replication import run

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not installed(), reason="galera-4 or rsync is not installed"),
]


@pytest.fixture(scope="module")
def cluster(servers_directory: Path) -> Iterator[GaleraCluster]:
    """Three nodes."""
    with GaleraCluster(servers_directory) as started:
        yield started


class GaleraLoad(Load):
    """All that counts, and an application's transactions through each node, whichever is the
    writer, as long as it is there. ``sales`` has as many rows as its counter was counted in the
    same transactions; ``shop`` is a tracked table.
    """

    def __init__(self, cluster: GaleraCluster, *rest: Any) -> None:
        super().__init__(*rest)
        self.cluster = cluster
        self.sold = 0
        """Transactions that are committed; of one whose COMMIT was lost its row tells."""
        first, second, third = cluster.nodes
        orders = (first, second, third), (third, second, first), (second, third, first)
        self._urls = cycle([cluster.url(*nodes) for nodes in orders])

    def __enter__(self) -> Self:
        with Store(self.url) as store, connect(self.url) as session:
            for table in ("shop", "sales"):
                session.execute(
                    f"CREATE TABLE {table} (id BIGINT AUTO_INCREMENT PRIMARY KEY, node INT)"
                )
            store.tracked.track("shop")
        return super().__enter__()

    def works(self) -> list[Callable[[], None]]:
        return [*super().works(), *(partial(self._app, number) for number in range(3))]

    def process_url(self) -> str:
        return next(self._urls)

    def check(self) -> None:
        """The same on all of the nodes."""
        super().check()
        assert self.seen.passes > 0
        self.cluster.wait(3)
        for node in self.cluster.nodes:
            with connect(self.cluster.url(node), database=False) as session:
                session.execute("USE counts")
                session.execute("SET SESSION wsrep_sync_wait = 1")
                assert _sum(session, "app") == self.seen.counted
                for table in ("orders", "shop", "sales"):
                    ((rows,),) = session.query(f"SELECT COUNT(*) FROM {table}")
                    assert (table, _sum(session, table)) == (table, rows)
                assert rows >= self.sold > 0

    def _app(self, number: int) -> None:
        with Store(self.cluster.url()) as store:
            while not self._stopping.is_set():
                try:
                    self._transactions(store, number)
                except (pymysql.err.MySQLError, StoreError, OSError):
                    self._stopping.wait(0.1)

    def _transactions(self, store: Store, number: int) -> None:
        app = pymysql.connect(
            host="127.0.0.1",
            port=self.cluster.nodes[number].port,
            user="app",
            password="geheim",
            database="counts",
            connect_timeout=2,
            read_timeout=8,
        )
        try:
            while not self._stopping.wait(0.01):
                with app.cursor() as cursor:
                    cursor.execute(f"INSERT INTO shop (node) VALUES ({number})")
                    if number == 1:
                        cursor.execute("DELETE FROM shop WHERE node = 0 ORDER BY id LIMIT 1")
                    cursor.execute(f"INSERT INTO sales (node) VALUES ({number})")
                store.increment(app, "sales", str(number))
                app.commit()
                self.sold += 1
        finally:
            app.close()


def _sum(session: Session, counter: str) -> int:
    ((found,),) = session.query(
        "SELECT COALESCE(SUM(amount), 0) FROM counter_slot WHERE counter = %s", (counter,)
    )
    return int(found)


def killed(cluster: GaleraCluster, writer: GaleraNode) -> Callable[[], object]:
    writer.kill()
    return writer.start


def frozen(cluster: GaleraCluster, writer: GaleraNode) -> Callable[[], object]:
    writer.freeze()
    return writer.thaw


def cut_off(cluster: GaleraCluster, writer: GaleraNode) -> Callable[[], object]:
    writer.isolate(True)
    cluster.wait(2, among=[node for node in cluster.nodes if node is not writer])
    return partial(writer.isolate, False)


def donates(cluster: GaleraCluster, writer: GaleraNode) -> Callable[[], object]:
    """Another node comes without data, and gets that of the writer, which is held up meanwhile."""
    other = next(node for node in cluster.nodes if node is not writer)
    other.kill()
    other.forget()
    other.extra = (f"--wsrep-sst-donor=node{writer.number}",)
    other.start()
    other.extra = ()
    return lambda: None


@pytest.mark.parametrize("deed", [killed, frozen, cut_off, donates])
def test_the_writer_fails_and_comes_back(
    children: Children,
    cluster: GaleraCluster,
    redis_client: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    deed: Callable[[GaleraCluster, GaleraNode], Callable[[], object]],
) -> None:
    first = cluster.nodes[0]
    run(first, "DROP DATABASE counts", "CREATE DATABASE counts")
    cluster.level()
    migrate(cluster.url())
    places = children, redis_client, redis_url, cluster.url(), tmp_path
    with GaleraLoad(cluster, *places) as load:
        for _ in range(2):
            writer, began = cluster.writer(), time.monotonic()
            undo = deed(cluster, writer)
            load.wait_for_more()
            print(f"{deed.__name__}: counted again after {time.monotonic() - began:.1f} s")
            undo()
            cluster.wait(3)
        load.finish()
